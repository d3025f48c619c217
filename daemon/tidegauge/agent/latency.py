"""Whether device runs have become much slower than they were at first. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

#: Runs whose median is compared: a few slow ones are the board's other work.
WINDOW = 100


class SlowWatch:
    """`reference` in seconds: the median of the first runs, None until it is known."""

    def __init__(self, factor: float, reference: float | None) -> None:
        self._factor = factor
        self.reference = reference
        self._runs: deque[float] = deque(maxlen=WINDOW)

    def update(self, seconds: float) -> float | None:
        """Take one run. The present median where it is more than `factor` times the reference, else None."""
        self._runs.append(seconds)
        if len(self._runs) < WINDOW:
            return None
        present = median(self._runs)
        self._runs.clear()
        if self.reference is None:
            self.reference = present
            return None
        return present if present > self._factor * self.reference else None
