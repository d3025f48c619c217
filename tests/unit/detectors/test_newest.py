"""The newest inputs: a change is seen within the hour, whatever was seen before it; chance hardly ever is."""

from __future__ import annotations

import numpy as np
import pytest

from tidegauge.detectors.newest import NewestInputs

RNG = np.random.default_rng(1)
REFERENCE = {"luma": RNG.normal(100, 10, 400).tolist(), "contrast": RNG.normal(30, 3, 400).tolist()}


def fed(samples: int, shift: float, seed: int, before: int = 0) -> NewestInputs:
    rng = np.random.default_rng(seed)
    newest = NewestInputs(REFERENCE)
    for number in range(before + samples):
        moved = shift if number >= before else 0.0
        newest.update({"luma": rng.normal(100 + moved, 10), "contrast": rng.normal(30, 3), "other": 1.0})
    return newest


@pytest.mark.parametrize("before", [0, 100, 300])
def test_a_change_of_two_deviations_is_seen_in_twenty_samples(before: int) -> None:
    assert fed(20, 20.0, 2, before).differ()


def test_a_small_change_is_seen_in_more() -> None:
    assert not fed(16, 7.0, 4).differ()
    assert fed(200, 7.0, 4).differ()


def test_inputs_as_before_hardly_ever_look_changed() -> None:
    assert sum(fed(200, 0.0, seed).differ() for seed in range(60)) <= 2


def test_few_say_nothing_and_forgotten_ones_too() -> None:
    assert not fed(15, 60.0, 5).differ()
    newest = fed(40, 60.0, 5)
    newest.clear()
    assert not newest.differ()
    with pytest.raises(KeyError):
        newest.update({"luma": 1.0})
    with pytest.raises(ValueError, match="at least one"):
        NewestInputs({})
