"""`tidegauge compare` with the runs of other rungs and with a baseline, as a command."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidegauge.compare import from_json
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import Board, build


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("board"), "segmenter")


def run(board: Board, folder: Path, *more: str | Path) -> subprocess.CompletedProcess[str]:
    source = ["--device", folder, "--model", board.model, "--tempdir", board.artifacts, "--input", folder / "input.npy"]
    command = [sys.executable, "-m", "tidegauge", "compare", *map(str, [*source, *more])]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_fault_of_the_device_only_is_said_with_what_stays_undecided(board: Board, tmp_path: Path) -> None:
    host = tmp_path / "pc"
    host.mkdir()
    for file in board.trace().glob("C7x_1_*"):
        shutil.copy(file, host / file.name.removeprefix("C7x_1_"))
    device = board.trace([Fault("e2", "band")], name="evm")
    done = run(board, device, "--host", host, "--json", tmp_path / "a.json", "--html", tmp_path / "a.html")
    assert done.returncode == 1 and not done.stderr
    assert (
        "Rungs: The error enters on the device only (e2)" in done.stdout
        and "TIDL float on the PC: missing" in done.stdout
    )
    answer = from_json((tmp_path / "a.json").read_bytes())
    assert answer.rungs is not None and answer.rungs.enters == ("device",)
    assert answer.exact is not None and answer.exact.exit_code == 1
    assert "four rungs" in (tmp_path / "a.html").read_text()


def test_a_baseline_is_written_widened_and_used(board: Board, tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    healthy = board.trace()
    for number in (1, 2):
        done = run(board, healthy, "--write-baseline", file)
        assert done.returncode == 0 and f"from {number} healthy runs" in done.stderr
    other = board.trace([Fault("mid", "gain", 1.02)], name="evm")
    verdicts = []
    for number in (1, 2):
        done = run(board, other, "--baseline", file, "--json", "-")
        layers = from_json(done.stdout.encode()).layers
        verdicts.append(next(layer.verdict for layer in layers if layer.name == "mid"))
        if number == 1:
            run(board, other, "--write-baseline", file)
    assert verdicts[0] in ("faulty", "recovers") and verdicts[1] == "healthy"
    file.write_text("{}")
    damaged = run(board, other, "--baseline", file)
    assert damaged.returncode == 2 and "--write-baseline" in damaged.stderr
