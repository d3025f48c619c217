"""When a frame becomes a sample, and what the reference may cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.clocks import Monotonic
from tidegauge.shadow.budget import CpuBudget
from tidegauge.shadow.sampler import PoissonSampler


def gaps(mean: float, floor: float, seed: int, count: int, frame: float = 0.1) -> np.ndarray:
    sampler, now, times = PoissonSampler(mean, floor, seed), 1000.0, []
    while len(times) < count + 1:
        if sampler.due(Monotonic(now)):
            sampler.taken(Monotonic(now))
            times.append(now)
        now += frame
    return np.diff(times)


def test_gaps_have_floor_and_mean_and_are_exponential_beyond_the_floor() -> None:
    found = gaps(60, 20, seed=1, count=1500)
    assert found.min() >= 20 - 1e-6
    assert found.mean() == pytest.approx(60, rel=0.07)
    assert (found - 20).std() == pytest.approx(40, rel=0.12)


def test_gaps_are_the_same_for_the_same_seed_only() -> None:
    assert np.array_equal(gaps(6, 2, 5, 20), gaps(6, 2, 5, 20))
    assert not np.array_equal(gaps(6, 2, 5, 20), gaps(6, 2, 6, 20))


def test_the_first_frame_is_due_and_asking_changes_nothing() -> None:
    sampler = PoissonSampler(60, 20, 1)
    assert all(sampler.due(Monotonic(5.0)) for _ in range(10))
    sampler.taken(Monotonic(5.0))
    assert not any(sampler.due(Monotonic(t)) for t in (5.0, 10.0, 24.9))


def test_a_stop_makes_no_burst() -> None:
    sampler = PoissonSampler(60, 20, 1)
    sampler.taken(Monotonic(0.0))
    assert sampler.due(Monotonic(10_000.0))
    sampler.taken(Monotonic(10_000.0))
    assert not sampler.due(Monotonic(10_019.0))


def test_a_skipped_sample_is_not_made_up_for_on_the_next_frame() -> None:
    sampler = PoissonSampler(60, 20, 1)
    sampler.skip(Monotonic(0.0))
    assert not sampler.due(Monotonic(19.9))


def test_impossible_gaps() -> None:
    for mean, floor in ((10, 10), (10, -1), (10, 11)):
        with pytest.raises(ValueError, match="floor"):
            PoissonSampler(mean, floor, 0)


def test_budget_holds_on_average() -> None:
    budget, now, spent = CpuBudget(0.05, 600), 0.0, 0.0
    while now < 36_000:
        if budget.allows(Monotonic(now)):
            budget.charge(Monotonic(now), 7.0)
            spent += 7.0
        now += 1.0
    assert spent / 36_000 == pytest.approx(0.05, rel=0.05)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 500), st.floats(0, 40)), max_size=60))
def test_no_sequence_of_runs_overspends(steps: list[tuple[float, float]]) -> None:
    budget, now, spent, largest = CpuBudget(0.05, 600), 0.0, 0.0, 0.0
    for wait, cost in steps:
        now += wait
        if budget.allows(Monotonic(now)):
            budget.charge(Monotonic(now), cost)
            spent, largest = spent + cost, max(largest, cost)
        assert spent <= 0.05 * (now + 600) + largest + 1e-6


def test_a_costly_run_is_paid_back() -> None:
    budget = CpuBudget(0.05, 600)
    assert budget.allows(Monotonic(0.0))
    budget.charge(Monotonic(0.0), 50.0)
    assert not budget.allows(Monotonic(1.0))
    wait = budget.wait(Monotonic(1.0))
    assert wait == pytest.approx(399)
    assert not budget.allows(Monotonic(wait))
    assert budget.allows(Monotonic(1.0 + wait + 0.1))
    assert budget.wait(Monotonic(1000.0)) == 0


def test_idle_time_saves_up_one_window_only() -> None:
    budget = CpuBudget(0.05, 600)
    budget.allows(Monotonic(0.0))
    budget.charge(Monotonic(1_000_000.0), 30.1)
    assert not budget.allows(Monotonic(1_000_000.0))


def test_a_clock_that_stands_still_or_steps_back_grants_nothing() -> None:
    budget = CpuBudget(0.05, 600)
    budget.charge(Monotonic(100.0), 31.0)
    assert not budget.allows(Monotonic(50.0))
    assert not budget.allows(Monotonic(100.0))
    assert not budget.allows(Monotonic(119.0))
    assert budget.allows(Monotonic(121.0))


def test_impossible_budgets_and_charges() -> None:
    with pytest.raises(ValueError, match="share"):
        CpuBudget(0, 600)
    for cost in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="charge"):
            CpuBudget(0.05, 600).charge(Monotonic(0.0), cost)
