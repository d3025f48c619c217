"""The known-answer test: the same artifacts on the same input give the same bits, so a change needs no statistics.

One `KnownAnswer` for each side: the device's (observable G of the attribution) and the reference's (H).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.defaults import STRIKES


class KnownAnswerState(msgspec.Struct, frozen=True):
    """By golden index: the accepted digest, and mismatches running."""

    side: str
    accepted: dict[int, str]
    strikes: dict[int, int]


class KnownAnswer:
    """`side` "device" or "reference"; `accepted`: digest of the right answer by golden index."""

    def __init__(self, side: str, accepted: Mapping[int, str]) -> None:
        self.side = side
        self._accepted = dict(accepted)
        self._strikes: dict[int, int] = {}

    def update(self, index: int, digest: str) -> Alarm | None:
        """Compare one answer. An alarm from the second mismatch running on. Raises KeyError for an unknown index."""
        if digest == self._accepted[index]:
            self._strikes.pop(index, None)
            return None
        strikes = self._strikes.get(index, 0) + 1
        self._strikes[index] = strikes
        if strikes < STRIKES:
            return None
        return Alarm(
            detector=f"known_answer_{self.side}",
            message=f"the {self.side}'s answer to golden tensor {index} was wrong {strikes} times running",
            evidence={"golden": float(index), "strikes": float(strikes)},
        )

    @property
    def failing(self) -> bool:
        """Whether some golden tensor's answer is wrong at least twice running."""
        return any(strikes >= STRIKES for strikes in self._strikes.values())

    def state(self) -> KnownAnswerState:
        return KnownAnswerState(self.side, dict(self._accepted), dict(self._strikes))

    def restore(self, state: KnownAnswerState) -> None:
        """Take up strikes, but only those against the answers that are accepted now."""
        self._strikes = {
            index: strikes
            for index, strikes in state.strikes.items()
            if index in self._accepted and state.accepted.get(index) == self._accepted[index]
        }
