"""A running agent whose agent.toml, model or artifacts change: what it takes, what it refuses, and that it says so."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

import pytest

from faults.small_board import INFERENCES, SmallBoard, frames_go_on, metrics, wait_for

SUCCESSFUL = "tidegauge_config_last_reload_successful"
TIME = "tidegauge_config_last_reload_success_timestamp_seconds"
WAITING = "tidegauge_config_restart_keys"
REFUSED = "tidegauge_artifacts_refused"


def artifacts(url: str) -> set[str]:
    """Labels of the artifacts that run."""
    return {name for name in metrics(url) if name.startswith("tidegauge_artifact_info")}


@pytest.mark.timeout(300)
def test_a_changed_configuration_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    board = SmallBoard(tmp_path / "board", virtual=True)
    config = board.configure()
    with board.agent(config) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[INFERENCES] > 0, 60, "device runs")
        assert (metrics(url)[SUCCESSFUL], metrics(url)[WAITING]) == (1, 0)
        began = metrics(url)[TIME]

        # Another camera and another budget are taken; the port and the number of golden tensors wait.
        board.configure(camera={"seed": 2}, metrics={"port": 1}, golden={"count": 5, "interval": 20.0})
        found = wait_for(
            lambda: (now := board.status().configuration) is not None and now.waiting and now, 60, "what waits"
        )
        assert found.waiting == ("golden.count", "metrics.port")
        assert (found.problem, found.files) == ("", "")
        wait_for(lambda: metrics(url)[WAITING] == 2, 30, "the same in the metrics")
        assert metrics(url)[TIME] > began
        camera = wait_for(
            lambda: [each for each in board.status().workers if each.name == "camera" and each.generation == 2],
            60,
            "another camera worker",
        )
        assert camera[0].state == "running"
        # (The broker's port is another one each time that the file is written.)
        taken = "taken at once: camera.seed, link.port, golden.interval; waits for a restart of the agent: golden.count"
        wait_for(lambda: taken in board.log(), 30, "the same in the log")
        frames_go_on(url)

        # A wrong one: nothing of it is taken, and it is said why.
        text = config.read_text()
        config.write_text(text.replace("gap_mean", "gap_maen").replace("seed = 2", "seed = 3"))
        found = wait_for(
            lambda: (now := board.status().configuration) is not None and now.problem and now, 60, "refusal"
        )
        assert "unknown key `shadow.gap_maen`: did you mean `gap_mean`?" in found.problem
        wait_for(lambda: metrics(url)[SUCCESSFUL] == 0, 30, "the same in the metrics")
        assert all(each.generation == 2 for each in board.status().workers if each.name == "camera")
        shown = " ".join(board.tidegauge("status").stdout.split())
        assert "changed since, and not taken" in shown
        assert "waits for a restart of the agent: golden.count, metrics.port" in shown

        # Mended, and said by SIGHUP, which ends no agent.
        board.configure(camera={"seed": 2}, golden={"interval": 20.0})
        agent.send_signal(signal.SIGHUP)
        wait_for(lambda: "configuration read: taken at once: link.port" in board.log(), 60, "another broker")
        agent.send_signal(signal.SIGHUP)
        wait_for(lambda: metrics(url)[SUCCESSFUL] == 1 and metrics(url)[WAITING] == 0, 60, "a right one")
        nothing = "configuration read: nothing to be taken at once"
        wait_for(lambda: nothing in board.log(), 60, "answer to the signal")
        assert agent.poll() is None
        frames_go_on(url)


@pytest.mark.timeout(300)
def test_replaced_artifacts_are_refused_or_taken_up_with_a_new_acceptance(tmp_path: Path) -> None:
    board = SmallBoard(tmp_path / "board", virtual=True)
    folder, kept = board.folder / "artifacts", tmp_path / "kept"
    shutil.copytree(folder, kept)
    with board.agent(board.configure()) as agent:
        url = board.url(agent)
        wait_for(lambda: board.status().acceptance.progress > 0.02, 90, "samples")
        [first] = artifacts(url)

        # A copy that has only begun: refused with its name, nothing is captured meanwhile, and what runs goes on.
        net = next(folder.glob("*_tidl_net.bin"))
        net.write_bytes(b"")
        wait_for(lambda: "are refused" in said(board), 60, "refusal")
        assert net.name in said(board)
        wait_for(lambda: metrics(url)[REFUSED] == 1, 30, "the same in the metrics")
        refused = board.tidegauge("agent", "capture")
        assert refused.returncode == 4
        assert "the traces would be of another network" in refused.stderr
        frames_go_on(url)

        # As they were: nothing has happened.
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        wait_for(lambda: said(board) == "" and metrics(url)[REFUSED] == 0, 60, "quiet")
        assert artifacts(url) == {first}
        assert [each.generation for each in board.status().workers if each.name == "pipeline"] == [1]

        # Others that pass: a new pipeline, a new shadow worker, a new acceptance, no alarm.
        (folder / "note.txt").write_text("of another compile")
        wait_for(lambda: artifacts(url) != {first}, 60, "other artifacts in the metrics")
        assert len(artifacts(url)) == 1
        wait_for(
            lambda: (
                {each.name: each.generation for each in board.status().workers if each.pid}
                == {"camera": 1, "pipeline": 2, "shadow": 2}
            ),
            60,
            "new workers",
        )
        assert "the artifacts changed: the accepted reference is void" in board.log()
        wait_for(lambda: board.status().acceptance.progress > 0, 90, "samples for the new acceptance")
        frames_go_on(url)
        assert board.status().alarms == ()
        assert re.search(r"acceptance goes on after", board.log()) is None


def said(board: SmallBoard) -> str:
    found = board.status().configuration
    assert found is not None
    return found.files
