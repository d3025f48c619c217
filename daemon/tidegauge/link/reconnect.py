"""When to try the broker again. Pure: randomness and durations are arguments."""

from __future__ import annotations

from random import Random

#: A connection that lasted this long starts the back-off anew, seconds.
STEADY = 30.0


class Reconnect:
    """Full jitter between 0 and a bound that doubles from `first` to `most` with each try that failed.

    The first try of all, and the first after a connection that stood, spread over `spread` seconds: what ended that
    one (a broker's restart, a power cut) ended those of the whole fleet.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._failures = 0
        self._stood = True

    def ended(self, seconds: float) -> None:
        """A try is over, after so many seconds."""
        self._stood = seconds > STEADY
        self._failures = 0 if self._stood else self._failures + 1

    def pause(self, first: float, most: float, spread: float) -> float:
        """Seconds to wait before the next try."""
        bound = spread if self._stood else min(most, first * 2.0 ** min(self._failures - 1, 16))
        return self._rng.uniform(0.0, bound)
