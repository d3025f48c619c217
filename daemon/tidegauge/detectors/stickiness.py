"""Whether blocks are long enough, looked at after acceptance: a stream that turns out stickier needs longer ones.

Means over blocks of ten correlation times hardly depend on their neighbours. Where they do, the block was estimated too
short (acceptance saw no burst, say), and the detector's promise is weaker than stated. A block's length may follow from
the past: the mean of a longer block, given the past, is still at most m0, so evidence is kept, and α, chosen for the
shorter block, gives fewer false alarms a year than promised, never more.
"""

from __future__ import annotations

from math import sqrt

import msgspec

from tidegauge.detectors.defaults import ALLOWED, ERRORS, FIRST_LOOK


class StickinessState(msgspec.Struct, frozen=True):
    """Means seen, their sum, the sums of squares and of products of neighbours; the first and the last of them."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    first: float = 0.0
    last: float = 0.0


class Stickiness:
    """Feed it each block's mean. It starts again after it has said that blocks must grow."""

    def __init__(self, state: StickinessState | None = None) -> None:
        self._state = state or StickinessState()

    def update(self, mean: float, calm: bool) -> bool:
        """Whether the block must grow. Raises ValueError outside [0, 1].

        `calm`: the detector's evidence is far from its limit. Otherwise nothing is decided: a fault that begins makes
        neighbours alike too, and must not be met with longer blocks. The next look is then at the next doubling.
        """
        if not 0 <= mean <= 1:
            raise ValueError(f"a block's mean of {mean}")
        old = self._state
        self._state = StickinessState(
            old.count + 1,
            old.total + mean,
            old.squares + mean * mean,
            old.products + (mean * old.last if old.count else 0.0),
            old.first if old.count else mean,
            mean,
        )
        count = self._state.count
        if not calm or count < FIRST_LOOK or count & (count - 1):
            return False
        if self.correlation <= ALLOWED + ERRORS / sqrt(count):
            return False
        self._state = StickinessState()
        return True

    @property
    def correlation(self) -> float:
        """Of neighbouring means; 0 where they do not vary, or there are fewer than two."""
        seen = self._state
        if seen.count < 2:
            return 0.0
        mean = seen.total / seen.count
        spread = seen.squares - seen.count * mean * mean
        if spread <= 1e-12 * seen.count:
            return 0.0
        # Σ (xᵢ − m)(xᵢ₊₁ − m), multiplied out: the first and the last value are in one of the two sums each.
        product = seen.products - mean * (2 * seen.total - seen.first - seen.last) + (seen.count - 1) * mean * mean
        return product / spread

    def state(self) -> StickinessState:
        return self._state
