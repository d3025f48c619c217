"""The mean loss of the last day against acceptance's."""

from __future__ import annotations

import numpy as np
import pytest

from tidegauge.detectors.acceptance import Acceptance, AcceptanceRules, Accepted
from tidegauge.detectors.distance import DAY, DistanceFromAcceptance


def accepted() -> Accepted:
    acceptance = Acceptance(AcceptanceRules(samples=400))
    for loss in np.random.default_rng(1).beta(0.4, 20, 400):
        outcome = acceptance.update(float(loss), 1e-4, ())
    assert isinstance(outcome, Accepted)
    return outcome


def test_the_interval_holds_the_change_and_zero_where_there_is_none() -> None:
    reference = accepted()
    for change, seed in ((0.0, 2), (0.05, 3)):
        distance = DistanceFromAcceptance(reference)
        for minute, loss in enumerate(np.random.default_rng(seed).beta(0.4, 20, 500)):
            distance.update(60.0 * minute, float(min(1.0, loss + change)))
        found = distance.found()
        assert found is not None
        assert found.difference.low < change < found.difference.high
        assert (found.difference.low > 0) == (change > 0)
        assert (found.samples, found.seconds) == (500, 60.0 * 499)


def test_yesterday_is_forgotten_and_few_say_nothing() -> None:
    distance = DistanceFromAcceptance(accepted())
    for minute in range(100):
        distance.update(60.0 * minute, 1.0)
    assert distance.found() is not None
    for minute in range(15):
        distance.update(DAY + 6000.0 + 60 * minute, 0.0)
    assert distance.found() is None
    distance.update(DAY + 7000.0, 0.0)
    found = distance.found()
    assert found is not None
    assert (found.samples, found.difference.mean) == (16, pytest.approx(-accepted().mean))
    with pytest.raises(ValueError, match="loss"):
        distance.update(0.0, float("nan"))
