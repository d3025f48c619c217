"""An agent whose disk has become read-only starts, watches, and says so."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from faults.small_board import SmallBoard, frames_go_on, metrics, wait_for
from tidegauge.ram_folder import RamFolder


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_agent_starts_on_a_read_only_disk_and_goes_on_watching(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    board = SmallBoard(tmp_path, virtual=False)
    config = board.configure(shadow={"gap_mean": 0.1, "gap_floor": 0.02}, acceptance={"samples": 20, "max_loss": 0.9})
    board.state.mkdir()
    mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", str(board.state))
    try:
        with board.agent(config) as agent:
            board.url(agent)
            wait_for(lambda: board.status().reference, 120, "accepted reference")
        mount("-o", "remount,ro", str(board.state))
        with board.agent(config, "read_only.log") as agent:
            url = wait_for(lambda: said(board.log("read_only.log")), 120, "metrics")
            frames_go_on(url)
            wait_for(lambda: metrics(url)["tidegauge_state_unwritable"] == 1, 60, "the problem in the metrics")
            report = board.status()
            assert report.reference, "what was accepted before is still watched against"
            assert agent.poll() is None
            shown = board.tidegauge("status", "--json")
            assert shown.returncode == 0, shown.stderr
            assert json.loads(shown.stdout)["reference"]
        assert agent.returncode == 0, board.log("read_only.log")
        assert "is read-only: nothing new outlives this run" in board.log("read_only.log")
        assert "Traceback" not in board.log("read_only.log")
    finally:
        subprocess.run(["umount", str(board.state)], check=True)
        RamFolder(board.state, sub="run").clear()


def said(log: str) -> str:
    """Where the agent says that its metrics are."""
    return next((line.split()[-1] for line in log.splitlines() if "metrics on http" in line), "")
