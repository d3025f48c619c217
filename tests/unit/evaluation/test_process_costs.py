"""What a process costs, read from the kernel; and what counts as growth."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from needs import program
from tidegauge import signing
from tidegauge.bundles.reader import decode_manifest
from tidegauge.bundles.signature import check
from tidegauge.evaluation import budget, secured_board
from tidegauge.evaluation.budget import imports
from tidegauge.evaluation.figures import Figure
from tidegauge.evaluation.process_costs import children, costs
from tidegauge.evaluation.small_board import SmallBoard
from tidegauge.evaluation.soak import growth

MIB = 1 << 20


def test_what_a_process_takes_is_seen(tmp_path: Path) -> None:
    before = costs(os.getpid())
    go, memory = threading.Event(), bytearray(b"\x01") * (64 * MIB)
    thread = threading.Thread(target=go.wait)
    thread.start()
    fd = os.memfd_create("tidegauge-test")
    os.ftruncate(fd, MIB)
    with mmap.mmap(fd, MIB), (tmp_path / "file").open("wb") as file:
        file.write(os.urandom(4 * MIB))
        file.flush()
        os.fsync(file.fileno())
        after = costs(os.getpid())
    go.set()
    thread.join()
    os.close(fd)
    assert after.resident - before.resident > 50 * MIB
    assert after.peak >= after.resident - MIB
    assert after.threads == before.threads + 1
    assert after.descriptors == before.descriptors + 3, "the memory file, the mapping's own of it, the file"
    assert after.shared == before.shared + 1
    assert after.cpu >= before.cpu
    assert after.wakeups >= before.wakeups
    assert after.written >= before.written
    del memory


def test_another_process_is_read_too_and_one_that_is_gone_is_an_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert costs(process.pid).threads == 1
    process.communicate(b"\n", timeout=60)
    with pytest.raises(OSError):
        costs(process.pid)


@pytest.mark.parametrize("fault", [FileNotFoundError, ProcessLookupError])
def test_a_thread_that_ends_while_it_is_read_is_left_out(monkeypatch: pytest.MonkeyPatch, fault: type[OSError]) -> None:
    """The kernel says "no such file" at the opening, and "no such process" where the file was open already."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    read = Path.read_text

    def read_or_end(path: Path, *arguments: str) -> str:
        if "task" in path.parts:
            raise fault(path)
        return read(path, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", read_or_end)
        assert costs(process.pid).wakeups == 0
        assert costs(process.pid).threads == 1
        assert children(os.getpid()) == {}
    assert sys.executable in children(os.getpid())[process.pid]
    process.communicate(b"\n", timeout=60)
    assert process.pid not in children(os.getpid())


def test_growth_is_a_trend_not_a_peak() -> None:
    flat = [30.0, 40.0] + [50.0, 51.0, 49.0, 70.0, 50.0, 50.0, 51.0, 49.0] * 2
    assert abs(growth(flat)) <= 1
    assert growth([50.0 + n for n in range(30)]) > 10
    assert growth([1.0] * 6) == 0


def test_the_command_line_imports_nothing_heavy() -> None:
    """What it takes is a figure of `make budget`; what it loads is certain."""
    heavy = "numpy", "rich", "onnx", "onnxruntime", "cv2", "asyncio", "prometheus_client", "aiomqtt", "litestar"
    code = f"import sys, tidegauge.cli; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_an_import_is_a_figure_with_a_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "REPEATS", 1)
    figures = imports(lambda text: None)
    assert [figure.goal for figure in figures] == [150.0, 2.0, 2.0, 2.0, 2.0]
    assert all(figure.value > 0 for figure in figures)


def test_whether_a_process_has_loaded_a_package_is_seen() -> None:
    for code, expected in (("import nacl.signing", True), ("import json", False)):
        command = [sys.executable, "-c", f"{code}; print(flush=True); input()"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        assert budget.loaded(process.pid, budget.SIGNER) is expected
        process.communicate(b"\n", timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_agents_memory_is_read_again_once_it_has_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "SETTLE", 0.0)
    board = SmallBoard(tmp_path)
    board.build()
    with board.remote_log(), budget._agent(board, {"gap_mean": 1e6, "gap_floor": 0.0}) as (pid, url, _):
        assert not budget.loaded(pid, budget.SIGNER), "an agent that signs nothing pays nothing"
        resident, peak = budget._signed(board, pid, url)
        assert not budget.loaded(pid, "cryptography"), "it is six times as large, and not needed to sign"
    (manifest,) = board.state.glob("spool/bundles/*/manifest.json")
    data = manifest.read_bytes()
    assert check(data, decode_manifest(data, "it")) == signing.load(board.state / "device.key").public
    assert "more than before" in resident.note
    assert (resident.goal, resident.relation) == (60.0, "<=")
    assert resident.value <= peak.value


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_agent_with_a_certificate_that_encrypts_loads_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "SETTLE", 0.0)
    for name in ("mosquitto", "openssl"):
        program(name, name)
    signed, seen = budget._signed, []

    def watched(board: SmallBoard, pid: int, url: str, agent: str) -> list[Figure]:
        figures = signed(board, pid, url, agent)
        seen.append(budget.loaded(pid, "cryptography"))
        return figures

    monkeypatch.setattr(budget, "_signed", watched)
    board = SmallBoard(tmp_path)
    board.build()
    figures, not_run = budget._secured(board)
    assert not not_run
    assert seen == [False]
    assert [figure.goal for figure in figures] == [60.0, 60.0, None, None]
    assert all(20 < figure.value < 200 for figure in figures)
    (manifest,) = board.state.glob("spool/bundles/*/manifest.json")
    shown = decode_manifest(manifest.read_bytes(), "it")
    assert shown.privacy.recipient
    assert {tensor.blob.encoding for tensor in shown.inputs} == {"sealed"}


def test_what_a_secured_board_lacks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secured_board, "mosquitto", lambda: None)
    figures, (row,) = budget._secured(SmallBoard(tmp_path))
    assert figures == []
    assert row.reason == "mosquitto is not installed"
