"""The virtual board's failures, as the agent meets them: named by reason, bounded, given up, and back after a cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.small_board import DOWN, INFERENCES, SmallBoard, frames_go_on, healthz, metrics, restarts, wait_for
from tidegauge.virtualboard.failures import Failure, FailureName
from tidegauge.virtualboard.state import fail, reboot

TRIES = 2


@pytest.fixture
def board(tmp_path: Path) -> SmallBoard:
    return SmallBoard(tmp_path, virtual=True)


def configured(board: SmallBoard) -> Path:
    return board.configure(
        supervision={"failed_creates": TRIES},
        runtime={"start_timeout": 25.0, "first_run_timeout": 25.0, "run_timeout": 2.0, "kill_timeout": 0.5},
    )


@pytest.mark.timeout(300)
def test_a_hung_c7x_answers_nobody_until_the_board_is_rebooted(board: SmallBoard) -> None:
    with board.agent(configured(board)) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[INFERENCES] > 3, 60, "device runs")
        fail(board.folder / "vb", (Failure("hang_in_run"),))
        wait_for(lambda: metrics(url)[DOWN] == 1, 90, "an accelerator given up")
        found = metrics(url)
        assert found[restarts("hung")] == 1
        assert found[restarts("create_hung")] + found[restarts("first_run_hung")] == 1, "one new generation, no more"
        assert healthz(url)[0] == 200
        reboot(board.folder / "vb")
        fail(board.folder / "vb", ())
        assert board.tidegauge("alarm", "clear").returncode == 0
        frames_go_on(url)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cpu_fallback", "not_offloaded"),
        ("no_delegation", "not_offloaded"),
        ("create_fails", "create_failed"),
        ("exit_in_create", "exited"),
        ("abort_missing_library", "exited"),
        ("invoke_fails", "failed"),
        ("size_mismatch", "create_failed"),
        ("version_mismatch", "create_failed"),
    ],
)
def test_a_board_that_never_runs(board: SmallBoard, name: FailureName, reason: str) -> None:
    fail(board.folder / "vb", (Failure(name),))
    with board.agent(configured(board)) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[DOWN] == 1, 90, "an accelerator given up")
        found = metrics(url)
        assert found[restarts(reason)] == TRIES, board.log()
        assert found[INFERENCES] == 0, "no answer was published"
        assert healthz(url)[0] == 200
        fail(board.folder / "vb", ())
        assert board.tidegauge("alarm", "clear").returncode == 0
        frames_go_on(url)
