"""How often lines of one kind are let through; pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from tidegauge.clocks import Monotonic

Key = TypeVar("Key", bound=Hashable)

#: Lines of one kind in `SECONDS`. A fault that repeats itself says all in so many; a card is worn by the rest.
MOST = 10
SECONDS = 60.0
#: Kinds that are told apart at a time. Where there are more, something makes them up.
KINDS = 512


class Limiter(Generic[Key]):
    """At most `most` lines of one key in a window of `seconds`, which begins with the first of them.

    `others`: the key of what is beyond `KINDS`, so that memory is bounded whatever comes.
    """

    def __init__(self, others: Key, most: int = MOST, seconds: float = SECONDS) -> None:
        self._others, self._most, self._seconds = others, most, seconds
        self._windows: dict[Key, tuple[Monotonic, int]] = {}

    def key(self, wanted: Key) -> Key:
        """Under which key this one is counted at present."""
        return wanted if wanted in self._windows or len(self._windows) < KINDS else self._others

    def lets(self, key: Key, now: Monotonic) -> bool:
        """Whether one more may go. Ask `ended` first: a window that is over is closed there."""
        began, count = self._windows.get(key, (now, 0))
        self._windows[key] = began, count + 1
        return count < self._most

    def ended(self, now: Monotonic, *, at_once: bool = False) -> list[tuple[Key, int]]:
        """Close the windows that are over (`at_once`: all). Keys of which something was left out, and how many."""
        over = [key for key, (began, _) in self._windows.items() if at_once or now - began >= self._seconds]
        counts = [(key, self._windows.pop(key)[1] - self._most) for key in over]
        return [(key, count) for key, count in counts if count > 0]
