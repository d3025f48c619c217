"""When the blobs of bundles may go: the pure rules of `allowance` with this machine's clocks, and the day's account."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import msgspec

from tidegauge.clocks import monotonic, wall
from tidegauge.files import write_durably
from tidegauge.link.allowance import DAY, DayBudget, Spent, TokenBucket, until_open
from tidegauge.link.config import LinkConfig

_log = logging.getLogger(__name__)

#: Bytes that are entered in the account ahead: what a kill may make a day cost more than once is none of them.
AHEAD = 4 << 20
#: Longest that a hold is believed before the wall clock is asked again, seconds.
ASK_AGAIN = 600.0


class Governor:
    """`account`: file of the day's account; None keeps it in memory only."""

    def __init__(self, config: LinkConfig, account: Path | None) -> None:
        self._window, self._account = config.upload_window, account
        self._bucket = TokenBucket(config.bytes_per_second)
        self._budget = DayBudget(config.mib_per_day << 20, self._read())
        self._entered = 0
        self._lock = threading.Lock()

    @property
    def left_today(self) -> int:
        """Bytes of blobs that may still go today."""
        return self._budget.left(_day(wall())) + self._entered

    def pause(self, size: int) -> float:
        """Seconds until a chunk of `size` bytes may go."""
        return self._bucket.wait(size, monotonic())

    def sent(self, size: int) -> None:
        self._bucket.take(size, monotonic())

    def spend(self, size: int) -> bool:
        """Whether a chunk of a blob may go today; if so it counts. Blocks on the disk now and then; thread-safe."""
        with self._lock:
            return self._spend(size)

    def _spend(self, size: int) -> bool:
        if self._entered < size:
            day = _day(wall())
            ahead = min(max(AHEAD, size - self._entered), self._budget.left(day))
            if self._entered + ahead < size or not self._budget.spend(ahead, day):
                self._budget.spend(self._budget.left(day), day)  # what is left is no chunk: the day is over
                self._entered = 0
                return False
            self._entered += ahead
            self._write()
        self._entered -= size
        return True

    def holds(self) -> tuple[float, float]:
        """Until when, on the monotonic clock, no blob may go: one that nobody asked for in person, and any. 0: now."""
        now = wall()
        seconds = DAY - _second(now)
        any_blob = seconds if self._budget.left(_day(now)) + self._entered <= 0 else 0.0
        by_hour = until_open(self._window, _second(now))
        ordinary = max(any_blob, by_hour)
        return (_from_now(ordinary), _from_now(any_blob))

    def why(self) -> str:
        """Why no blob may go now, by the key that forbids it; empty where they may."""
        ordinary, any_blob = self.holds()
        if any_blob:
            return "the day's budget is spent (key `link.mib_per_day`)"
        return f"until {self._window[:5]} (key `link.upload_window`)" if ordinary else ""

    def _read(self) -> Spent:
        if self._account is None:
            return Spent()
        try:
            return msgspec.json.decode(self._account.read_bytes(), type=Spent)
        except FileNotFoundError:
            return Spent()
        except (msgspec.DecodeError, OSError) as error:
            _log.error("%s can't be read (%s): today's account begins anew", self._account, error)
            return Spent()

    def _write(self) -> None:
        if self._account is None:
            return
        try:
            write_durably(self._account, msgspec.json.encode(self._budget.spent))
        except OSError as error:  # a full disk must not stop what empties it
            _log.error("today's account of the link can't be written: %s", error)


def _from_now(seconds: float) -> float:
    return monotonic() + min(seconds, ASK_AGAIN) if seconds > 0 else 0.0


def _day(moment: float) -> int:
    return int((moment + time.localtime(moment).tm_gmtoff) // DAY)


def _second(moment: float) -> float:
    return (moment + time.localtime(moment).tm_gmtoff) % DAY
