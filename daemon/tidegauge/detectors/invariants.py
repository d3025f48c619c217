"""What no healthy output ever is: non-finite, constant, of another size. One strike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidegauge.detectors.alarm import Alarm
from tidegauge.pipeline.messages import OutputStats


def check(outputs: Iterable[OutputStats], counts: Mapping[str, int] | None = None) -> Alarm | None:
    """The first broken invariant of a device run. `counts`: elements expected by output name, where they are known."""
    for stats in outputs:
        if counts is not None and counts.get(stats.name) != stats.count:
            expected = counts.get(stats.name, 0)
            return _alarm(stats, f"has {stats.count} elements, not {expected}", {"expected": float(expected)})
        if stats.finite < stats.count:
            wrong = stats.count - stats.finite
            return _alarm(stats, f"has {wrong} non-finite elements of {stats.count}", {"non_finite": float(wrong)})
        if stats.count > 1 and stats.minimum == stats.maximum:
            return _alarm(stats, f"is {stats.minimum:g} everywhere", {"value": stats.minimum})
    return None


def _alarm(stats: OutputStats, what: str, evidence: dict[str, float]) -> Alarm:
    return Alarm("invariant", f"output {stats.name} {what}", {"count": float(stats.count)} | evidence)
