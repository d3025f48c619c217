"""From what is wanted (false alarms a year) to what a detector is given (α), and to what it then means in hours."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, inf, log, log1p

import msgspec

from tidegauge.detectors.betting import bets
from tidegauge.detectors.bounds import binomial_log_pmf
from tidegauge.detectors.defaults import FALSE_ALARMS_A_YEAR, INTERVAL, LARGEST_ALPHA, LEVEL

YEAR = 365.25 * 86400.0


def alpha_for(block: int, gap: float, false_alarms_per_year: float = FALSE_ALARMS_A_YEAR) -> float:
    """α for blocks of `block` samples, `gap` seconds apart on average: false alarms over observations in a year.

    At most 0.01. Raises ValueError for a non-positive argument.
    """
    if block < 1 or gap <= 0 or false_alarms_per_year <= 0:
        raise ValueError(
            f"block {block}, gap {gap} s, {false_alarms_per_year} false alarms a year: all must be positive"
        )
    return min(false_alarms_per_year * block * gap / YEAR, LARGEST_ALPHA)


class Detection(msgspec.Struct, frozen=True):
    """How long a disagreement takes to be seen: `observations` and `hours` on average, inf for never."""

    disagreement: float
    observations: float
    hours: float


def detection(
    m0: float, alpha: float, block: int, gap: float, disagreement: float, correlation_time: float = 0.0
) -> Detection:
    """Mean delay for losses of 0 and 1 whose mean has become `disagreement`: the slowest kind of loss with that mean.

    Evidence grows by E ln(1 + λ(X − m0)) an observation; the best of the detector's bets needs ln(1/α) of it. X is the
    mean of the block's independent samples (block over 1 + correlation time), so the expectation is a finite sum over a
    binomial law. For a block of one this is the bound ln(1/α)/KL, within 15 % of simulated delays of 20 % and 50 %.
    """
    if not 0 <= disagreement <= 1:
        raise ValueError(f"a disagreement of {disagreement}")
    independent = max(1, round(block / (1 + correlation_time)))
    growth = max(_growth(m0, bet, disagreement, independent) for bet in bets(m0))
    observations = max(1.0, log(1 / alpha) / growth) if growth > 0 else inf
    return Detection(disagreement, observations, observations * block * gap / 3600)


def _growth(m0: float, bet: float, share: float, count: int) -> float:
    """Expected growth of ln M for one bet, from means of `count` losses of 0 and 1."""
    if share in (0.0, 1.0):
        return log1p(bet * (share - m0))
    return sum(
        exp(binomial_log_pmf(hits, count, share)) * log1p(bet * (hits / count - m0)) for hits in range(count + 1)
    )


class ClassRate(msgspec.Struct, frozen=True):
    """False alarms a year of one part of the stack, at most; `severity` as in verdicts."""

    part: str
    severity: str
    per_year: float


def stream_rate(alpha: float, block: int, gap: float) -> float:
    """False alarms a year of one stream, at most: α an observation. Raises ValueError for a non-positive argument."""
    if block < 1 or gap <= 0 or alpha <= 0:
        raise ValueError(f"alpha {alpha}, block {block}, gap {gap} s: all must be positive")
    return alpha * YEAR / (block * gap)


def stack_rates(
    false_alarms_per_year: float = FALSE_ALARMS_A_YEAR, contexts: int = 1, interval: float = INTERVAL
) -> tuple[ClassRate, ...]:
    """False alarms a year on a healthy board, by part; those of one severity add up at most (Boole's inequality).

    Invariants and known answers have none: a healthy device's output is finite, varies, and repeats its bits.
    `contexts` are light contexts with a reference of input features; each is judged every `interval` seconds at most,
    and one of its verdicts in 365 is wrong while days are alike. Thresholds of the camera's health have no rate.
    """
    return (
        ClassRate("invariants", "critical", 0.0),
        ClassRate("known answer", "critical", 0.0),
        ClassRate("loss", "critical", false_alarms_per_year),
        ClassRate("nmse", "critical", false_alarms_per_year),
        ClassRate("loss by kind", "critical", false_alarms_per_year),
        ClassRate("input drift", "warning", contexts * LEVEL * YEAR / interval),
    )


def by_severity(rates: Iterable[ClassRate]) -> dict[str, float]:
    """Their sums, critical first."""
    found: dict[str, float] = {"critical": 0.0, "warning": 0.0}
    for each in rates:
        found[each.severity] += each.per_year
    return found
