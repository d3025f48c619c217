"""A camera's faults are named after their hold time, and a quiet night is none."""

from __future__ import annotations

import numpy as np
import pytest

from tidegauge.detectors.camera import CameraHealth, conditions, look, reference_of
from tidegauge.detectors.defaults import Condition

HEIGHT, WIDTH = 120, 160


def street(seed: int = 0, shift: int = 0) -> np.ndarray:
    """A fixed scene (walls, a road) with sensor noise and something that moves."""
    scene = np.full((HEIGHT, WIDTH), 110.0)
    scene[20:60, 30:70] = 190
    scene[70:, 90:] = 50
    scene[10:30, 100:150:4] = 230
    scene[80:100, 10 + shift : 30 + shift] = 160
    return np.clip(scene + np.random.default_rng(seed).normal(0, 4, scene.shape), 0, 255).astype(np.uint8)


def blurred(luma: np.ndarray, times: int = 12) -> np.ndarray:
    grey = luma.astype(np.float64)
    for _ in range(times):
        grey = (grey + np.roll(grey, 1, 0) + np.roll(grey, -1, 0) + np.roll(grey, 1, 1) + np.roll(grey, -1, 1)) / 5
    return grey.astype(np.uint8)


REFERENCE = reference_of(look(street(seed, seed)) for seed in range(9))
other_view = np.rot90(street(3), 2).copy()
hand = blurred(np.clip(np.random.default_rng(1).normal(40, 20, (HEIGHT, WIDTH)), 0, 255).astype(np.uint8), 30)


@pytest.mark.parametrize(
    ("name", "frame", "expected"),
    [
        ("as at acceptance", street(50, 60), set()),
        ("a lamp", np.where(np.arange(WIDTH) < 60, 255, street(5)).astype(np.uint8), set()),
        ("black", np.full((HEIGHT, WIDTH), 3, np.uint8), {"black"}),
        ("black with noise", np.random.default_rng(2).integers(0, 14, (HEIGHT, WIDTH), np.uint8), {"black"}),
        ("blown", np.where(np.arange(WIDTH) < 100, 255, street(5)).astype(np.uint8), {"blown"}),
        ("out of focus", blurred(street(6)), {"blurred"}),
        ("turned away", other_view, {"covered"}),
        ("a hand", hand, {"blurred", "covered"}),
    ],
)
def test_each_condition_of_a_frame(name: str, frame: np.ndarray, expected: set[str]) -> None:
    found = conditions(look(frame), REFERENCE)
    assert found == expected if name != "a hand" else found & expected


def test_without_a_reference_only_what_needs_none_is_judged() -> None:
    assert conditions(look(blurred(street())), None) == set()
    assert conditions(look(np.zeros((HEIGHT, WIDTH), np.uint8)), None) == {"black"}


def fed(health: CameraHealth, start: float, seconds: int, found: set[Condition]) -> list[tuple[float, str]]:
    """A frame a second; when which alarm was raised first."""
    first: dict[str, float] = {}
    for second in range(seconds):
        for alarm in health.frame(start + second, int(start) + second, found):
            first.setdefault(alarm.message.split()[3].rstrip(":"), start + second)
    return [(when, name) for name, when in first.items()]


def test_a_condition_must_hold() -> None:
    health = CameraHealth(0)
    assert fed(health, 0, 59, {"black"}) == []
    assert not health.healthy(58)  # already no frame to judge a device by
    assert fed(health, 59, 1, set()) == []
    assert health.healthy(59)
    assert fed(health, 100, 70, {"black"}) == [(160, "black")]
    assert fed(health, 200, 700, {"blurred"}) == [(800, "blurred")]
    assert fed(CameraHealth(0, {"black": 5}), 0, 10, {"black"}) == [(5, "black")]


def test_frozen_is_judged_by_delivery_not_by_the_picture() -> None:
    health = CameraHealth(100)
    for second in range(30):  # the same quiet picture, newly delivered each time
        assert health.frame(100 + second, second, set()) == []
    assert health.healthy(129)
    assert health.frame(135, 29, set()) == []
    assert [alarm.evidence["seconds"] for alarm in health.frame(139, 29, set())] == [10]
    assert not health.healthy(139)
    assert health.frame(140, 30, set()) == []


def test_no_frame_at_all_is_frozen_too() -> None:
    health = CameraHealth(50)
    assert health.alarms(59.9) == []
    assert [alarm.detector for alarm in health.alarms(60)] == ["camera_frozen"]


def test_a_tiny_or_missing_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        look(np.zeros((10, 10), np.uint8))
    with pytest.raises(ValueError, match="no frames"):
        reference_of([])
