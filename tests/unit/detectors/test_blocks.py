"""Blocks and the correlation time that their length comes from."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.detectors.blocks import (
    BlockMean,
    BlockMismatch,
    BlockState,
    block_length,
    correlation_time,
    longest_correlation_time,
)


def autoregression(coefficient: float, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values, value = np.empty(count), rng.normal() / np.sqrt(1 - coefficient**2)
    for index in range(count):
        value = coefficient * value + rng.normal()
        values[index] = value
    return values


@pytest.mark.parametrize("coefficient", [0.5, 0.8, 0.9])
def test_correlation_time_of_an_autoregression(coefficient: float) -> None:
    expected = 2 * coefficient / (1 - coefficient)
    found = [correlation_time(autoregression(coefficient, 5000, seed)) for seed in range(15)]
    assert np.median(found) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("coefficient", [0.5, 0.9])
def test_a_short_sequence_still_gives_the_order_of_magnitude(coefficient: float) -> None:
    expected = 2 * coefficient / (1 - coefficient)
    found = np.array([correlation_time(autoregression(coefficient, 300, seed)) for seed in range(40)])
    assert 0.6 * expected < np.median(found) < 1.3 * expected
    assert found.max() < 6 * expected


def bursts(persistence: float, share: float, count: int, seed: int) -> np.ndarray:
    """Losses of 0 and 1 that stay as they are with probability `persistence`, else are drawn anew."""
    rng = np.random.default_rng(seed)
    kept = rng.random(count) < persistence
    fresh = (rng.random(count) < share).astype(float)
    kept[0] = False
    return fresh[np.maximum.accumulate(np.where(kept, 0, np.arange(count)))]


@pytest.mark.parametrize(("coefficient", "share"), [(0.5, 0.8), (0.7, 0.8), (0.9, 0.8)])
def test_the_cautious_time_is_seldom_too_short(coefficient: float, share: float) -> None:
    expected = 2 * coefficient / (1 - coefficient)
    found = np.array([longest_correlation_time(autoregression(coefficient, 500, 1000 + seed)) for seed in range(80)])
    assert np.mean(found >= expected) >= share
    assert np.median(found) < 2.5 * expected


@pytest.mark.parametrize(("persistence", "losses"), [(0.8, 0.1), (0.9, 0.05)])
def test_rare_bursts_are_met_with_caution(persistence: float, losses: float) -> None:
    """The best estimate is too short on most boards here; the cautious one on a third of them."""
    expected = 2 * persistence / (1 - persistence)
    samples = [bursts(persistence, losses, 500, 2000 + seed) for seed in range(200)]
    best = np.mean([correlation_time(each) >= expected for each in samples])
    cautious = np.mean([longest_correlation_time(each) >= expected for each in samples])
    assert cautious >= max(0.55, best + 0.2)


def test_independent_samples_need_no_block() -> None:
    lengths = [block_length(longest_correlation_time(np.random.default_rng(seed).random(500))) for seed in range(100)]
    assert np.mean(np.array(lengths) == 1) > 0.85
    assert max(lengths) <= 15


def test_a_constant_or_alternating_sequence_has_none() -> None:
    assert correlation_time([0.3] * 50) == 0
    assert correlation_time([0.0] * 50) == 0
    assert correlation_time([0.0, 1.0] * 50) == 0


def test_too_few_or_impossible_values_raise() -> None:
    with pytest.raises(ValueError, match="needs 16"):
        correlation_time([0.1] * 15)
    with pytest.raises(ValueError, match="non-finite"):
        correlation_time([float("nan")] * 20)


@pytest.mark.parametrize(("time", "length"), [(0, 1), (0.05, 1), (0.11, 2), (1, 10), (18, 180)])
def test_a_block_is_ten_correlation_times(time: float, length: int) -> None:
    assert block_length(time) == length


@pytest.mark.parametrize("time", [-1, float("nan"), float("inf")])
def test_impossible_correlation_time(time: float) -> None:
    with pytest.raises(ValueError, match="correlation time"):
        block_length(time)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=60), st.integers(1, 9), st.integers(0, 60))
def test_means_of_whole_blocks_also_across_a_restart(values: list[float], length: int, cut: int) -> None:
    first, second = BlockMean(length), BlockMean(length)
    found = [first.add(value) for value in values[:cut]]
    second.restore(msgspec.json.decode(msgspec.json.encode(first.state()), type=BlockState))
    found += [second.add(value) for value in values[cut:]]
    whole = len(values) // length * length
    expected = np.array(values[:whole]).reshape(-1, length).mean(axis=1) if whole else []
    assert [mean for mean in found if mean is not None] == pytest.approx(list(expected))
    assert all((mean is not None) == ((index + 1) % length == 0) for index, mean in enumerate(found))


def test_a_mean_of_ones_is_one() -> None:
    block = BlockMean(7)
    assert [block.add(1.0) for _ in range(7)][-1] == 1.0


def test_a_block_of_another_length_or_damaged_is_refused() -> None:
    for state in (BlockState(5, 0, 0.0), BlockState(4, 4, 1.0), BlockState(4, 1, 1.5), BlockState(4, 1, float("nan"))):
        with pytest.raises(BlockMismatch):
            BlockMean(4).restore(state)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_impossible_samples_do_not_enter(value: float) -> None:
    with pytest.raises(ValueError, match="not in"):
        BlockMean(3).add(value)
