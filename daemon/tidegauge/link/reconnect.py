"""When to try the broker again. Pure: randomness and durations are arguments."""

from __future__ import annotations

from random import Random

#: A connection that lasted this long starts the back-off anew, seconds.
STEADY = 30.0
#: So many connections in a row that stood for less, and were cut off with nothing under way, are somebody else's doing.
CUT_OFF = 3


class Reconnect:
    """Full jitter between 0 and a bound that doubles from `first` to `most` with each try that failed.

    The first try of all, and the first after a connection that stood, spread over `spread` seconds: what ended that
    one (a broker's restart, a power cut) ended those of the whole fleet.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._failures = self._cut_off = 0
        self._stood = True

    @property
    def rivalled(self) -> bool:
        """Whether another client seems to take this one's place again and again. Few brokers say so (MQTT 5)."""
        return self._cut_off >= CUT_OFF

    def ended(self, seconds: float, *, cut_off: bool = False) -> None:
        """A try is over, after so many seconds. `cut_off`: it had connected, and nothing was under way."""
        self._cut_off = self._cut_off + 1 if cut_off and seconds <= STEADY else 0
        self._stood = seconds > STEADY
        self._failures = 0 if self._stood else self._failures + 1

    def pause(self, first: float, most: float, spread: float) -> float:
        """Seconds to wait before the next try."""
        bound = spread if self._stood else min(most, first * 2.0 ** min(self._failures - 1, 16))
        return self._rng.uniform(0.0, bound)
