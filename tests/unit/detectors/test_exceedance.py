"""The second stream: heavy-tailed tensor errors made into zeros and ones."""

from __future__ import annotations

import numpy as np
import pytest

from tidegauge.detectors.betting import BettingDetector
from tidegauge.detectors.exceedance import exceedance_reference, exceeds


def test_above_the_threshold_or_undefined_counts() -> None:
    assert [exceeds(value, 0.1) for value in (0.0, 0.1, 0.11, float("inf"), None)] == [0, 0, 1, 1, 1]
    with pytest.raises(ValueError, match="NaN"):
        exceeds(float("nan"), 0.1)


def test_errors_that_sqnr_can_not_tell_apart_do_not_exceed() -> None:
    reference = exceedance_reference([0.0] * 100, 0.95, 100)
    assert exceeds(1e-7, reference.threshold) == 0
    assert exceeds(1e-5, reference.threshold) == 1


def test_later_healthy_samples_stay_within_m0() -> None:
    rng = np.random.default_rng(3)
    missed = 0
    for _ in range(200):
        reference = exceedance_reference(list(rng.lognormal(-9, 1.5, 200)), 0.95, 200)
        missed += float((rng.lognormal(-9, 1.5, 4000) > reference.threshold).mean()) > reference.m0
    assert missed <= 4


def test_fewer_independent_samples_widen_it() -> None:
    values = list(np.linspace(0.01, 1, 500))
    assert exceedance_reference(values, 0.95, 50).m0 > exceedance_reference(values, 0.95, 500).m0 + 0.02


def test_a_shift_of_the_errors_is_found() -> None:
    rng = np.random.default_rng(4)
    reference = exceedance_reference(list(rng.lognormal(-9, 1, 500)), 0.95, 500)
    detector = BettingDetector("nmse", reference.m0, 1.9e-6)
    healthy = [detector.update(exceeds(float(x), reference.threshold)) for x in rng.lognormal(-9, 1, 2000)]
    assert not any(healthy)
    drifted = [detector.update(exceeds(float(x), reference.threshold)) for x in rng.lognormal(-7, 1, 100)]
    assert any(drifted)


def test_no_samples_raise() -> None:
    with pytest.raises(ValueError, match="no samples"):
        exceedance_reference([], 0.95, 1)
