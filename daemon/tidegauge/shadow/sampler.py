"""Which frames become shadow samples: decided by the clock alone, before the output is seen.

Only a rule that can't see the content keeps the detectors' guarantee, and gaps of random length can't lock to a scene
that repeats.
"""

from __future__ import annotations

import random

from tidegauge.clocks import Monotonic


class PoissonSampler:
    """Gaps of `floor` seconds plus an exponential part, `mean` seconds in all. ValueError unless 0 ≤ floor < mean.

    The first frame is due at once, so that a new board is seen early.
    """

    def __init__(self, mean: float, floor: float, seed: int) -> None:
        if not 0 <= floor < mean:
            raise ValueError(f"a floor of {floor} s is not below the mean gap of {mean} s")
        self._mean, self._floor = mean, floor
        self._random = random.Random(seed)
        self._next: Monotonic | None = None

    def due(self, now: Monotonic) -> bool:
        """Whether a frame at `now` is to become a sample. Asking changes nothing."""
        return self._next is None or now >= self._next

    def taken(self, now: Monotonic) -> None:
        """A sample was taken at `now`; the next gap counts from here, so a stop makes no burst."""
        self._next = Monotonic(now + self._floor + self._random.expovariate(1 / (self._mean - self._floor)))

    def skip(self, now: Monotonic) -> None:
        """A sample was due and could not be taken. The next one is drawn as if it had been: a retry on the very next
        frame would make the times depend on what kept it from being taken."""
        self.taken(now)
