"""What a board may spend on its link: bytes a second, hours of the day, bytes a day. Pure: times are arguments."""

from __future__ import annotations

import msgspec

DAY = 86400.0


class TokenBucket:
    """At most `rate` bytes a second on average, with bursts of a second's worth; `rate` 0: no limit.

    A piece larger than a burst goes when the bucket is full, and leaves a debt: so over any time `t` at most
    `rate` × (t + 1) bytes and one piece go.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._tokens = rate
        self._at: float | None = None

    def wait(self, size: int, now: float) -> float:
        """Seconds until a piece of `size` bytes may go; 0 for now."""
        if self._rate <= 0:
            return 0.0
        lacking = min(size, self._rate) - self._filled(now)
        return max(0.0, lacking / self._rate)

    def take(self, size: int, now: float) -> None:
        """A piece goes."""
        if self._rate > 0:
            self._tokens, self._at = self._filled(now) - size, now

    def _filled(self, now: float) -> float:
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        return min(self._rate, self._tokens + passed * self._rate)


def in_span(span: str, minute: int) -> bool:
    """Whether `minute` of the day lies in `span`, such as "22:00-06:00"; its end is not in it. Empty: never."""
    if not span:
        return False
    begin, end = _minutes(span)
    return begin <= minute < end if begin <= end else minute >= begin or minute < end


def until_open(window: str, second: float) -> float:
    """Seconds from `second` of the day until `window` opens; 0 while it is open, and where it is empty."""
    if not window or in_span(window, int(second // 60)):
        return 0.0
    return (_minutes(window)[0] * 60 - second) % DAY


def _minutes(span: str) -> tuple[int, int]:
    begin, end = (60 * int(text[:2]) + int(text[3:]) for text in span.split("-"))
    return begin, end


class Spent(msgspec.Struct, frozen=True):
    """Bytes that a day has cost. `day`: number of the local day since 1970."""

    day: int = 0
    bytes: int = 0


class DayBudget:
    """At most `limit` bytes a local day. A day that lies before the last known one is still that one: a clock that
    jumps back, or a restart in 1970, buys nothing.
    """

    def __init__(self, limit: int, spent: Spent) -> None:
        self._limit, self.spent = limit, spent

    def left(self, day: int) -> int:
        """Bytes that may still go today."""
        return self._limit if day > self.spent.day else max(0, self._limit - self.spent.bytes)

    def spend(self, size: int, day: int) -> bool:
        """Take `size` bytes; False, and nothing is taken, where fewer are left."""
        if size > self.left(day):
            return False
        before = self.spent if day <= self.spent.day else Spent(day)
        self.spent = Spent(before.day, before.bytes + size)
        return True
