"""The main job, end to end, as a newcomer runs it: real broker, collector and agent as processes."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def demo(folder: Path, *arguments: str, timeout: float = 240) -> tuple[int, str, Any]:
    result = folder / "out.json"
    command = [sys.executable, "-m", "tidegauge", "demo", "--once", "--json", str(result), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    return done.returncode, said, json.loads(result.read_text()) if result.exists() else None


@pytest.mark.timeout(300)
def test_a_seed_names_the_injected_layer(tmp_path: Path) -> None:
    code, said, result = demo(tmp_path, "--seed", "1", "--keep", str(tmp_path / "run"))
    assert code == 0, said
    assert result["named_layer"] == result["injected_layer"]
    assert result["verdict"] == "accelerator"
    assert result["virtual"] is True
    data = tmp_path / "run" / "collector" / "data"
    with contextlib.closing(sqlite3.connect(data / "collector.sqlite")) as database:
        (name,) = database.execute("SELECT sha256 FROM reports WHERE name = 'report.html'").fetchone()
        told = database.execute("SELECT sdk, artifacts, acceptance FROM devices").fetchall()
        sent = database.execute("SELECT sdk, artifacts FROM bundles").fetchall()
    assert told == [(*sent[0], "accepted")] and sent[0][1], "the board and its bundle name the same network"
    report = (data / "blobs" / "sha256" / name).read_text()
    assert result["injected_layer"] in report
    assert "VIRTUAL" in report
    assert list((tmp_path / "run" / "board" / "state" / "spool" / "bundles").iterdir()) == [], "deleted once stored"


@pytest.mark.timeout(300)
def test_a_fault_from_the_start_fails_acceptance_and_is_named(tmp_path: Path) -> None:
    code, said, result = demo(tmp_path, "--from-start", "--layer", "/conv7/Tanh_output_0", "--fault", "saturate")
    assert code == 0, said
    assert result["detector"] == "acceptance"
    assert result["named_layer"] == "/conv7/Tanh_output_0"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_fault_no_alarm(tmp_path: Path) -> None:
    code, said, result = demo(tmp_path, "--fault", "none")
    assert code == 0, said
    assert result["detector"] is None


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--fault", "nan", "--layer", "/conv1/Relu_output_0"), "enhanced"),
        (("--fault", "none", "--from-start"), "--from-start"),
        (("--fault", "gain", "--layer", "/conv9/Relu_output_0"), "/conv1/Relu_output_0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    code, said, result = demo(tmp_path, *arguments)
    assert code == 2
    assert result is None
    assert named in said


@pytest.mark.timeout(200)
def test_ctrl_c_ends_everything_in_order(tmp_path: Path) -> None:
    """In about 3 s on a machine that does nothing else; how long is not asserted, that nothing had to be killed is."""
    command = [sys.executable, "-m", "tidegauge", "demo", "--keep", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "are running" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 130
    assert "Traceback" not in rest
    assert "killing it" not in rest
    for log in ("agent", "collector"):
        assert "stopping" in (tmp_path / "run" / "logs" / f"{log}.log").read_text()
    assert not (tmp_path / "run" / "board" / "state" / "agent.json").exists(), "the agent has left in order"
