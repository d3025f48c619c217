"""Token buckets by who asks. Pure: the time is an argument."""

from __future__ import annotations

import threading
from collections import OrderedDict

#: Buckets in memory; the one that was not asked for longest is forgotten first.
MAX_BUCKETS = 10_000


class RateLimit:
    """At most `burst` at once and `per_minute` in the long run, for each key. Thread-safe."""

    def __init__(self, burst: int, per_minute: float) -> None:
        self._burst, self._rate = float(burst), per_minute / 60.0
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait(self, key: str, now: float) -> float:
        """Seconds until `take` would succeed, 0 where it would now. Takes nothing."""
        with self._lock:
            return self._wait(self._level(key, now))

    def take(self, key: str, now: float) -> float:
        """Take one, where there is one. Returns 0, or the seconds after which there will be."""
        with self._lock:
            level = self._level(key, now)
            wait = self._wait(level)
            self._buckets[key] = (level if wait else level - 1.0, now)
            self._buckets.move_to_end(key)
            while len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
            return wait

    def _level(self, key: str, now: float) -> float:
        level, since = self._buckets.get(key, (self._burst, now))
        return min(self._burst, level + max(0.0, now - since) * self._rate)

    def _wait(self, level: float) -> float:
        return 0.0 if level >= 1.0 else (1.0 - level) / self._rate
