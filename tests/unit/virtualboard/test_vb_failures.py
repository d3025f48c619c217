"""Every failure mode does what its table says: the process dies, waits for ever, lies, or loses memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from tidegauge.errors import TidegaugeError
from tidegauge.tidl import offload
from tidegauge.tidl import remote_log as log_lines
from tidegauge.tidl.remote_log import LogCause
from tidegauge.virtualboard import core, freezer, remote_log
from tidegauge.virtualboard.core import CoreState
from tidegauge.virtualboard.failures import FAILURE_NAMES, MODES, Failure, parse
from tidegauge.virtualboard.state import BoardState, fail, reboot
from unit.virtualboard import vb_client
from unit.virtualboard.vb_client import PROVIDERS, causes, open_session, until

Tensors = dict[str, np.ndarray]


SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tidegauge.virtualboard.onnxruntime_tidl"])


class Client:
    """A process that opens a session and runs."""

    def __init__(self, board: Path, model: Path, folder: Path, number: int, level: int = 0, runs: int = 1) -> None:
        self._said = board / f"client{number}.txt"
        self._leave = SERVER.Event()
        arguments = (str(board), str(self._said), str(model), str(folder), level, runs, self._leave)
        self.process = SERVER.Process(target=vb_client.client, args=arguments, daemon=True)
        self.process.start()

    @property
    def said(self) -> str:
        return self._said.read_text() if self._said.exists() else ""

    def expect(self, word: str) -> None:
        until(lambda: word in self.said.splitlines() or self.process.exitcode is not None)
        assert word in self.said.splitlines(), f"the client ended and said {self.said}"

    def stays_silent(self, seconds: float) -> bool:
        before = self.said
        self.process.join(seconds)
        return self.process.exitcode is None and self.said == before

    def end(self) -> int:
        self._leave.set()
        self.process.join(60)
        assert self.process.exitcode is not None
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def asleep(pid: int | None) -> bool:
    """For a fifth of a second without a break."""
    for _ in range(20):
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def client(board: Path, enhancer: Path, artifacts: Path) -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def make(**arguments: Any) -> Client:
        made.append(Client(board, enhancer, artifacts, len(made), **arguments))
        return made[-1]

    yield make
    for each in made:
        each.kill()


def test_silent_cpu_fallback(
    board: Path, enhancer: Path, artifacts: Path, picture: Tensors, capfd: pytest.CaptureFixture[str]
) -> None:
    fail(board, [Failure("cpu_fallback")])
    session = open_session(enhancer, artifacts)
    session.run(None, picture)
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert log_lines.cause(capfd.readouterr().out) is LogCause.CPU_FALLBACK
    fail(board, [Failure("no_delegation")])
    session = open_session(enhancer, artifacts)
    session.run(None, picture)
    with pytest.raises(offload.NotOffloaded):
        offload.prove_onnx(session.get_providers(), session.get_TI_benchmark_data())
    fail(board, [])
    session = open_session(enhancer, artifacts)
    session.run(None, picture)
    assert offload.subgraphs(session.get_TI_benchmark_data()) == ("subgraph_0",)


def test_zeros_after_a_failed_create(
    board: Path, enhancer: Path, artifacts: Path, picture: Tensors, capfd: pytest.CaptureFixture[str]
) -> None:
    fail(board, [Failure("zeros_after_failed_create")])
    session = open_session(enhancer, artifacts)
    (output,) = session.run(None, picture)
    assert output.shape == (1, 3, 24, 32)
    assert not output.any()
    # All that TI's own proof of offload looks at is there.
    assert offload.prove_onnx(session.get_providers(), session.get_TI_benchmark_data()).subgraphs == ("subgraph_0",)
    assert LogCause.CREATE_FAILED in causes(board)
    assert "TIVX_CMD_NODE_CREATE failed" in capfd.readouterr().out


def test_the_process_exits_or_aborts(board: Path, client: Callable[..., Client]) -> None:
    fail(board, [Failure("exit_in_create")])
    gone = client()
    assert gone.end() == 255
    assert "created" not in gone.said
    fail(board, [Failure("exit_in_create"), Failure("abort_missing_library")])
    aborted = client()
    assert aborted.end() == -signal.SIGABRT
    assert "libtidl_onnxrt_EP.so: cannot open shared object file" in aborted.said


def test_size_and_version_mismatch(
    board: Path, enhancer: Path, artifacts: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fail(board, [Failure("size_mismatch", 37256)])
    with pytest.raises(Fail):
        open_session(enhancer, artifacts)
    said = capfd.readouterr().out
    assert "(94616 bytes) does not match size of sTIDL_IOBufDesc_t (37256 bytes)" in said
    fail(board, [Failure("version_mismatch")])
    with pytest.raises(Fail):
        open_session(enhancer, artifacts)
    assert causes(board).count(LogCause.NETWORK_VERSION) == 1


def test_a_hang_in_create_takes_the_whole_core_until_reboot(board: Path, client: Callable[..., Client]) -> None:
    fail(board, [Failure("hang_in_create")])  # the network has a 16-bit tensor
    first = client(level=1)
    first.expect("begin")
    until(lambda: CoreState.load(board).hung == "create")
    assert any("Alg Init for Layer #" in line for line in (board / remote_log.LOG_FILE).read_text().splitlines())
    fail(board, [])
    second = client()
    second.expect("begin")
    assert second.stays_silent(0.7)
    with pytest.raises(TidegaugeError, match=f"{first.process.pid}"):
        reboot(board)
    first.kill()
    second.kill()
    reboot(board)
    third = client()
    third.expect("ran 0")
    assert third.end() == 0


def test_only_16_bit_networks_hang_in_create(board: Path, enhancer: Path, artifacts: Path, picture: Tensors) -> None:
    fail(board, [Failure("hang_in_create", 32)])
    open_session(enhancer, artifacts).run(None, picture)


def test_a_hang_in_run_names_the_last_layer_and_ignores_sigterm(board: Path, client: Callable[..., Client]) -> None:
    fail(board, [Failure("hang_in_run", 2)])
    hung = client(level=2, runs=3)
    hung.expect("ran 1")
    until(lambda: CoreState.load(board).hung == "run")
    lines = (board / remote_log.LOG_FILE).read_text().splitlines()
    assert "Processing Layer # -" in lines[-1]
    until(lambda: asleep(hung.process.pid))
    # No handler of Python's runs while the main thread is inside the library.
    os.kill(hung.process.pid, signal.SIGUSR1)
    assert hung.stays_silent(0.5)


@pytest.mark.skipif(freezer.why_not() != "", reason=freezer.why_not())
def test_an_unkillable_process_stays_until_the_reboot(board: Path, client: Callable[..., Client]) -> None:
    fail(board, [Failure("unkillable", 1)])
    stuck = client(runs=2)
    stuck.expect("ran 0")
    try:
        until(lambda: freezer.frozen(board) == [stuck.process.pid])
        state = Path(f"/proc/{stuck.process.pid}/stat")
        until(lambda: state.read_text().rpartition(")")[2].split()[0] == "D")
        stuck.process.kill()
        assert stuck.stays_silent(0.5), "SIGKILL does nothing"
        assert CoreState.load(board).hung == "run"
    finally:
        reboot(board)
    stuck.process.join(10)
    assert stuck.process.exitcode == -signal.SIGKILL
    assert freezer.frozen(board) == []
    assert CoreState.load(board) == CoreState()
    assert BoardState.load(board).failures == ()


def test_a_machine_that_cannot_make_it_unkillable_says_so(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezer, "ROOT", board / "nowhere")
    with pytest.raises(TidegaugeError, match="no cgroup freezer of version 1"):
        fail(board, [Failure("unkillable")])
    assert BoardState.load(board).failures == ()


def test_a_killed_process_leaks_until_reboot(board: Path, client: Callable[..., Client]) -> None:
    before = CoreState.load(board)
    tidy = client()
    tidy.expect("ran 0")
    held = CoreState.load(board)
    assert held.c7x_free < before.c7x_free
    assert not held.orphans()
    assert tidy.end() == 0
    assert CoreState.load(board).sessions == ()
    killed = client(level=3, runs=0)
    killed.expect("created")
    killed.kill()
    leaked = CoreState.load(board)
    assert [orphan.pid for orphan in leaked.orphans()] == [killed.process.pid]
    assert before.shared_free - leaked.shared_free > core.TRACE_OBJECT_BYTES
    reboot(board)
    assert CoreState.load(board) == CoreState()


def test_three_traced_sessions_do_not_fit(
    board: Path, enhancer: Path, artifacts: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = [open_session(enhancer, artifacts, 3) for _ in range(2)]
    with pytest.raises(Fail):
        open_session(enhancer, artifacts, 3)
    assert "MEM: ERROR: Alloc failed" in capfd.readouterr().out
    del kept
    open_session(enhancer, artifacts, 3)


def test_failed_creates_leak_until_the_heap_is_gone(board: Path, enhancer: Path, artifacts: Path) -> None:
    fail(board, [Failure("create_fails", 3), Failure("out_of_heap", 3)])
    for _ in range(3):
        with pytest.raises(Fail, match="Create state function failed"):
            open_session(enhancer, artifacts)
    assert LogCause.C7X_MEMORY not in causes(board)
    fail(board, [])  # the reason is cured, the leak is not
    with pytest.raises(Fail):
        open_session(enhancer, artifacts)
    assert LogCause.C7X_MEMORY in causes(board)
    reboot(board)
    open_session(enhancer, artifacts)


def test_a_failed_create_alone_leaks_a_little(board: Path, enhancer: Path, artifacts: Path) -> None:
    fail(board, [Failure("create_fails", 1)])
    with pytest.raises(Fail):
        open_session(enhancer, artifacts)
    assert 0 < CoreState.load(board).leaked_bytes < 1 << 20
    session = open_session(enhancer, artifacts)
    assert session.get_providers() == PROVIDERS


def test_a_held_semaphore_blocks_everyone_until_reboot(board: Path, client: Callable[..., Client]) -> None:
    fail(board, [Failure("semaphore_held")])
    blocked = client()
    blocked.expect("begin")
    assert blocked.stays_silent(0.7)
    blocked.kill()
    assert reboot(board).failures == ()
    free = client()
    free.expect("ran 0")


def test_slow(board: Path, enhancer: Path, artifacts: Path, picture: Tensors) -> None:
    session = open_session(enhancer, artifacts)

    def milliseconds() -> float:
        session.run(None, picture)
        stamps = session.get_TI_benchmark_data()
        taken = stamps["ts:subgraph_subgraph_0_proc_end"] - stamps["ts:subgraph_subgraph_0_proc_start"]
        return float(taken) / 1e6

    usual = min(milliseconds() for _ in range(5))
    fail(board, [Failure("slow", 30)])
    assert min(milliseconds() for _ in range(3)) > 10 * usual


def test_a_run_that_fails_and_a_board_without_its_overlay(
    board: Path, enhancer: Path, artifacts: Path, picture: Tensors, capfd: pytest.CaptureFixture[str]
) -> None:
    session = open_session(enhancer, artifacts)
    fail(board, [Failure("invoke_fails", 1)])
    session.run(None, picture)
    with pytest.raises(Fail, match=r"TIDL Compute Invoke Failed\."):
        session.run(None, picture)
    fail(board, [Failure("no_shared_memory")])
    with pytest.raises(Fail):
        open_session(enhancer, artifacts)
    assert log_lines.cause(capfd.readouterr().out) is LogCause.SHARED_MEMORY
    fail(board, [])
    session.run(None, picture)


def test_the_text_form() -> None:
    assert parse("slow:2.5") == Failure("slow", 2.5)
    assert parse("version_mismatch:0x20240719") == Failure("version_mismatch", 0x20240719)
    assert parse("hang_in_run") == Failure("hang_in_run")
    assert Failure("hang_in_create").strength == 16
    for text, said in (
        ("melt", "there is no failure 'melt': use one of cpu_fallback"),
        ("cpu_fallback:1", "takes no amount"),
        ("slow:much", "'much' in 'slow:much' is not a number: give times as long"),
        ("slow:0.5", "out of range"),
        ("slow:nan", "out of range"),
        ("hang_in_create:4", "out of range"),
    ):
        with pytest.raises(TidegaugeError, match=said):
            parse(text)


def test_every_mode_is_described_in_the_docs() -> None:
    assert tuple(MODES) == FAILURE_NAMES
    page = (Path(__file__).parents[3] / "docs" / "virtualboard.md").read_text()
    for name, mode in MODES.items():
        amount = f"{mode.amount} ({mode.default:g})" if mode.amount else "–"
        assert f"| `{name}` | {mode.does} | {amount} | {mode.source} |" in page


def test_damaged_core_state_is_said(board: Path) -> None:
    (board / core.FILE).write_text("{")
    with pytest.raises(TidegaugeError, match=r"core\.json can't be read.*virtualboard reboot"):
        CoreState.load(board)


def test_a_pid_that_came_again_is_another_process(board: Path) -> None:
    pid, started = core.own()
    held = core.Held(0, pid, started, 1, 1)
    again = core.Held(1, pid, started - 1, 1, 1)
    assert CoreState(sessions=(held, again)).orphans() == (again,)
    assert core.process_start(os.getpid()) == started
