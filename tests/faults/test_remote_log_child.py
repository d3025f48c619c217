"""The agent runs the remote-log server itself: captures by it, its death in mid-dump, what a killed agent leaves."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from faults.small_board import INFERENCES, SmallBoard, frames_go_on, metrics, wait_for
from tidegauge.agent.status import WorkerStatus
from tidegauge.board import processes_matching
from tidegauge.bundles.reader import read_blob, read_manifest
from tidegauge.virtualboard.state import update


@pytest.fixture
def board(tmp_path: Path) -> SmallBoard:
    return SmallBoard(tmp_path, virtual=True)


def configured(board: SmallBoard) -> Path:
    command = [sys.executable, "-m", "tidegauge", "virtualboard", "remote-log", str(board.virtual_folder)]
    return board.configure(
        capture={"remote_log_file": "", "per_cause_hour": 5, "timeout": 6.0},
        remote_log={"command": command, "settle": 0.5, "restart_first": 0.2, "restart_most": 0.5},
        runtime={"start_timeout": 60.0, "first_run_timeout": 60.0, "kill_timeout": 0.5},
    )


def server(board: SmallBoard) -> WorkerStatus:
    [found] = [each for each in board.status().workers if each.name == "remote_log"]
    return found


def log_of_last_bundle(board: SmallBoard) -> str:
    bundle = max((board.state / "spool" / "bundles").iterdir(), key=lambda path: path.stat().st_mtime)
    [file] = [each for each in read_manifest(bundle).logs if each.name == "remote_log.txt"]
    return read_blob(bundle, file.blob, 1 << 24).decode()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_captures_by_its_own_server_and_a_new_one_only_after_a_capture(board: SmallBoard) -> None:
    with board.agent(configured(board)) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[INFERENCES] > 3, 90, "device runs")
        first = server(board)
        assert (first.generation, first.state) == (1, "running")
        assert processes_matching(board.remote_log_text) == [first.pid]
        done = board.tidegauge("agent", "capture")
        assert done.returncode == 0, done.stderr + board.log()
        assert "C7x_1" in log_of_last_bundle(board), "what the C7x printed while it dumped, heard through the pty"

        update(board.virtual_folder, trace_op_seconds=0.2)
        asking = ("-m", "tidegauge", "agent", "capture", "--state", str(board.state))
        with board.running(*asking, log="capture.log") as capture:
            wait_for(lambda: list(board.traces.iterdir()), 90, "a trace being written")
            assert first.pid is not None
            os.kill(first.pid, signal.SIGKILL)  # from now on every file operation of the C7x waits for ever
            wait_for(lambda: server(board).pid is None, 10, "noticed end")
            step = board.status().captures.step
            assert step == "tracing"
            assert server(board).generation == 1, "none anew while the C7x dumps"
            assert capture.wait(120) == 4
        wait_for(lambda: server(board).generation == 2 and server(board).state == "running", 20, "new server")
        update(board.virtual_folder, trace_op_seconds=0.0)
        frames_go_on(url)
        again = board.tidegauge("agent", "capture")
        assert again.returncode == 0, again.stderr
        second = server(board).pid
        agent.send_signal(signal.SIGKILL)
        agent.wait()
    with board.agent(configured(board), log="again.log") as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[INFERENCES] > 3, 90, "device runs")
        assert server(board).pid != second
        assert processes_matching(board.remote_log_text) == [server(board).pid], "one, its own"
        assert "of an earlier agent" in board.log("again.log")
    assert processes_matching(board.remote_log_text) == [], "it ends with the agent"
