"""A token bucket on measured CPU seconds, so that the reference never costs the product more than it was granted."""

from __future__ import annotations

from tidegauge.clocks import Monotonic


class CpuBudget:
    """`share` of one core on average; at most `share * window` seconds saved up. Starts full.

    A run is charged after it was measured, so the bucket may go below zero; then nothing is allowed until it has paid
    back. Over any time T the CPU seconds spent are at most share × (T + window) plus one run. Raises ValueError for a
    non-positive share or window.
    """

    def __init__(self, share: float, window: float) -> None:
        if share <= 0 or window <= 0:
            raise ValueError(f"a share of {share} over {window} s")
        self._share, self._capacity = share, share * window
        self._tokens = self._capacity
        self._at: Monotonic | None = None

    def allows(self, now: Monotonic) -> bool:
        """Whether a reference run may start at `now`."""
        self._refill(now)
        return self._tokens > 0

    def charge(self, now: Monotonic, cpu_seconds: float) -> None:
        """Pay for a run that took `cpu_seconds`, as measured. Raises ValueError for a negative or non-finite time."""
        if not 0 <= cpu_seconds < float("inf"):
            raise ValueError(f"a charge of {cpu_seconds} CPU seconds")
        self._refill(now)
        self._tokens -= cpu_seconds

    def wait(self, now: Monotonic) -> float:
        """Seconds until a run will be allowed; 0 when it is."""
        self._refill(now)
        return 0.0 if self._tokens > 0 else -self._tokens / self._share

    def _refill(self, now: Monotonic) -> None:
        if self._at is not None and now > self._at:
            self._tokens = min(self._capacity, self._tokens + (now - self._at) * self._share)
        if self._at is None or now > self._at:
            self._at = now
