"""A CUSUM on normal scores, to compare with. It is no detector of the product: with a reference of realistic size its
run length differs by factors from board to board."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from statistics import NormalDist

#: One false alarm in 525,600 normal independent values (Siegmund's approximation, "Sequential Analysis", 1985).
SLACK, LIMIT = 0.5, 11.3


class NormalScoreCusum:
    """One-sided. Each value becomes the normal score of its rank in the frozen reference; ties take their middle."""

    def __init__(self, reference: Sequence[float], slack: float = SLACK, limit: float = LIMIT) -> None:
        self._reference, self._slack, self._limit = sorted(reference), slack, limit
        self.sum = 0.0

    def update(self, value: float) -> bool:
        """Whether the sum has reached the limit (E. S. Page, "Continuous inspection schemes", Biometrika 41, 1954)."""
        count = len(self._reference)
        below = bisect.bisect_left(self._reference, value)
        rank = (below + bisect.bisect_right(self._reference, value)) / 2 + 0.5
        self.sum = max(0.0, self.sum + NormalDist().inv_cdf(rank / (count + 1)) - self._slack)
        return self.sum >= self._limit
