"""All figures of the detectors, full or quick."""

from __future__ import annotations

from collections.abc import Callable

from tidegauge.evaluation import delay, healthy, peers
from tidegauge.evaluation.figures import Report


def evaluate(quick: bool, seed: int, progress: Callable[[str], None] = lambda text: None) -> Report:
    """`progress` is told what is measured next. Quick: a tenth of the streams, the same code."""
    report = Report(seed, quick, [], peers.not_run())
    progress("delays")
    report.figures += delay.evaluate(1000 if quick else 10_000, seed)
    progress("healthy streams")
    size = healthy.Size(100, 8, 12, 1440, (1 / 100, 1 / 200), 5) if quick else healthy.Size()
    report.figures += healthy.evaluate(size, seed)
    progress("side by side")
    beside = peers.Size(4, 1500, 1440, 6, 1500) if quick else peers.Size()
    report.figures += peers.evaluate(beside, seed)
    return report
