"""Confidence bounds cover what they promise to cover."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.detectors.bounds import group_means, lower_bound, share_upper_bound, upper_bound


@pytest.mark.parametrize("count", [30, 300])
def test_upper_bound_covers_the_mean(count: int) -> None:
    rng = np.random.default_rng(1)
    missed = sum(upper_bound(list((rng.random(count) < 0.1).astype(float))) < 0.1 for _ in range(150))
    assert missed <= 15  # 5 % promised; three standard deviations above


def test_no_loss_at_all_still_leaves_the_rule_of_three() -> None:
    assert 3 / 500 <= upper_bound([0.0] * 500) <= 0.012
    assert 3 / 50 <= upper_bound([0.0] * 50) <= 0.12


def test_small_losses_give_a_tight_bound() -> None:
    losses = list(np.random.default_rng(2).uniform(0, 0.02, 500))
    assert 0.01 < upper_bound(losses) < 0.02


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_bounds_hold_the_mean_between_them(values: list[float]) -> None:
    mean = sum(values) / len(values)
    assert 0 <= lower_bound(values) <= mean + 1e-9
    assert mean - 1e-9 <= upper_bound(values) <= 1


def test_values_outside_are_refused() -> None:
    for values in ([], [1.2], [-0.1], [float("nan")]):
        with pytest.raises(ValueError, match="values"):
            upper_bound(values)


@pytest.mark.parametrize(("hits", "count", "bound"), [(0, 500, 0.00597), (25, 500, 0.0694), (5, 20, 0.4556)])
def test_share_bound_against_the_tables(hits: int, count: int, bound: float) -> None:
    assert share_upper_bound(hits, count) == pytest.approx(bound, rel=0.005)


def test_share_bound_of_all() -> None:
    assert share_upper_bound(3, 3) == 1


def test_groups_hold_a_correlation_time() -> None:
    assert group_means([0.0, 1.0, 1.0, 1.0, 0.5], 1.0) == [0.5, 1.0]
    assert group_means([0.0, 1.0], 9.0) == [0.5]
    assert group_means([0.25, 0.5], 0.2) == [0.25, 0.5]
