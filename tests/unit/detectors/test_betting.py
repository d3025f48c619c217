"""The e-detector keeps its promise: false alarms no more often than stated, drift found within the known delays."""

from __future__ import annotations

from collections.abc import Callable
from math import expm1, log

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tidegauge.detectors.betting import BettingDetector, BettingState, EvidenceMismatch, bets
from tidegauge.detectors.blocks import block_length, correlation_time
from tidegauge.detectors.defaults import BETS

M0 = 0.05
Draw = Callable[[np.random.Generator, int, int], NDArray[np.float64]]


def run_lengths(
    draw: Draw, alpha: float, runs: int, seed: int, m0: float = M0, limit: int = 60_000
) -> NDArray[np.intp]:
    """Observations to the alarm of many streams at once, by the recursion as published: M ← (M + 1)(1 + λ(x − m0))."""
    rng = np.random.default_rng(seed)
    lengths = np.zeros(runs, np.intp)
    alive = np.arange(runs)
    evidence = np.zeros((runs, BETS))
    stakes = np.array(bets(m0))
    for time in range(1, limit + 1):
        x = draw(rng, runs, time)[alive]
        evidence[alive] = (evidence[alive] + 1) * (1 + stakes * (x - m0)[:, None])
        stopped = evidence[alive].mean(axis=1) >= 1 / alpha
        lengths[alive[stopped]] = time
        alive = alive[~stopped]
        if alive.size == 0:
            return lengths
    lengths[alive] = limit  # too short: the mean only gets smaller
    return lengths


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=60), st.floats(0.03, 0.9), st.floats(1e-8, 0.1))
def test_the_detector_is_the_published_recursion(values: list[float], m0: float, alpha: float) -> None:
    detector = BettingDetector("loss", m0, alpha)
    evidence = np.zeros(BETS)
    for x in values:
        evidence = (evidence + 1) * (1 + np.array(bets(m0)) * (x - m0))
        alarm = detector.update(x)
        assert expm1(detector.log_evidence) == pytest.approx(evidence.mean(), rel=1e-9)
        if evidence.mean() != pytest.approx(1 / alpha):
            assert (alarm is not None) == (evidence.mean() >= 1 / alpha)
    assert detector.observations == len(values)


def bernoulli(rng: np.random.Generator, runs: int, _: int) -> NDArray[np.float64]:
    return (rng.random(runs) < M0).astype(np.float64)


def beta(rng: np.random.Generator, runs: int, _: int) -> NDArray[np.float64]:
    return rng.beta(0.5, 9.5, runs)  # mean 0.05


def alternating(rng: np.random.Generator, runs: int, time: int) -> NDArray[np.float64]:
    first = np.arange(runs) % 2
    return np.where((time + first) % 2 == 0, 0.0, 2 * M0)


def heavy_tailed(rng: np.random.Generator, runs: int, _: int) -> NDArray[np.float64]:
    """Pareto of index 1.2, clipped at 1, scaled to a mean of m0 after clipping."""
    return np.minimum(0.01279 * rng.random(runs) ** (-1 / 1.2), 1.0)


def test_heavy_tailed_losses_are_at_the_limit() -> None:
    assert heavy_tailed(np.random.default_rng(0), 2_000_000, 1).mean() == pytest.approx(M0, rel=0.02)


@pytest.mark.parametrize("draw", [bernoulli, beta, alternating, heavy_tailed])
def test_mean_time_to_a_false_alarm_is_at_least_as_promised(draw: Draw) -> None:
    alpha, runs = 1e-2, 600
    lengths = run_lengths(draw, alpha, runs, seed=3, limit=5_000)
    # Run lengths are about geometric: their mean is known to 4 % from 600 runs.
    assert lengths.mean() >= 0.92 / alpha


def test_a_rarer_alarm_is_rarer() -> None:
    means = [run_lengths(bernoulli, alpha, 250, seed=5).mean() for alpha in (1e-1, 1e-2, 1e-3)]
    slope = np.polyfit(np.log([10, 100, 1000]), np.log(means), 1)[0]
    assert means[2] >= 1000
    assert slope == pytest.approx(1, abs=0.15)


def test_a_mean_above_the_limit_is_found_soon() -> None:
    """The promise is not kept by never raising an alarm."""
    assert run_lengths(lambda rng, runs, _: rng.beta(1, 9, runs), 1e-3, 100, seed=1).max() < 300


@pytest.mark.parametrize(
    ("alpha", "mean", "delay"),
    [
        (1e-3, 0.10, 137), (1e-3, 0.20, 34), (1e-3, 0.50, 10),
        (1.9e-6, 0.10, 472), (1.9e-6, 0.20, 87), (1.9e-6, 0.50, 18), (1.9e-6, 1.0, 7),
    ],
)  # fmt: skip
def test_delay_of_losses_of_zero_and_one(alpha: float, mean: float, delay: float) -> None:
    lengths = run_lengths(lambda rng, runs, _: (rng.random(runs) < mean).astype(np.float64), alpha, 600, seed=7)
    assert lengths.mean() == pytest.approx(delay, rel=0.15)


@pytest.mark.parametrize(("mean", "late"), [(0.5, 31), (0.2, 170)])
def test_drift_is_found_in_time_on_nineteen_boards_of_twenty(mean: float, late: float) -> None:
    lengths = run_lengths(lambda rng, runs, _: (rng.random(runs) < mean).astype(np.float64), 1.9e-6, 1000, seed=8)
    assert np.quantile(lengths, 0.95) <= 1.05 * late


def sticky(persistence: float) -> Draw:
    """Losses of 0 and 1 that stay as they are with this probability, else are drawn anew."""
    last: list[NDArray[np.float64]] = []

    def draw(rng: np.random.Generator, runs: int, time: int) -> NDArray[np.float64]:
        fresh = bernoulli(rng, runs, time)
        if not last or last[0].size != runs or time == 1:
            last[:] = [fresh]
        else:
            last[0] = np.where(rng.random(runs) < persistence, last[0], fresh)
        return last[0]

    return draw


def autoregressive(coefficient: float) -> Draw:
    """1 where a Gaussian autoregression is in its upper 5 %."""
    last: list[NDArray[np.float64]] = []

    def draw(rng: np.random.Generator, runs: int, time: int) -> NDArray[np.float64]:
        noise = rng.normal(size=runs)
        if not last or last[0].size != runs or time == 1:
            last[:] = [noise]
        else:
            last[0] = coefficient * last[0] + np.sqrt(1 - coefficient**2) * noise
        return (last[0] > 1.6449).astype(np.float64)

    return draw


def blocked(draw: Draw, length: int) -> Draw:
    samples = [0]

    def mean(rng: np.random.Generator, runs: int, time: int) -> NDArray[np.float64]:
        if time == 1:
            samples[0] = 0
        total = np.zeros(runs)
        for _ in range(length):
            samples[0] += 1
            total += draw(rng, runs, samples[0])
        return total / length

    return mean


@pytest.mark.parametrize(
    ("draw", "time"),
    [(autoregressive(0.5), 0.71), (autoregressive(0.9), 7.7), (sticky(0.9), 18)],
    ids=["ar 0.5", "ar 0.9", "sticky 0.9"],
)
def test_dependent_losses_keep_the_promise_through_blocks(draw: Draw, time: float) -> None:
    """Blocks of ten true correlation times; how well those are estimated is tested with the estimator."""
    lengths = run_lengths(blocked(draw, block_length(time)), 1e-3, 120, seed=12, limit=3_000)
    assert lengths.mean() >= 0.8 * 1000


def test_the_correlation_times_above_are_true() -> None:
    for draw, time in ((autoregressive(0.5), 0.71), (autoregressive(0.9), 7.7), (sticky(0.9), 18)):
        rng = np.random.default_rng(21)
        samples = np.array([draw(rng, 20, each) for each in range(1, 10_001)])
        assert np.mean([correlation_time(list(stream)) for stream in samples.T]) == pytest.approx(time, rel=0.15)


def test_without_blocks_dependent_losses_break_it() -> None:
    """Shows that the test above can fail."""
    for draw in (autoregressive(0.5), autoregressive(0.9), sticky(0.9)):
        assert run_lengths(draw, 1e-3, 200, seed=13).mean() < 0.5 * 1000


def test_evidence_never_overflows_and_falls_again() -> None:
    detector = BettingDetector("loss", 0.03, 1e-6)
    for _ in range(5_000):
        detector.update(1.0)
    top = detector.log_evidence
    assert top > 5_000
    for _ in range(100):
        detector.update(0.0)
    assert detector.log_evidence < top
    detector.reset()
    assert (detector.log_evidence, detector.observations) == (0, 0)


def test_an_alarm_says_what_and_why() -> None:
    detector = BettingDetector("loss", 0.05, 1e-6)
    alarms = [alarm for alarm in (detector.update(0.9) for _ in range(20)) if alarm is not None]
    assert len(alarms) > 5  # the caller latches
    assert alarms[0].detector == "loss"
    assert alarms[0].evidence["log_evidence"] >= alarms[0].evidence["log_limit"] > log(1e6)
    assert "0.900" in alarms[0].message


def test_a_limit_of_its_own_for_each_observation_keeps_the_promise() -> None:
    """Kinds of input whose losses have means of 0.02 and 0.4: each at its limit, in runs and in turns."""
    rng = np.random.default_rng(5)
    runs = []
    for _ in range(150):
        detector, limit, count = BettingDetector("loss_by_kind", 0.05, 1e-2), 0.02, 0
        while count < 400:
            count += 1
            limit = 0.42 - limit if rng.random() < 0.1 else limit
            if detector.update(float(rng.random() < limit), limit) is not None:
                break
        runs.append(count)
    assert np.mean(runs) >= 100


def test_against_limits_of_their_own_easy_inputs_hide_nothing_and_hard_ones_are_no_fault() -> None:
    rng = np.random.default_rng(6)
    fixed, own = BettingDetector("loss", 0.1, 1e-4), BettingDetector("loss_by_kind", 0.1, 1e-4)
    for _ in range(400):  # easy inputs only, on which the device is ten times as wrong as it was
        loss = float(rng.random() < 0.08)
        assert fixed.update(loss) is None
        own.update(loss, 0.02)
    assert own.log_evidence > own.log_limit > fixed.log_evidence
    fixed.reset()
    own.reset()
    for _ in range(400):  # hard inputs only, as wrong as they always were
        loss = float(rng.random() < 0.3)
        fixed.update(loss)
        assert own.update(loss, 0.35) is None
    assert fixed.log_evidence > fixed.log_limit
    for wrong in (0.0, 1.1, float("nan")):
        with pytest.raises(ValueError, match="limit"):
            own.update(0.5, wrong)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=40), st.integers(0, 40))
def test_a_restart_in_the_middle_changes_nothing(values: list[float], cut: int) -> None:
    straight, first, second = (BettingDetector("loss", 0.05, 1e-3) for _ in range(3))
    expected = [straight.update(x) for x in values]
    found = [first.update(x) for x in values[:cut]]
    second.restore(msgspec.json.decode(msgspec.json.encode(first.state()), type=BettingState))
    found += [second.update(x) for x in values[cut:]]
    assert found == expected
    assert second.state() == straight.state()


@pytest.mark.parametrize(
    "state",
    [
        BettingState(0.06, 1e-3, 3, (0.0,) * BETS),
        BettingState(0.05, 1e-4, 3, (0.0,) * BETS),
        BettingState(0.05, 1e-3, 3, (0.0,) * (BETS - 1)),
        BettingState(0.05, 1e-3, 3, (float("nan"),) * BETS),
        BettingState(0.05, 1e-3, -1, (0.0,) * BETS),
    ],
)
def test_evidence_of_another_reference_is_refused(state: BettingState) -> None:
    with pytest.raises(EvidenceMismatch, match="rebaseline"):
        BettingDetector("loss", 0.05, 1e-3).restore(state)


@pytest.mark.parametrize("x", [-0.01, 1.01, float("nan"), float("inf")])
def test_an_impossible_observation_is_no_evidence(x: float) -> None:
    detector = BettingDetector("loss", 0.05, 1e-3)
    with pytest.raises(ValueError, match="not in"):
        detector.update(x)
    assert detector.observations == 0


@pytest.mark.parametrize(("m0", "alpha"), [(0, 0.1), (1.1, 0.1), (0.1, 0), (0.1, 1)])
def test_impossible_parameters(m0: float, alpha: float) -> None:
    with pytest.raises(ValueError, match="not in"):
        BettingDetector("loss", m0, alpha)


def test_bets_are_geometric_and_allowed() -> None:
    stakes = np.array(bets(0.05)) * 0.05
    assert (stakes[0], stakes[-1]) == (pytest.approx(0.02), pytest.approx(0.5))
    assert np.ptp(np.diff(np.log(stakes))) < 1e-9
