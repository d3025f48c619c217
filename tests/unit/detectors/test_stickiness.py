"""Blocks that are too short are noticed after acceptance, and grow; those that are long enough stay, faults or not."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.detectors.betting import BettingDetector
from tidegauge.detectors.blocks import BlockMean
from tidegauge.detectors.defaults import GROWTH
from tidegauge.detectors.stickiness import Stickiness, StickinessState


def sticky(seed: int, samples: int, persistence: float = 0.9, share: float = 0.05) -> np.ndarray:
    rng = np.random.default_rng(seed)
    fresh = np.where(rng.random(samples) < persistence, 0, np.arange(samples))
    return (rng.random(samples) < share).astype(float)[np.maximum.accumulate(fresh)]


def lengths(losses: np.ndarray, block: int) -> list[int]:
    """Each length the block had, in turn."""
    blocks, watch, found = BlockMean(block), Stickiness(), [block]
    for loss in losses.tolist():
        mean = blocks.add(loss)
        if mean is not None and watch.update(mean, calm=True):
            blocks.grow(GROWTH)
            found.append(blocks.length)
    return found


def test_a_block_that_is_too_short_grows_until_it_is_long_enough() -> None:
    for seed in range(5):
        grown = lengths(sticky(seed, 60_000), 2)
        assert grown[:4] == [2, 4, 8, 16]
        assert 16 <= grown[-1] <= 256


def test_a_block_that_is_long_enough_stays() -> None:
    assert sum(len(lengths(sticky(seed, 60_000), 180)) > 1 for seed in range(20)) <= 1
    rng = np.random.default_rng(3)
    assert sum(len(lengths(rng.beta(0.5, 10, 5000), 1)) > 1 for _ in range(20)) <= 1


def test_a_fault_is_found_before_longer_blocks_hide_it() -> None:
    rng = np.random.default_rng(4)
    detector, watch = BettingDetector("loss", 0.05, 1.9e-6), Stickiness()
    for mean in rng.beta(0.5, 20, 60).tolist():
        assert detector.update(mean) is None
        watch.update(mean, calm=True)
    grew = []
    for _ in range(40):
        mean = float(rng.uniform(0.3, 0.7))
        alarm = detector.update(mean)
        grew.append(watch.update(mean, calm=detector.log_evidence < detector.log_limit / 2))
        if alarm is not None:
            break
    assert alarm is not None
    assert not any(grew)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=3, max_size=31), st.integers(0, 31))
def test_the_running_sums_give_the_correlation_also_across_a_restart(values: list[float], cut: int) -> None:
    first = Stickiness()
    for value in values[:cut]:
        first.update(value, calm=True)
    second = Stickiness(msgspec.json.decode(msgspec.json.encode(first.state()), type=StickinessState))
    for value in values[cut:]:
        second.update(value, calm=True)
    centred = np.array(values) - np.mean(values)
    spread = float(centred @ centred)
    if spread > 1e-6:
        assert second.correlation == pytest.approx(float(centred[1:] @ centred[:-1]) / spread, abs=1e-6)


def test_what_does_not_vary_is_not_sticky() -> None:
    watch = Stickiness()
    assert not any(watch.update(0.2, calm=True) for _ in range(200))
    assert watch.correlation == 0
    with pytest.raises(ValueError, match="mean"):
        watch.update(float("nan"), calm=True)


def test_a_growing_block_keeps_what_it_holds() -> None:
    block = BlockMean(2)
    assert block.add(1.0) is None
    block.grow(2)
    assert [block.add(value) for value in (0.0, 0.0, 1.0)] == [None, None, 0.5]
    with pytest.raises(ValueError, match="grows"):
        block.grow(0)
