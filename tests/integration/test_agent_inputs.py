"""The agent as a process while its camera fails and its inputs change: warnings of their own class, the device cleared.

The camera is a folder of pictures that the test replaces while the agent reads it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from faults.small_board import ALARM, MODEL, SmallBoard, metrics, wait_for

WIDTH, HEIGHT, PICTURES = 64, 48, 8


def scene(number: int, brightness: float = 1.0) -> NDArray[np.uint8]:
    """A fixed camera's view by day: walls, a road, something that moves, sensor noise."""
    rng = np.random.default_rng(number)
    picture = np.full((HEIGHT, WIDTH, 3), (120.0, 100.0, 90.0))
    picture[6:24, 10:26] = (60, 150, 210)
    picture[30:, 36:] = (40, 60, 50)
    picture[4:12, 40:60:4] = (230, 220, 240)
    left = 4 + 3 * number
    picture[34:42, left : left + 8] = (160, 170, 90)
    picture += rng.normal(0, 6, picture.shape)
    return np.clip(picture * brightness, 0, 255).astype(np.uint8)


class Pictures:
    """The folder that the camera reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.show(scene)

    def show(self, view: Any) -> None:
        for number in range(PICTURES):
            beside = self.folder / f"{number}.png.part"
            beside.write_bytes(cv2.imencode(".png", view(number))[1].tobytes())
            beside.rename(self.folder / f"{number}.png")


@pytest.fixture
def pictures(tmp_path: Path) -> Pictures:
    return Pictures(tmp_path / "pictures")


@pytest.fixture
def board(tmp_path: Path, pictures: Pictures) -> Iterator[SmallBoard]:
    yield SmallBoard(tmp_path / "board", virtual=True)


def settings(pictures: Pictures) -> dict[str, dict[str, Any]]:
    """Fast enough to watch; conditions that hold for 1.5 s are faults."""
    holds = dict.fromkeys(("frozen", "black", "blown", "blurred", "covered"), 1.5)
    return {
        "camera": {
            "kind": "folder",
            "source": str(pictures.folder),
            "width": WIDTH,
            "height": HEIGHT,
            "frames_per_second": 20.0,
            "read_timeout": 8.0,
        },
        "shadow": {"gap_mean": 0.1, "gap_floor": 0.01, "cpu_share": 0.9, "cpu_window": 10.0},
        "stand_back": {"load": 0.0, "temperature": 0.0, "latency_rise": 0.0},
        "acceptance": {"samples": 80},
        "contexts": {"samples": 60, "hold": 1.0},
        "camera_health": holds,
        "input_drift": {"window": 20, "interval": 4.0},
        "detector": {"alpha": 0.001, "block": 4},
        "golden": {"interval": 5.0},
        "capture": {"enabled": False},
    }


def alarm(cause: str) -> str:
    return f'tidegauge_drift_alarm{{cause="{cause}",model="{MODEL}"}}'


HELD_OUT = f'tidegauge_shadow_held_out_total{{model="{MODEL}",reason="camera"}}'


@pytest.mark.timeout(240)
def test_camera_faults_and_a_change_of_the_inputs_never_accuse_the_accelerator(
    board: SmallBoard, pictures: Pictures
) -> None:
    with board.agent(board.configure(**settings(pictures))) as agent:
        url = board.url(agent)
        wait_for(lambda: board.status().reference, 90, "accepted reference")
        status = board.status()
        assert status.contexts["day"].reference is not None
        assert status.judged_inputs == ("day",)
        assert {each.severity for each in status.rates} == {"critical", "warning"}
        shown = board.tidegauge("status").stdout
        assert "daylight" in shown
        assert "false alarms" in shown

        # Black: a warning of class camera after its hold time; its samples feed nothing.
        pictures.show(lambda _: np.full((HEIGHT, WIDTH, 3), 4, np.uint8))
        wait_for(lambda: "black" in board.status().camera.faults, 30, "black camera")
        wait_for(lambda: metrics(url)[alarm("camera")] == 1, 10, "camera alarm on the page")
        [latched] = board.status().alarms
        assert (latched.detector, latched.verdict, latched.severity) == ("camera_black", "camera", "warning")
        assert board.status().phase == "watching", "a warning is no reason to call the board alarmed"
        wait_for(lambda: metrics(url)[HELD_OUT] > 3, 30, "samples that are held out")
        evidence = board.status().evidence
        wait_for(lambda: metrics(url)[HELD_OUT] > 8, 30, "more of them")
        assert board.status().evidence == evidence, "no paired detector was fed"

        # It ends by itself when the camera shows something again.
        pictures.show(scene)
        wait_for(lambda: not board.status().alarms, 30, "end of the warning")

        # Frozen, by delivery: the camera worker is stopped in its tracks; the same pictures again would be none.
        worker = next(each.pid for each in board.status().workers if each.name == "camera")
        assert worker is not None
        os.kill(worker, signal.SIGSTOP)
        wait_for(lambda: "frozen" in board.status().camera.faults, 20, "frozen camera")
        os.kill(worker, signal.SIGCONT)
        wait_for(lambda: not board.status().alarms, 30, "end of the warning")

        # Other inputs, device and reference as good as before: the verdict is data, and only a warning.
        pictures.show(lambda number: scene(number, 0.8))
        wait_for(lambda: any(each.detector == "input_drift" for each in board.status().alarms), 60, "input drift")
        [latched] = board.status().alarms
        assert (latched.verdict, latched.severity) == ("data", "warning")
        assert metrics(url)[ALARM] == 0
        page = metrics(url)
        assert page[f'tidegauge_drift_alarms_total{{cause="accelerator",model="{MODEL}"}}'] == 0
        pictures.show(scene)
        wait_for(lambda: not board.status().alarms, 60, "end of the input drift")
    assert "Traceback" not in board.log()
