"""A fault that shows on certain content only: stored inputs come out right, and the paired detectors find it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from faults.small_board import MODEL, SmallBoard, metrics, wait_for
from integration.test_agent_inputs import HEIGHT, PICTURES, WIDTH, Pictures, settings
from tidegauge.configuration import load_toml
from tidegauge.pipeline.preprocess import input_tensor
from tidegauge.profile import Profile
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.network import load_artifacts
from tidegauge.virtualboard.state import inject

#: Activations beyond 55 % of their range come out as the top code: only strong contrast reaches so far.
FAULT = Fault("features", "saturate", 0.55)
DARK, MEDIUM, BRIGHT = (25.0, 90.0, 70.0), (90.0, 100.0, 90.0), (90.0, 130.0, 90.0)


def picture(colour: tuple[float, ...], contrast: float, number: int) -> NDArray[np.uint8]:
    noise = np.random.default_rng(number).normal(0, 2, (HEIGHT, WIDTH, 3))
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    squares = 2 * (((rows + 2 * number) // 8 + columns // 8) % 2) - 1
    return np.clip(np.array(colour) + contrast * squares[..., None] + noise, 0, 255).astype(np.uint8)


def plain(number: int) -> NDArray[np.uint8]:
    return picture(BRIGHT if number % 2 else DARK, 0, number)


def mixed(number: int) -> NDArray[np.uint8]:
    """Two plain pictures, the darkest and the brightest of all; six of strong contrast between them."""
    return plain(number) if number < 2 else picture(MEDIUM, 70, number)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_fault_that_no_stored_input_shows_is_found_by_the_paired_detectors(tmp_path: Path) -> None:
    board, pictures = SmallBoard(tmp_path / "board", virtual=True), Pictures(tmp_path / "pictures")
    # Input drift and the camera's health have tests of their own. Here a window of some seconds would only be chance,
    # as would a plain picture that stands for two on a busy machine.
    changes = settings(pictures) | {"input_drift": {"window": 200, "interval": 86400.0}}
    changes["camera_health"] = dict.fromkeys(changes["camera_health"], 3600.0)
    config = board.configure(**changes)
    preprocess = load_toml(board.folder / "tiny.toml", Profile).preprocess
    network = load_artifacts(board.folder / "artifacts")
    healthy, wrong = Twin(network), Twin(network, (FAULT,))
    same = {}
    for number in range(PICTURES):
        tensor = {"input": input_tensor(mixed(number), preprocess)}
        answers = [twin.run(tensor, ["enhanced"])["enhanced"] for twin in (healthy, wrong)]
        same[number] = np.array_equal(*answers)
    assert {number for number, equal in same.items() if equal} == {0, 1}, "the fault shows on contrast, and only there"

    pictures.show(plain)
    right = f'tidegauge_known_answer_checks_total{{model="{MODEL}",result="ok",side="device"}}'
    mismatch = right.replace("ok", "mismatch")
    with board.agent(config) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url).get(right, 0) > 0, 90, "the first golden tensor, of a plain picture")
        pictures.show(mixed)
        wait_for(lambda: board.status().reference, 120, "accepted reference")
        inject(board.virtual_folder, (FAULT,), board.folder / "artifacts")
        alarms = wait_for(lambda: board.status().alarms, 120, "alarm")
        assert {each.detector for each in alarms} <= {"loss", "nmse", "loss_by_kind"}
        assert {(each.verdict, each.severity) for each in alarms} == {("accelerator", "critical")}
        assert alarms[0].replay == "undecided", "the device repeats its wrong answer, and there is no emulator"
        assert alarms[0].terms["device_change"] > 0.05
        checked = metrics(url)[right]
        wait_for(lambda: metrics(url)[right] > checked, 60, "a golden round after the alarm")
        assert metrics(url)[mismatch] == 0, "no stored input shows the fault"
    assert "Traceback" not in board.log()
