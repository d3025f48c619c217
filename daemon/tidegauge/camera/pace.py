"""A steady pace for sources that have none."""

from __future__ import annotations

import time

from tidegauge.clocks import Monotonic, monotonic


class Pace:
    """When the next picture is due. A late caller is not paid back in a burst: the time lost is lost."""

    def __init__(self, frames_per_second: float) -> None:
        self._period = 1.0 / frames_per_second
        self._due: float | None = None

    def delay(self, now: Monotonic) -> float:
        """Seconds to wait from `now`; a picture is then delivered and the next one is due a period later."""
        if self._due is None or now > self._due + self._period:
            self._due = now
        wait = max(self._due - now, 0.0)
        self._due += self._period
        return wait

    def wait(self) -> None:
        """Sleep until the next picture is due."""
        time.sleep(self.delay(monotonic()))
