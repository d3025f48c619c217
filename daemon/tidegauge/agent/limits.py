"""How often captures may be taken. Pure: times are arguments; the record of past captures is plain data that is stored.

Limits hold across restarts and reboots, so they count wall-clock time, of which a board without a clock battery may
know little: a capture recorded in the future of the present clock counts as just taken.
"""

from __future__ import annotations

import msgspec

from tidegauge.clocks import Wall
from tidegauge.link.allowance import in_span as in_quiet_hours

__all__ = ["Taken", "forget_old", "in_quiet_hours", "refusal"]

HOUR = 3600.0
DAY = 24 * HOUR


class Taken(msgspec.Struct, frozen=True):
    """A capture that was taken: when, and for which cause."""

    wall: float
    cause: str


def refusal(
    taken: tuple[Taken, ...], cause: str, now: Wall, per_hour: int, per_day: int, per_cause_hour: int
) -> str | None:
    """Why a capture for `cause` must not be taken now, or None."""
    hour = [each for each in taken if now - each.wall < HOUR]
    day = [each for each in taken if now - each.wall < DAY]
    same = [each for each in hour if each.cause == cause]
    if len(same) >= per_cause_hour:
        return f"{len(same)} captures of `{cause}` in the last hour (key `capture.per_cause_hour`)"
    if len(hour) >= per_hour:
        return f"{len(hour)} captures in the last hour (key `capture.per_hour`)"
    if len(day) >= per_day:
        return f"{len(day)} captures in the last day (key `capture.per_day`)"
    return None


def forget_old(taken: tuple[Taken, ...], now: Wall) -> tuple[Taken, ...]:
    """Drop what no limit looks at any more."""
    return tuple(each for each in taken if now - each.wall < DAY)
