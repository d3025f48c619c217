"""`tidegauge compare --host --device` as a person or a CI job runs it, on dumps of the virtual board."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidegauge.compare import exact_from_json
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import Board, build


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("board"), "segmenter")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidegauge", "compare", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def host_dump(board: Board, folder: Path) -> Path:
    """The healthy run under the names that the emulation on a PC gives."""
    folder.mkdir()
    for file in board.trace().iterdir():
        if file.suffix != ".npy":
            shutil.copy(file, folder / file.name.removeprefix("C7x_1_"))
    return folder


def test_bit_exact_mode_names_the_first_divergence(board: Board, tmp_path: Path) -> None:
    host = host_dump(board, tmp_path / "pc")
    healthy = run("--host", host, "--device", board.trace(name="same"), "--tempdir", board.artifacts)
    assert healthy.returncode == 0 and healthy.stdout.startswith("EQUAL: ") and not healthy.stderr
    device = board.trace([Fault("d1", "rounding", 0.01)], name="evm")
    page = tmp_path / "report.html"
    done = run("--host", host, "--device", device, "--tempdir", board.artifacts, "--json", "-", "--html", page)
    assert done.returncode == 1
    answer = exact_from_json(done.stdout.encode())
    assert answer.order == "netLog" and answer.first is not None
    first = answer.tensors[answer.first]
    assert (first.name, first.status, first.off_by_more, first.largest) == ("d1", "off_by_one", 0, 1)
    assert all(t.origin in ("none", "inherits") for t in answer.tensors if t.name != "d1")
    assert "d1" in page.read_text()
    short = run("--host", host, "--device", device, "--tempdir", board.artifacts, "--top", "1").stdout
    unequal = sum(tensor.status not in ("exact", "not_dumped") for tensor in answer.tensors)
    assert unequal > 1 and f"… and {unequal - 1} more" in short


def test_bit_exact_mode_needs_no_tempdir_and_exits_2_and_3(board: Board, tmp_path: Path) -> None:
    host = host_dump(board, tmp_path / "pc")
    device = board.trace(name="evm")
    done = run("--host", host, "--device", device)
    assert done.returncode == 0 and "no tempDir" in done.stdout
    for file in sorted(device.glob("*.y"))[4:]:
        file.unlink()
    assert run("--host", host, "--device", device, "--tempdir", board.artifacts).returncode == 3
    (tmp_path / "empty").mkdir()
    empty = run("--host", tmp_path / "empty", "--device", device)
    assert empty.returncode == 2 and "no trace files" in empty.stderr and empty.stdout == ""
    same = run("--host", device, "--device", device)
    assert same.returncode == 2 and "one side only" in same.stderr
