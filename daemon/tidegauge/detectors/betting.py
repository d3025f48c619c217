"""The betting Shiryaev–Roberts e-detector for observations in [0, 1].

Null hypothesis: the mean of each observation, given the past, is at most `m0`. For 0 ≤ λ ≤ 1/m0 the bet
e = 1 + λ(x − m0) then has a conditional mean of at most 1, so M ← (M + 1)·e has an expectation of at most t after t
observations, and stopping at M ≥ 1/α gives a mean time to false alarm of at least 1/α. Neither distribution nor
independence is assumed. A mean over several λ keeps the guarantee and adapts to the size of the change. The limit may
be another for each observation, as long as it is known before: bets are shares of 1/limit.

Source: Shin, Ramdas, Rinaldo, "E-detectors: a nonparametric framework for sequential change detection",
arXiv 2203.03532.
"""

from __future__ import annotations

from math import exp, isfinite, log, log1p

import msgspec

from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.defaults import BETS, LARGEST_BET, SMALLEST_BET
from tidegauge.errors import TidegaugeError


class EvidenceMismatch(TidegaugeError):
    """Stored evidence was collected against another reference."""


class BettingState(msgspec.Struct, frozen=True):
    """`log_wealth`: ln(1 + M) for each bet, in the order of `bets()`. Finite, so it survives JSON."""

    m0: float
    alpha: float
    observations: int
    log_wealth: tuple[float, ...]


def bets(m0: float) -> tuple[float, ...]:
    """The λ that are averaged: geometric from 0.02/m0 to 0.5/m0."""
    ratio = LARGEST_BET / SMALLEST_BET
    return tuple(SMALLEST_BET * ratio ** (i / (BETS - 1)) / m0 for i in range(BETS))


class BettingDetector:
    """One stream of observations. `name` goes into its alarms. Raises ValueError unless 0 < m0 ≤ 1 and 0 < alpha < 1.

    All evidence is kept as ln(1 + M), which is 0 at the start and can't overflow.
    """

    def __init__(self, name: str, m0: float, alpha: float) -> None:
        if not 0 < m0 <= 1:
            raise ValueError(f"m0 is {m0}, not in (0, 1]")
        if not 0 < alpha < 1:
            raise ValueError(f"alpha is {alpha}, not in (0, 1)")
        self.name, self.m0, self.alpha = name, m0, alpha
        self._bets = bets(m0)
        self.reset()

    def reset(self) -> None:
        """Evidence to zero; the reference stays."""
        self.observations = 0
        self._log_wealth = [0.0] * BETS

    def update(self, observation: float, limit: float | None = None) -> Alarm | None:
        """Take one observation; an alarm while the evidence is at the limit. Raises ValueError outside [0, 1].

        `limit`: of this observation's mean, in (0, 1], where it is not m0. It must not depend on the observation.
        """
        if not 0 <= observation <= 1:
            raise ValueError(f"{self.name}: observation {observation} is not in [0, 1]")
        self.observations += 1
        excess = observation - self.m0
        if limit is not None:
            if not 0 < limit <= 1:
                raise ValueError(f"{self.name}: a limit of {limit} is not in (0, 1]")
            excess = (observation - limit) * self.m0 / limit  # in units in which the limit is m0
        self._log_wealth = [
            _log_add_one(wealth + log1p(bet * excess)) for bet, wealth in zip(self._bets, self._log_wealth, strict=True)
        ]
        if self.log_evidence < self.log_limit:
            return None
        m0 = self.m0 if limit is None else limit
        return Alarm(
            detector=self.name,
            message=(
                f"{self.name} has been above its limit {m0:.3f} for too long to be chance "
                f"(newest observation {observation:.3f}, {self.observations} since the start)"
            ),
            evidence={
                "observation": observation,
                "m0": m0,
                "log_evidence": self.log_evidence,
                "log_limit": self.log_limit,
                "observations": float(self.observations),
            },
        )

    @property
    def log_evidence(self) -> float:
        """ln(1 + M), M averaged over the bets: 0 when there is none."""
        top = max(self._log_wealth)
        return top + log(sum(exp(wealth - top) for wealth in self._log_wealth) / BETS)

    @property
    def log_limit(self) -> float:
        """ln(1 + 1/α): an alarm is raised when `log_evidence` reaches it."""
        return log1p(1 / self.alpha)

    def state(self) -> BettingState:
        return BettingState(self.m0, self.alpha, self.observations, tuple(self._log_wealth))

    def restore(self, state: BettingState) -> None:
        """Take up stored evidence. Raises `EvidenceMismatch` for that of another `m0`, `alpha` or set of bets."""
        if (state.m0, state.alpha, len(state.log_wealth)) != (self.m0, self.alpha, BETS):
            raise EvidenceMismatch(
                f"stored evidence of detector {self.name} belongs to m0 {state.m0:g} and alpha {state.alpha:g}, "
                f"this reference has {self.m0:g} and {self.alpha:g}",
                "rebaseline to start again from no evidence",
            )
        if state.observations < 0 or not all(isfinite(wealth) and wealth >= 0 for wealth in state.log_wealth):
            raise EvidenceMismatch(
                f"stored evidence of detector {self.name} is damaged", "rebaseline to start again from no evidence"
            )
        self.observations = state.observations
        self._log_wealth = list(state.log_wealth)


def _log_add_one(log_m: float) -> float:
    """ln(1 + M) from ln M, without overflow."""
    return log_m + log1p(exp(-log_m)) if log_m > 0 else log1p(exp(log_m))
