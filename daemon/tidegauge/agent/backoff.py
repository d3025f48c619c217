"""Waiting times between restarts of a worker: doubling, bounded, forgotten after a healthy while. Pure."""

from __future__ import annotations

from tidegauge.clocks import Monotonic


class Backoff:
    """`delay(now)` after a failure; a run of `healthy` seconds since `started(now)` starts again at `first`."""

    def __init__(self, first: float = 0.2, limit: float = 60.0, healthy: float = 60.0) -> None:
        self._first, self._limit, self._healthy = first, limit, healthy
        self._next = first
        self._started: Monotonic | None = None

    def started(self, now: Monotonic) -> None:
        self._started = now

    def delay(self, now: Monotonic) -> float:
        if self._started is not None and now - self._started >= self._healthy:
            self._next = self._first
        self._started = None
        present = self._next
        self._next = min(self._next * 2, self._limit)
        return present
