"""The agent as a process, its workers and its accelerator failing: recovered or given up, counted, alarmed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from faults.small_board import (
    ALARM,
    DOWN,
    INFERENCES,
    SUSPECT,
    SmallBoard,
    frames_go_on,
    healthz,
    metrics,
    restarts,
    wait_for,
)
from tidegauge.agent.status import WorkerStatus


@pytest.fixture
def board(tmp_path: Path) -> SmallBoard:
    return SmallBoard(tmp_path, virtual=False)


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def children(pid: int) -> set[int]:
    return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def workers(board: SmallBoard) -> dict[str, WorkerStatus]:
    return {each.name: each for each in board.status().workers}


def alarms(board: SmallBoard) -> set[str]:
    return {alarm.detector for alarm in board.status().alarms}


def kill_each(board: SmallBoard, times: int) -> None:
    """SIGKILL each worker in turn, `times` each: frames go on, nothing leaks, one generation for one kill."""
    with board.agent(board.configure()) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[INFERENCES] > 3, 60, "device runs")
        wait_for(lambda: all(each.pid for each in workers(board).values()), 30, "all workers")
        files = open_files(agent.pid)
        for number in range(1, times + 1):
            for name in ("pipeline", "camera", "shadow"):
                pid = workers(board)[name].pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)

                def renewed(name: str = name, pid: int = pid) -> bool:
                    worker = workers(board)[name]
                    return worker.pid not in (None, pid) and worker.state == "running"

                wait_for(renewed, 30, f"new {name} worker")
                frames_go_on(url)
                assert workers(board)[name].generation == number + 1
        found = metrics(url)
        assert found[restarts("exited")] == times
        for name in ("camera", "shadow"):
            assert found[f'tidegauge_worker_restarts_total{{reason="exited",worker="{name}"}}'] == times
        assert children(agent.pid) == {each.pid for each in workers(board).values()}
        assert abs(open_files(agent.pid) - files) <= 3  # a scrape or a command may be under way at either moment
        assert healthz(url)[0] == 200
        assert alarms(board) == {"accelerator_crashed"}
    assert "Traceback" not in board.log()


def test_killed_workers_are_replaced_and_nothing_leaks(board: SmallBoard) -> None:
    kill_each(board, 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_kills_of_each_worker(board: SmallBoard) -> None:
    kill_each(board, 10)


def test_a_hang_is_survived_once_and_given_up_when_it_comes_again(board: SmallBoard) -> None:
    config = board.configure(runtime={"first_run_timeout": 4.0, "run_timeout": 1.0, "kill_timeout": 0.5})
    with board.agent(config) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[INFERENCES] > 3, 60, "device runs")
        board.tell("once_hang_run")
        wait_for(lambda: metrics(url)[restarts("hung")] == 1, 20, "replaced worker")
        wait_for(lambda: metrics(url)[SUSPECT] == 0, 20, "proof by a device run")
        frames_go_on(url)
        [alarm] = board.status().alarms
        assert alarm.detector == "accelerator_hung"
        assert "last layer it began was 3" in alarm.message
        assert metrics(url)[ALARM] == 1
        assert metrics(url)['tidegauge_captures_total{result="refused"}'] == 0, "no capture is asked for"

        board.tell("hang_run")  # the new generation hangs as well: whatever is sent to it would
        wait_for(lambda: metrics(url)[DOWN] == 1, 40, "an accelerator given up")
        wait_for(lambda: metrics(url)[restarts("hung")] == 2, 10, "count of hung")
        assert metrics(url)[restarts("first_run_hung")] == 1
        assert workers(board)["pipeline"].pid is None
        assert alarms(board) == {"accelerator_hung", "accelerator_down"}
        assert healthz(url) == (200, "stopped_alarmed: the accelerator is given up until the alarm is cleared")
        refused = board.tidegauge("rebaseline")
        assert refused.returncode == 4
        assert "given up" in refused.stderr

        board.heal()
        cleared = board.tidegauge("alarm", "clear")
        assert "accelerator_hung, accelerator_down" in cleared.stdout
        frames_go_on(url)
        assert (metrics(url)[DOWN], metrics(url)[ALARM]) == (0, 0)


def test_who_clears_while_the_last_try_still_hangs_need_not_clear_again(board: SmallBoard) -> None:
    config = board.configure(runtime={"first_run_timeout": 8.0, "run_timeout": 1.0, "kill_timeout": 0.5})
    with board.agent(config) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[INFERENCES] > 3, 60, "device runs")
        board.tell("hang_run")
        wait_for(lambda: metrics(url)[restarts("hung")] == 1, 20, "replaced worker")
        said = board.state / "logs" / "pipeline.log"
        wait_for(lambda: said.read_text().count("Processing Layer") == 2, 30, "hang of the worker that is tried last")
        board.heal()
        assert board.tidegauge("alarm", "clear").returncode == 0
        frames_go_on(url)
        assert metrics(url)[restarts("first_run_hung")] == 1, "the last try hung, as it would have without the cure"
        assert metrics(url)[DOWN] == 0
        assert workers(board)["pipeline"].generation == 3
        assert alarms(board) == {"accelerator_hung"}


@pytest.mark.parametrize(
    ("fault", "reason"), [("fail_create", "create_failed"), ("abort_create", "exited"), ("cpu_only", "not_offloaded")]
)
def test_a_session_that_cannot_be_created_is_tried_few_times(board: SmallBoard, fault: str, reason: str) -> None:
    board.tell(fault)
    with board.agent(board.configure(supervision={"failed_creates": 2})) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[DOWN] == 1, 60, "an accelerator given up")
        assert metrics(url)[restarts(reason)] == 2
        creates = [line.split() for line in (board.faults / "creates").read_text().splitlines()]
        assert len(creates) == 2
        assert {thread for _, _, thread, _ in creates} == {"main"}, "sessions are opened from one thread"
        first, second = (float(moment) for *_, moment in creates)
        assert second - first >= 0.1, "not before the pause (`supervision.create_first`)"
        assert len({pid for _, pid, _, _ in creates}) == 2, "each in a process of its own"
        assert "accelerator_down" in alarms(board)
        assert ("not_offloaded" in alarms(board)) == (fault == "cpu_only")
        assert healthz(url)[0] == 200


def test_the_agent_ends_with_its_code_only_where_it_is_configured_to(board: SmallBoard) -> None:
    board.tell("fail_create")
    with board.agent(board.configure(supervision={"failed_creates": 1, "exit_when_down": True})) as agent:
        assert agent.wait(60) == 70
    assert "Traceback" not in board.log()


@pytest.mark.slow
def test_the_bound_a_day_holds_across_restarts_of_the_agent(board: SmallBoard) -> None:
    config = board.configure(supervision={"restarts_per_day": 2})
    for number in (1, 2):
        board.heal()
        with board.agent(config) as agent:
            url = board.url(agent)
            wait_for(lambda url=url: metrics(url)[INFERENCES] > 3, 60, "device runs")
            board.tell("once_exit_run")
            wait_for(lambda url=url: metrics(url)[restarts("exited")] == 1, 20, "a crash")
            if number == 2:
                wait_for(lambda url=url: metrics(url)[DOWN] == 1, 20, "an accelerator given up")
                assert "2 workers had to be replaced in 24 hours" in board.log()
