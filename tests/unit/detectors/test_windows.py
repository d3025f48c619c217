"""Input drift: rare on inputs that have not changed, certain on those that have, at most once a day."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.detectors.windows import DriftState, InputDrift, compare, ks_distance, ks_p_value, psi, verdict

RNG = np.random.default_rng(11)


def test_distance_by_hand() -> None:
    assert ks_distance([1, 2, 3], [1, 2, 3]) == 0
    assert ks_distance([1, 2], [3, 4]) == 1
    assert ks_distance([1, 2, 3, 4], [3, 4, 5, 6]) == 0.5
    assert ks_distance([1, 1, 1, 2], [1, 2, 2, 2]) == 0.5
    for wrong in ([], [float("nan")]):
        with pytest.raises(ValueError, match="distribution"):
            ks_distance(wrong, [1])


@pytest.mark.parametrize(("scaled", "p_value"), [(1.2238, 0.10), (1.3581, 0.05), (1.6276, 0.01)])
def test_the_p_value_has_the_tabled_quantiles(scaled: float, p_value: float) -> None:
    size = 100_000
    root = (size / 2) ** 0.5
    assert ks_p_value(scaled / root, size, size) == pytest.approx(p_value, rel=0.01)


def test_p_values_of_equal_laws_are_as_rare_as_they_say() -> None:
    p_values = []
    for _ in range(1500):
        one, other = RNG.standard_normal(500), RNG.standard_normal(200)
        p_values.append(ks_p_value(ks_distance(one, other), 500, 200))
    for level in (0.05, 0.2):
        assert np.mean(np.array(p_values) < level) == pytest.approx(level, abs=0.02)


def test_psi() -> None:
    reference = RNG.standard_normal(2000)
    assert psi(reference, reference) == pytest.approx(0, abs=1e-9)
    assert psi(reference, RNG.standard_normal(200)) < 0.15
    assert 0.1 < psi(reference, RNG.standard_normal(2000) + 0.5) < 0.4
    assert psi(reference, RNG.standard_normal(200) + 3) > 2
    assert psi([1.0] * 500, [1.0] * 200) == pytest.approx(0, abs=0.01)  # a constant feature has one bin


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=1, max_size=50), st.lists(st.floats(-100, 100), min_size=1, max_size=50))
def test_ranges_and_symmetry(one: list[float], other: list[float]) -> None:
    distance = ks_distance(one, other)
    assert 0 <= distance <= 1
    assert distance == pytest.approx(ks_distance(other, one))
    assert 0 <= ks_p_value(distance, len(one), len(other)) <= 1
    assert 0 <= psi(one, other) < 50


def features(count: int, luma: float = 100, spread: float = 20) -> dict[str, list[float]]:
    return {"luma": RNG.normal(luma, spread, count).tolist(), "chroma": RNG.normal(10, 2, count).tolist()}


def test_a_verdict_names_what_changed_and_needs_both_measures() -> None:
    reference = features(500)
    assert verdict(compare(reference, features(200))) is None
    alarm = verdict(compare(reference, features(200, 140)))
    assert alarm is not None
    assert "luma" in alarm.message and "chroma" not in alarm.message
    # Significant but small: no operator minds.
    assert verdict(compare(features(20_000), features(20_000, 103))) is None
    # Large but by chance: too few values.
    assert verdict(compare(features(500), features(4, 120))) is None


def test_one_false_warning_a_year_at_most() -> None:
    """Four hundred daily verdicts on two unchanged features."""
    level = 1 / 365.25
    warnings = 0
    for _ in range(400):
        found = compare(features(500), features(200))
        warnings += any(each.p_value < level / len(found) for each in found)
    assert warnings <= 6  # 1.1 expected without the help of PSI


def run(drift: InputDrift, start: float, days: float, luma: float) -> list[float]:
    """A sample a minute; days at which a verdict was given, negative where it warned."""
    verdicts = []
    for minute in range(int(days * 1440)):
        now = start + 60 * minute
        done, alarm = drift.update(now, {"luma": float(RNG.normal(luma, 20)), "chroma": float(RNG.normal(10, 2))})
        if done:
            verdicts.append(now / 86400 if alarm is None else -now / 86400)
    return verdicts


def test_one_verdict_a_day_over_the_whole_day() -> None:
    drift = InputDrift(features(500), now=0)
    verdicts = run(drift, 0, 3.5, 100)
    assert len(verdicts) == 3
    assert all(day > 0 for day in verdicts)
    assert np.diff(verdicts).min() >= 1
    assert [day < 0 for day in run(drift, 3.5 * 86400, 3, 150)][-1]


def test_a_restart_keeps_window_and_day() -> None:
    first = InputDrift(features(500), now=0)
    run(first, 0, 0.9, 100)
    state = msgspec.json.decode(msgspec.json.encode(first.state(0.9 * 86400)), type=DriftState)
    second = InputDrift(features(500), now=5)
    second.restore(state, now=5)
    assert len(run(second, 5, 0.3, 100)) == 1
    with pytest.raises(ValueError, match="other features"):
        second.restore(DriftState({"other": []}, 0), 0)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 200"):
        InputDrift(features(199), now=0)
    drift = InputDrift(features(200), now=0)
    with pytest.raises(KeyError):
        drift.update(0, {"luma": 1})
    with pytest.raises(ValueError, match="not finite"):
        drift.update(0, {"luma": float("nan"), "chroma": 1})
