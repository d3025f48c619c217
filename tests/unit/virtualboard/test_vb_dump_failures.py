"""Dumps that hang, crawl, leak or lie: what goes wrong between the C7x and the trace folder."""

from __future__ import annotations

import threading
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tidegauge.tidl import trace_names
from tidegauge.tidl.remote_log import LogCause
from tidegauge.virtualboard import remote_log
from tidegauge.virtualboard.failures import Failure, FailureName
from tidegauge.virtualboard.network import load_artifacts
from tidegauge.virtualboard.state import BoardState, fail, reboot
from unit.virtualboard.vb_client import causes, open_session, until

Tensors = dict[str, np.ndarray]


def trace_files(board: Path) -> list[Path]:
    return sorted(Path(BoardState.load(board).trace_folder).iterdir())


def start_run(session: Any, picture: Tensors) -> threading.Event:
    done = threading.Event()

    def run() -> None:
        session.run(None, picture)
        done.set()

    threading.Thread(target=run, daemon=True).start()
    return done


@pytest.mark.parametrize(
    ("name", "amount", "complaint"),
    [
        ("no_log_server", None, None),
        ("server_restarted", 2, "FWRITE : File not open"),
        ("trace_folder_full", 3000, "Fwrite error - count"),
    ],
)
def test_a_dump_that_cannot_end_hangs_until_the_cause_goes(
    board: Path,
    log_server: BytesIO,
    enhancer: Path,
    artifacts: Path,
    picture: Tensors,
    name: FailureName,
    amount: float | None,
    complaint: str | None,
) -> None:
    session = open_session(enhancer, artifacts, 3)
    fail(board, [Failure(name, amount)])
    done = start_run(session, picture)
    assert not done.wait(0.5)
    sizes = [path.stat().st_size for path in trace_files(board)]
    if name == "no_log_server":
        assert sizes == []
    elif name == "server_restarted":
        assert len([size for size in sizes if size]) == 2
        assert sizes[-1] == 0
    else:
        assert sum(sizes) == 3000
    assert complaint is None or complaint in (board / remote_log.LOG_FILE).read_text()
    fail(board, [])
    assert done.wait(20)


def test_a_restarted_server_knows_no_open_file(board: Path, enhancer: Path, artifacts: Path, picture: Tensors) -> None:
    session = open_session(enhancer, artifacts, 3)
    fail(board, [Failure("trace_folder_full", 100)])

    def serve() -> tuple[threading.Event, threading.Thread]:
        stop, ready = threading.Event(), threading.Event()
        thread = threading.Thread(target=remote_log.serve, args=(board, BytesIO(), stop, ready))
        thread.start()
        assert ready.wait(5)
        return stop, thread

    stop, thread = serve()
    done = start_run(session, picture)
    until(lambda: sum(path.stat().st_size for path in trace_files(board)) == 100)
    stop.set()
    thread.join()
    fail(board, [])
    stop, thread = serve()
    try:
        assert not done.wait(0.5)
        assert "FWRITE : File not open" in (board / remote_log.LOG_FILE).read_text()
    finally:
        stop.set()
        thread.join()


def test_a_slow_dump_takes_its_time(
    board: Path, log_server: BytesIO, enhancer: Path, artifacts: Path, picture: Tensors
) -> None:
    session = open_session(enhancer, artifacts, 3)
    fail(board, [Failure("slow_dump", 0.005)])
    start = time.monotonic()
    session.run(None, picture)
    files = len(trace_files(board))
    assert time.monotonic() - start > files * 5 * 0.005  # open, close, open, write, close


def test_stale_traces_lie_there_once_under_the_names_to_come(
    board: Path, log_server: BytesIO, enhancer: Path, artifacts: Path, picture: Tensors
) -> None:
    fail(board, [Failure("stale_traces", 40)])
    open_session(enhancer, artifacts)
    old = {path.name: path.read_bytes() for path in trace_files(board)}
    assert len(old) == 40
    session = open_session(enhancer, artifacts, 3)
    assert len(trace_files(board)) == 40
    session.run(None, picture)
    new = {path.name: path.read_bytes() for path in trace_files(board)}
    overwritten = [name for name in old if old[name] != new[name]]
    assert overwritten
    assert len(new) == 40


def test_trace_state_leaks_into_the_next_session(
    board: Path, log_server: BytesIO, enhancer: Path, artifacts: Path, picture: Tensors
) -> None:
    fail(board, [Failure("trace_leak")])
    open_session(enhancer, artifacts, 3)
    open_session(enhancer, artifacts).run(None, picture)
    assert trace_files(board)
    reboot(board)
    assert not trace_files(board)
    open_session(enhancer, artifacts).run(None, picture)
    assert not trace_files(board)


def test_traces_that_change_the_result(
    board: Path, log_server: BytesIO, enhancer: Path, artifacts: Path, picture: Tensors
) -> None:
    fail(board, [Failure("traces_change_result")])
    plain = open_session(enhancer, artifacts).run(None, picture)[0]
    fail(board, [])
    assert open_session(enhancer, artifacts).run(None, picture)[0].tobytes() == plain.tobytes()
    assert open_session(enhancer, artifacts, 3).run(None, picture)[0].tobytes() == plain.tobytes()
    fail(board, [Failure("traces_change_result")])
    traced = open_session(enhancer, artifacts, 3).run(None, picture)[0]
    assert 0 < np.abs(traced - plain).max() < 0.1


def test_a_trace_that_is_too_large_is_missing(
    board: Path, log_server: BytesIO, enhancer: Path, artifacts: Path, picture: Tensors
) -> None:
    fail(board, [Failure("trace_too_large", 6000)])
    open_session(enhancer, artifacts, 3).run(None, picture)
    missing = [layer for layer in load_artifacts(artifacts).tensors() if layer.name in ("relu1", "relu2")]
    names = [name for name in (trace_names.parse(path.name) for path in trace_files(board)) if name is not None]
    assert names
    assert not {layer.data_id for layer in missing} & {name.data_id for name in names}
    assert all(path.stat().st_size <= 6000 for path in trace_files(board))
    assert LogCause.TRACE_MEMORY in causes(board)
