"""A person's commands to a running agent: clear keeps the reference, rebaseline is refused while something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from faults.small_board import ALARM, SmallBoard, frames_go_on, healthz, metrics, wait_for
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.state import inject


@pytest.fixture
def board(tmp_path: Path) -> SmallBoard:
    return SmallBoard(tmp_path, virtual=True)


@pytest.mark.timeout(400)
def test_clear_and_rebaseline(board: SmallBoard) -> None:
    config = board.configure(
        shadow={"gap_mean": 0.1, "gap_floor": 0.02},
        acceptance={"samples": 20, "max_loss": 0.5},
        golden={"interval": 2.0},
        capture={"enabled": False},
        detector={"alpha": 0.001, "block": 4},
    )
    with board.agent(config) as agent:
        url = board.url(agent)
        wait_for(lambda: board.status().reference, 90, "accepted reference")
        before = board.status()
        assert before.acceptance.state == "accepted"
        assert before.reference is not None
        assert set(before.reference.hours) == {"0.2", "0.5"}
        assert board.tidegauge("baseline", "export", str(board.folder / "old.json")).returncode == 0
        shown = board.tidegauge("status")
        assert "limit" in shown.stdout or "m0" in shown.stdout
        assert healthz(url)[1].startswith("running: ")

        inject(board.folder / "vb", (Fault("features", "gain"),), board.folder / "artifacts")
        wait_for(lambda: metrics(url)[ALARM] == 1, 60, "alarm")
        refused = board.tidegauge("rebaseline")
        assert refused.returncode == 4
        assert "no new acceptance" in refused.stderr
        assert board.status().reference == before.reference

        inject(board.folder / "vb", ())
        wait_for(lambda: board.tidegauge("agent", "self-test").returncode == 0, 60, "right answers again")
        cleared = board.tidegauge("alarm", "clear")
        assert cleared.returncode == 0
        assert "the reference is kept" in cleared.stdout
        after = board.status()
        assert after.alarms == ()
        assert after.reference == before.reference
        assert all(evidence.value < 1 for evidence in after.evidence.values())
        wait_for(lambda: metrics(url)[ALARM] == 0, 10, "cleared alarm on the page")

        assert wait_for(lambda: not board.status().holding, 60, "nothing wrong")
        assert board.tidegauge("rebaseline").returncode == 0
        assert board.status().acceptance.state == "running"
        frames_go_on(url)
        files = (str(board.folder / "old.json"), str(board.folder / "old.json"))
        compared = board.tidegauge_plain("baseline", "compare", *files, "--json")
        assert compared.returncode == 0, compared.stderr
        assert json.loads(compared.stdout)["verdict"] == "no difference beyond chance"
        assert json.loads(compared.stdout)["same_artifacts"] is True
    audit = [json.loads(line) for line in (board.state / "audit.log").read_text().splitlines()]
    asked = [(entry["command"], entry["done"]) for entry in audit if entry["command"] != "SelfTest"]
    assert asked == [("Rebaseline", False), ("ClearAlarms", True), ("Rebaseline", True)]
    assert "Traceback" not in board.log()
    gone = board.tidegauge("status")
    assert gone.returncode == 2
    assert "no agent runs with the state folder" in gone.stderr
