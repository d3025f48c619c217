"""A worker that SIGKILL doesn't end: no new generation beside it, the accelerator given up, the agent lives on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.small_board import DOWN, INFERENCES, SmallBoard, frames_go_on, healthz, metrics, wait_for
from tidegauge.virtualboard import freezer
from tidegauge.virtualboard.core import CoreState
from tidegauge.virtualboard.failures import Failure
from tidegauge.virtualboard.state import fail, reboot

pytestmark = pytest.mark.skipif(freezer.why_not() != "", reason=freezer.why_not())


@pytest.fixture
def board(tmp_path: Path) -> Iterator[SmallBoard]:
    made = SmallBoard(tmp_path, virtual=True)
    yield made
    freezer.release(tmp_path / "vb")  # else it would outlive the tests


def pipelines(agent: int) -> set[int]:
    """The agent's pipeline workers, dead ones that nobody has waited for left out."""
    found = set()
    for child in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
        if b"tidegauge.pipeline.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
            found.add(int(child))
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_new_generation_beside_a_process_that_does_not_end(board: SmallBoard) -> None:
    virtual = board.folder / "vb"
    config = board.configure(runtime={"start_timeout": 60.0, "run_timeout": 2.0, "kill_timeout": 0.5})
    with board.agent(config) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[INFERENCES] > 3, 180, "device runs")
        [stuck] = pipelines(agent.pid)
        created = CoreState.load(virtual).created
        fail(virtual, (Failure("unkillable"),))
        wait_for(lambda: metrics(url)[DOWN] == 1, 60, "an accelerator given up")
        assert freezer.frozen(virtual) == [stuck]
        os.kill(stuck, 0)  # it is still there
        assert pipelines(agent.pid) == {stuck}
        assert CoreState.load(virtual).created == created, "no session was opened beside it"
        assert f"pid {stuck}, does not end on SIGKILL: it hangs in a driver (state D)" in board.log()
        assert "accelerator_down" in {alarm.detector for alarm in board.status().alarms}
        assert healthz(url)[0] == 200, "a restart by systemd would not help"
        assert board.tidegauge("agent", "capture").returncode == 4
        assert pipelines(agent.pid) == {stuck}

        reboot(virtual)  # on a board the agent would end with it; here only the process does
        wait_for(lambda: stuck not in pipelines(agent.pid), 20, "end of the process")
        board.tidegauge("alarm", "clear")
        frames_go_on(url)
        assert len(pipelines(agent.pid)) == 1
    assert "Traceback" not in board.log()
