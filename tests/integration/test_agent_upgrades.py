"""Acceptance over a restart, and over changes of what runs: it goes on, starts again, and names what a change cost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from faults.small_board import SmallBoard, metrics, wait_for
from integration.test_agent_inputs import Pictures, settings
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.state import inject

SAMPLES = 160


@pytest.fixture
def pictures(tmp_path: Path) -> Pictures:
    return Pictures(tmp_path / "pictures")


@pytest.fixture
def board(tmp_path: Path) -> SmallBoard:
    return SmallBoard(tmp_path / "board", virtual=True)


def configuration(pictures: Pictures) -> dict[str, dict[str, Any]]:
    quick = {"gap_mean": 0.05, "gap_floor": 0.01, "cpu_share": 0.9, "cpu_window": 10.0}
    # Input drift has a test of its own; here a window of some seconds would only be chance.
    drift = {"window": 200, "interval": 86400.0}
    acceptance = {"samples": SAMPLES, "max_loss": 0.3}
    return settings(pictures) | {"shadow": quick, "acceptance": acceptance, "input_drift": drift}


def upgrade(board: SmallBoard, name: str) -> None:
    """Other artifacts: one file more, which nothing reads."""
    (board.folder / "artifacts" / name).write_text("of another compile")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_acceptance_survives_a_restart_and_a_change_is_compared(board: SmallBoard, pictures: Pictures) -> None:
    config = board.configure(**configuration(pictures))
    with board.agent(config) as agent:
        board.url(agent)
        wait_for(lambda: board.status().acceptance.progress > 0.3, 90, "a third of the acceptance")
    collected = (board.state / "acceptance.jsonl").read_bytes().count(b"\n") - 1
    assert collected > 0.3 * SAMPLES
    with board.agent(config, "again.log") as agent:
        url = board.url(agent)
        wait_for(lambda: "acceptance goes on after" in board.log("again.log"), 60, "the samples of before")
        found = re.search(r"acceptance goes on after (\d+) samples", board.log("again.log"))
        assert found is not None
        assert int(found[1]) == collected
        wait_for(lambda: board.status().reference, 90, "accepted reference")
        ok = metrics(url)['tidegauge_shadow_samples_total{model="tiny",result="ok"}']
        assert ok < SAMPLES, "the samples of before counted"
        assert board.tidegauge("baseline", "export", str(board.folder / "old.json")).returncode == 0
    assert not (board.state / "acceptance.jsonl").exists()

    # An upgrade that costs nothing: a new acceptance, and no alarm.
    upgrade(board, "first.txt")
    with board.agent(config, "same.log") as agent:
        board.url(agent)
        wait_for(lambda: "the artifacts changed: the accepted reference is void" in board.log("same.log"), 60, "change")
        wait_for(lambda: board.status().reference, 90, "accepted reference")
        assert board.status().alarms == ()

    # One that costs accuracy, below what would fail acceptance: named, with what it cost.
    upgrade(board, "second.txt")
    inject(board.folder / "vb", (Fault("logits", "coarse", 4.0),), board.folder / "artifacts")
    with board.agent(config, "worse.log") as agent:
        board.url(agent)
        [alarm] = wait_for(lambda: board.status().alarms, 120, "alarm")
        assert (alarm.detector, alarm.verdict, alarm.severity) == ("change", "accelerator", "critical")
        said = re.search(r"the upgrade \(the artifacts\) cost accuracy, (0\.\d+) ± (0\.\d+)", alarm.message)
        assert said is not None, alarm.message
        assert 0.08 < float(said[1]) < 0.13
        assert 0 < float(said[2]) < float(said[1])
        assert board.status().reference is not None, "it is accepted all the same, and watched"
    compared = board.tidegauge_plain("baseline", "compare", str(board.folder / "old.json"), str(board.state))
    assert compared.returncode == 1
    assert "worse" in compared.stdout
    assert "artifacts differ, model the same" in compared.stdout
