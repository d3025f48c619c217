"""How far the mean loss of the last day is from acceptance's, with its interval: for people, never an alarm."""

from __future__ import annotations

from collections import deque

import msgspec

from tidegauge.detectors.acceptance import Accepted, Difference, difference
from tidegauge.detectors.blocks import FEWEST
from tidegauge.detectors.bounds import group_means, lower_bound, upper_bound

#: Seconds that are looked back, and samples at most.
DAY, MOST = 86400.0, 4096


class Distance(msgspec.Struct, frozen=True):
    """`difference` from acceptance of the mean loss of `samples`, the oldest of which is `seconds` old."""

    difference: Difference
    samples: int
    seconds: float


class DistanceFromAcceptance:
    """Losses of the last day against one reference. `now` in seconds of one monotonic clock, not falling."""

    def __init__(self, accepted: Accepted) -> None:
        self._accepted = accepted
        self._losses: deque[tuple[float, float]] = deque(maxlen=MOST)

    def update(self, now: float, loss: float) -> None:
        """Take one loss. Raises ValueError outside [0, 1]."""
        if not 0 <= loss <= 1:
            raise ValueError(f"loss {loss} is not in [0, 1]")
        self._losses.append((now, loss))
        while now - self._losses[0][0] > DAY:
            self._losses.popleft()

    def found(self) -> Distance | None:
        """None for fewer than 16 losses. The interval holds with 90 %, as that of two acceptances."""
        if len(self._losses) < FEWEST:
            return None
        losses, old = [loss for _, loss in self._losses], self._accepted
        # As many neighbours are taken together as at acceptance: they tell little more than one of them.
        groups = group_means(losses, old.samples / max(1, old.worth) - 1 if old.worth else old.correlation_time)
        mean = sum(losses) / len(losses)
        new = msgspec.structs.replace(
            old, mean=mean, lower95=min(lower_bound(groups), mean), upper95=max(upper_bound(groups), mean)
        )
        return Distance(difference(old, new), len(losses), self._losses[-1][0] - self._losses[0][0])
