"""What must not be changed in the detector: each mutation of it breaks a promise that is checked here.

The same check is run on the detector as it is, which keeps the promise, and on the mutant, which must not.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log1p

import numpy as np
import pytest

from tidegauge.detectors import betting
from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.betting import BettingDetector, bets
from tidegauge.detectors.blocks import BlockMean

M0, ALPHA = 0.05, 1e-3
Make = Callable[[], BettingDetector]


class WithoutPlusOne(BettingDetector):
    """M ← M·e from 1: a test, not a detector; a healthy past uses up what it can bet with."""

    def update(self, observation: float) -> Alarm | None:
        excess = observation - self.m0
        self._log_wealth = [w + log1p(b * excess) for b, w in zip(bets(self.m0), self._log_wealth, strict=True)]
        return Alarm("loss", "", {}) if self.log_evidence >= self.log_limit else None


class SwappedSides(BettingDetector):
    """Bets that the loss has become smaller."""

    def update(self, observation: float) -> Alarm | None:
        return super().update(min(1.0, max(0.0, 2 * self.m0 - observation)))


class Relearning(BettingDetector):
    """Takes what it sees as the new normal, as detectors that reset themselves do."""

    def update(self, observation: float) -> Alarm | None:
        alarm = super().update(observation)
        if alarm is not None:
            self.m0 = min(1.0, observation * 2)
            self._bets = bets(self.m0)
            self.reset()
        return alarm


def make(kind: type[BettingDetector]) -> Make:
    return lambda: kind("loss", M0, ALPHA)


def finds_a_fault_after_a_long_healthy_time(make: Make) -> bool:
    detector = make()
    for _ in range(3000):
        detector.update(0.0)
    return any(detector.update(0.5) is not None for _ in range(40))


def finds_a_fault_at_once(make: Make) -> bool:
    detector = make()
    return any(detector.update(0.5) is not None for _ in range(40))


def goes_on_saying_so(make: Make) -> bool:
    """A fault that stays is still an alarm a long time after the first one."""
    detector = make()
    alarms = [detector.update(0.5) is not None for _ in range(200)]
    return all(alarms[100:])


def evidence_is_a_fair_bet(make: Make) -> bool:
    """Under the hardest healthy law the expected M after t observations is t, whatever the bet: nothing is given away.

    Exact, over all ends of ten observations of 0 or 1/2 with mean m0.
    """
    share = 2 * M0
    paths = {(): 1.0}
    for _ in range(8):
        paths = {
            (*path, value): weight * (share if value else 1 - share)
            for path, weight in paths.items()
            for value in (0.0, 0.5)
        }
    expected = 0.0
    for path, weight in paths.items():
        detector = make()
        for value in path:
            detector.update(value)
        expected += weight * (exp(detector.log_evidence) - 1)
    return expected == pytest.approx(8, rel=1e-6)


CHECKS = (
    finds_a_fault_after_a_long_healthy_time,
    finds_a_fault_at_once,
    goes_on_saying_so,
    evidence_is_a_fair_bet,
)


@pytest.mark.parametrize("check", CHECKS)
def test_the_detector_keeps_every_promise(check: Callable[[Make], bool]) -> None:
    assert check(make(BettingDetector))


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (WithoutPlusOne, finds_a_fault_after_a_long_healthy_time),
        (WithoutPlusOne, evidence_is_a_fair_bet),
        (SwappedSides, finds_a_fault_at_once),
        (Relearning, goes_on_saying_so),
    ],
)
def test_a_mutant_breaks_one(mutant: type[BettingDetector], check: Callable[[Make], bool]) -> None:
    assert not check(make(mutant))


@pytest.mark.parametrize("largest", [1.02, 1.5])
def test_a_bet_above_the_limit_is_no_bet(monkeypatch: pytest.MonkeyPatch, largest: float) -> None:
    """Beyond 1/m0 an observation of 0 makes the stake negative."""
    assert all(0 < bet <= 1 / M0 for bet in bets(M0))
    monkeypatch.setattr(betting, "LARGEST_BET", largest)
    with pytest.raises(ValueError, match=r"domain|range|positive"):
        BettingDetector("loss", M0, ALPHA).update(0.0)


def test_too_short_a_block_raises_alarms_of_its_own() -> None:
    """Scenes that stay 20 samples, m0 exactly right: fed sample by sample most boards alarm, block by block few do."""

    def boards_with_alarm(block: int) -> int:
        alarms = 0
        for seed in range(30):
            rng = np.random.default_rng(seed)
            losses = np.repeat((rng.random(1000) < M0).astype(float), 20)
            detector, blocks = BettingDetector("loss", M0, ALPHA), BlockMean(block)
            means = [mean for loss in losses.tolist() if (mean := blocks.add(loss)) is not None]
            alarms += any(detector.update(mean) is not None for mean in means)
        return alarms

    assert boards_with_alarm(200) <= 6
    assert boards_with_alarm(1) >= 20
