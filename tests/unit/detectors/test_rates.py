"""From false alarms a year to α, and to hours."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from tidegauge.detectors.betting import BettingDetector
from tidegauge.detectors.rates import alpha_for, detection, stack_rates


def test_one_false_alarm_a_year_at_one_sample_a_minute() -> None:
    assert alpha_for(1, 60, 1) == pytest.approx(1.9e-6, rel=0.01)
    assert alpha_for(30, 60, 1) == pytest.approx(30 * 1.9e-6, rel=0.01)
    assert alpha_for(1, 60, 12) == pytest.approx(12 * 1.9e-6, rel=0.01)


def test_alpha_stays_a_promise() -> None:
    assert alpha_for(100_000, 600, 50) == 0.01
    with pytest.raises(ValueError, match="positive"):
        alpha_for(0, 60)


@pytest.mark.parametrize(("disagreement", "delay"), [(0.2, 87), (0.5, 18), (1.0, 7)])
def test_delay_agrees_with_simulation_for_single_samples(disagreement: float, delay: float) -> None:
    found = detection(0.05, 1.9e-6, 1, 60, disagreement)
    assert found.observations == pytest.approx(delay, rel=0.2)
    assert found.hours == pytest.approx(found.observations / 60)


def test_delay_agrees_with_simulation_for_blocks() -> None:
    rng, m0, alpha = np.random.default_rng(2), 0.05, 1e-5
    delays = []
    for _ in range(200):
        detector, time = BettingDetector("loss", m0, alpha), 1
        while detector.update(float((rng.random(5) < 0.2).mean())) is None:
            time += 1
        delays.append(time)
    assert detection(m0, alpha, 5, 60, 0.2).observations == pytest.approx(np.mean(delays), rel=0.25)


def test_dependent_samples_in_a_block_count_less() -> None:
    assert (
        detection(0.05, 1e-5, 20, 60, 0.2, correlation_time=4).observations
        > detection(0.05, 1e-5, 20, 60, 0.2).observations
    )


def test_what_is_within_the_limit_is_never_found() -> None:
    assert detection(0.05, 1e-6, 1, 60, 0.05).hours == inf
    assert detection(0.05, 1e-6, 1, 60, 0.0).observations == inf


def test_the_whole_stack_has_its_rate_by_class() -> None:
    rates = stack_rates(1.0, contexts=3)
    assert sum(each.per_year for each in rates if each.severity == "critical") == 3
    assert sum(each.per_year for each in rates if each.severity == "warning") == pytest.approx(3)
