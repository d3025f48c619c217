"""`tidegauge device` to a running agent over a real broker: each command, its answer, its entry in the audit log."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from faults.small_board import SmallBoard, metrics, wait_for
from integration.link_peer import Mosquitto
from tidegauge.bundles.reader import read_manifest
from tidegauge.bundles.signature import check
from tidegauge.demo.settings import write_toml

DEVICE = "small"


@pytest.fixture
def board(tmp_path: Path) -> SmallBoard:
    return SmallBoard(tmp_path / "board", virtual=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_command_over_the_broker(tmp_path: Path, board: SmallBoard) -> None:
    (tmp_path / "broker").mkdir()
    broker = Mosquitto(tmp_path / "broker")
    broker.start()
    person = tmp_path / "operator"
    made = board.tidegauge_plain("keys", "new", str(person / "operator.key"))
    assert made.returncode == 0, made.stderr
    public = made.stdout.strip()
    link = {"host": "127.0.0.1", "port": broker.port, "backoff_first": 0.2, "backoff_most": 1.0, "connect_jitter": 0.0}
    write_toml(person / "operator.toml", {"link": link})
    config = board.configure(
        shadow={"gap_mean": 0.1, "gap_floor": 0.02},
        acceptance={"samples": 20, "max_loss": 0.5},
        link=link,
        commands={"operators": [public]},
    )

    def device(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = board.tidegauge_plain("device", *arguments, "--config", str(person / "operator.toml"), "--timeout", "60")
        assert done.returncode == code, f"{arguments}: {done.stdout} {done.stderr}"
        return done

    try:
        with board.remote_log(), board.agent(config) as agent:
            url = board.url(agent)
            wait_for(lambda: board.status().reference, 120, "accepted reference")
            listed = json.loads(device("list", "--json").stdout)
            assert listed[DEVICE]["state"] == "online"
            assert "accepted" in device("status", DEVICE).stdout

            assert "every 7 s" in device("set-sampling", DEVICE, "7", "--floor", "1").stdout
            assert board.status().shadow.gap == 7
            assert "the log level is now debug" in device("log-level", DEVICE, "debug").stdout
            assert "taken at once: shadow.gap_" in device("reload", DEVICE).stdout
            assert board.status().shadow.gap < 7, "reading agent.toml takes its gap again"

            tested = device("self-test", DEVICE)
            assert "bit for bit" in tested.stdout
            assert "golden tensors checked" in tested.stderr
            captured = device("capture", DEVICE, "--json")
            assert json.loads(captured.stdout)["state"] == "done"
            assert "tracing" in captured.stderr
            (folder,) = (board.state / "spool" / "bundles").iterdir()
            bundle = read_manifest(folder).bundle_id
            assert "before all others" in device("pull", DEVICE, bundle).stdout
            assert "there is no bundle" in device("pull", DEVICE, "no-such-bundle", code=4).stderr

            assert "no alarm was latched" in device("alarm-clear", DEVICE).stdout
            answer = json.loads(device("rebaseline", DEVICE, "--json").stdout)
            assert answer["status"]["acceptance"]["state"] == "running"

            refused = device_with_another_key(board, person)
            assert refused.returncode == 4
            assert "unknown_key" in refused.stderr
            wait_for(lambda: metrics(url)['tidegauge_commands_total{result="forged"}'] >= 1, 30, "a counted forgery")
            assert metrics(url)['tidegauge_commands_total{result="done"}'] >= 8

            key = board.tidegauge("keys", "device").stdout.strip()
            assert check((folder / "manifest.json").read_bytes(), read_manifest(folder)) == key

        gone = device("alarm-clear", DEVICE, "--timeout", "3", code=5)
        assert "is not connected (stopped)" in gone.stderr
    finally:
        broker.kill()
    audit = [json.loads(line) for line in (board.state / "audit.log").read_text().splitlines()]
    done = [entry["command"] for entry in audit if entry["done"]]
    assert done == [
        "SetSampling",
        "SetLogLevel",
        "Reload",
        "SelfTest",
        "CaptureNow",
        "Pull",
        "ClearAlarms",
        "Rebaseline",
    ]
    assert all("over the broker" in entry["who"] for entry in audit)
    assert "Traceback" not in board.log()


def device_with_another_key(board: SmallBoard, person: Path) -> subprocess.CompletedProcess[str]:
    made = board.tidegauge_plain("keys", "new", str(person / "other.key"))
    assert made.returncode == 0
    text = (person / "operator.toml").read_text()
    (person / "other.toml").write_text(f'key = "other.key"\n{text}')
    return board.tidegauge_plain("device", "alarm-clear", DEVICE, "--config", str(person / "other.toml"))
