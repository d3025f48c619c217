"""A capture of 120 tensors that is killed at each of its steps: no file stays behind, and the next one is whole."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from faults.many_tensors import COMPLETE, OPTIONS, WRITTEN, Seen, expected_of, many_tensors, traces_of, watching
from faults.small_board import HERE, INFERENCES, SmallBoard, frames_go_on, metrics, wait_for
from tidegauge.agent.capture import STEPS
from tidegauge.virtualboard.state import BoardState, update


@pytest.fixture
def board(tmp_path: Path) -> SmallBoard:
    made = SmallBoard(tmp_path, virtual=True, network=many_tensors(), options=OPTIONS)
    update(made.folder / "vb", trace_op_seconds=0.004)  # slow enough to be killed in its midst
    return made


def bundles(board: SmallBoard) -> set[Path]:
    folder = board.state / "spool" / "bundles"
    return set(folder.iterdir()) if folder.is_dir() else set()


def nothing_is_left(board: SmallBoard) -> None:
    assert not list(board.traces.iterdir())
    assert not list((board.state / "work").glob("*"))
    assert BoardState.load(board.folder / "vb").trace_write_level == 0
    assert json.loads((board.state / "state.json").read_text())["capturing"] == ""


def a_whole_capture(board: SmallBoard) -> Seen:
    before = bundles(board)
    with watching(board.traces) as seen:
        done = board.tidegauge("agent", "capture")
        assert done.returncode == 0, done.stderr + board.log()
    [bundle] = bundles(board) - before
    assert traces_of(bundle) == expected_of(bundle, board.folder / "artifacts")
    assert seen.most <= COMPLETE + WRITTEN
    nothing_is_left(board)
    assert not list((board.state / "spool" / "incoming").iterdir())
    return seen


def killed_at(board: SmallBoard, step: str) -> None:
    """Kill the agent in this step of a capture; a new one must find and leave everything in order."""
    config = board.configure(capture={"per_cause_hour": 5})
    with board.remote_log():
        with board.running(str(HERE / "killed_agent.py"), str(config), step, log="killed.log") as agent:
            url = board.url(agent)
            wait_for(lambda: metrics(url)[INFERENCES] > 3, 180, "device runs")
            asked = board.tidegauge("agent", "capture")
            assert asked.returncode != 0, asked.stdout
            assert agent.wait(60) == -signal.SIGKILL, asked.stderr
        with board.agent(config) as agent:
            frames_go_on(board.url(agent))
            nothing_is_left(board)
            a_whole_capture(board)
    assert "Traceback" not in board.log()


def test_killed_while_the_traces_are_written(board: SmallBoard) -> None:
    killed_at(board, "tracing")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", [step for step in STEPS if step != "tracing"])
def test_killed_at_each_other_step(board: SmallBoard, step: str) -> None:
    killed_at(board, step)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_agent_and_trace_worker_killed_in_mid_dump(board: SmallBoard) -> None:
    """First the worker that runs the traced model, then the agent that moves the files, each after 40 of 120."""
    config = board.configure(capture={"per_cause_hour": 5})

    def in_mid_dump(seen: Seen) -> None:
        wait_for(lambda: len(seen.created) >= 40, 60, "40 traces")
        assert len(seen.created) < 100

    with board.remote_log():
        with board.agent(config) as agent:
            wait_for(lambda: metrics(board.url(agent))[INFERENCES] > 3, 180, "device runs")
            capture = ("-m", "tidegauge", "agent", "capture", "--state", str(board.state))
            with watching(board.traces) as seen, board.running(*capture, log="capture.log") as asked:
                in_mid_dump(seen)
                os.kill(trace_worker(agent.pid), signal.SIGKILL)
                assert asked.wait(60) == 4
            assert "capture failed" in board.log("capture.log")
            frames_go_on(board.url(agent))
            nothing_is_left(board)
            assert seen.most <= COMPLETE + WRITTEN
            with watching(board.traces) as seen, board.running(*capture, log="capture.log"):
                in_mid_dump(seen)
                agent.kill()
                agent.wait(10)
        assert not bundles(board)
        with board.agent(config) as agent:
            frames_go_on(board.url(agent))
            nothing_is_left(board)
            a_whole_capture(board)
    assert "Traceback" not in board.log()


def trace_worker(agent: int) -> int:
    """The pid of the agent's trace worker."""
    for child in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
        if b"tidegauge.pipeline.trace_worker" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise AssertionError("no trace worker")
