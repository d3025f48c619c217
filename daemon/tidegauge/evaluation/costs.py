"""What single parts cost, as ratios in one run: a detector's update, the statistics of a frame; and the overhead."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from tidegauge.detectors.betting import BettingDetector
from tidegauge.evaluation.figures import Figure, Report
from tidegauge.evaluation.overhead import LOOPS, Loops, Measured, Run, Size, measure
from tidegauge.losses.output_stats import output_stats

#: Goals: microseconds of an update; statistics in reads of the same bytes, and as a share of a frame at 30 a second.
UPDATE_GOAL, STATISTICS_GOAL, FRAME_GOAL, FRAMES_A_SECOND = 5.0, 12.0, 1.0, 30.0
#: Missed when the whole interval of the ratio is below, or above.
RATE_GOAL, LATE_GOAL = 0.98, 1.05
SHAPE = (1, 3, 400, 600)
#: 97.5 % of Student's t by degrees of freedom, from 1 on; beyond them the normal law.
STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
STUDENT_MORE, NORMAL = (2.120, 2.110, 2.101, 2.093, 2.086), 1.96


def cpu_seconds(work: Callable[[], object], repeats: int = 15, least: float = 0.02) -> float:
    """CPU time of one call, the best of several repeats: others on the machine disturb it little."""
    work()
    count, best = 1, math.inf
    while repeats:
        started = time.process_time()
        for _ in range(count):
            work()
        spent = time.process_time() - started
        if spent < least:
            count *= 2
            continue
        best, repeats = min(best, spent / count), repeats - 1
    return best


def costs() -> list[Figure]:
    """Of one update of a detector, and of one frame's statistics with a share of it at either end of the range."""
    detector = BettingDetector("loss", 0.05, 1.9e-6)
    update = cpu_seconds(lambda: detector.update(0.01)) * 1e6
    output = np.clip(np.random.default_rng(0).normal(0.5, 0.4, SHAPE), 0, 1).astype(np.float32)
    flat = output.reshape(-1)
    read, statistics = (
        cpu_seconds(lambda: np.dot(flat, flat)),
        cpu_seconds(lambda: output_stats("enhanced", output, 0.0, 1.0)),
    )
    words = f"{SHAPE[3]} × {SHAPE[2]} × {SHAPE[1]} float32"
    return [
        Figure("cost", "one update of a detector", update, "µs", UPDATE_GOAL, "<="),
        Figure(
            "cost",
            f"statistics of every frame, {words}",
            statistics / read,
            "× np.dot(x, x)",
            STATISTICS_GOAL,
            "<=",
            f"{statistics * 1e6:.0f} µs against {read * 1e6:.0f} µs",
        ),
        Figure(
            "cost",
            f"of a frame at {FRAMES_A_SECOND:.0f} a second",
            100 * statistics * FRAMES_A_SECOND,
            "%",
            FRAME_GOAL,
            "<=",
        ),
    ]


def ratio(ours: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of the ratios of pairs, and its 95 % interval (Student's t on logarithms)."""
    logs = np.log(np.asarray(ours) / np.asarray(others))
    if logs.size < 2:
        return float(np.exp(logs.mean())), 0.0, math.inf
    t = (*STUDENT, *STUDENT_MORE)[logs.size - 2] if logs.size - 2 < len(STUDENT) + len(STUDENT_MORE) else NORMAL
    half = t * float(logs.std(ddof=1)) / math.sqrt(logs.size)
    middle = float(logs.mean())
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def overhead_figures(found: Measured, size: Size) -> list[Figure]:
    """Rates and latencies of each loop, then their ratios to the bare loop, the bare loop's to itself first."""
    group = (
        f"the demo's enhancer, {size.rounds} rounds of {size.frames} frames, a device run of {size.device * 1e3:.1f} ms"
    )
    figures = []
    for name in LOOPS:
        runs = found.runs[name]
        figures.append(Figure(group, f"{name}: frames a second", float(np.mean([run.rate for run in runs]))))
        for share in (0.5, 0.99):
            late = float(np.mean([run.quantile(share) for run in runs])) * 1e3
            figures.append(Figure(group, f"{name}: latency, {100 * share:.0f} %", late, "ms"))
    figures.append(
        Figure(group, "shadow worker", 100 * found.shadow_cpu, "% of a core", note=f"{found.samples} samples")
    )
    for name in LOOPS[1:]:
        goals = name != LOOPS[1]
        figures += [
            _ratio(found, name, "frames a second", lambda run: run.rate, RATE_GOAL if goals else None),
            _ratio(found, name, "latency, 50 %", lambda run: run.quantile(0.5), None),
            _ratio(found, name, "latency, 99 %", lambda run: run.quantile(0.99), LATE_GOAL if goals else None),
        ]
    return figures


def _ratio(found: Measured, name: Loops, what: str, value: Callable[[Run], float], goal: float | None) -> Figure:
    """The end of the interval that the goal is about stands beside it: a goal is missed when all of it lies beyond."""
    middle, low, high = ratio([value(run) for run in found.runs[name]], [value(run) for run in found.runs[LOOPS[0]]])
    words = f"ratio {middle:.4f}, 95 % interval {low:.4f} to {high:.4f}"
    group = "ratio to the bare loop, in pairs"
    if goal is None:
        return Figure(group, f"{name}: {what}", middle, note=words)
    rate = goal == RATE_GOAL
    end = high if rate else low
    return Figure(group, f"{name}: {what}", end, "at best", goal, ">=" if rate else "<=", words)


def evaluate(size: Size, quick: bool, progress: Callable[[str], None] = lambda text: None) -> Report:
    """Times of this machine."""
    return Report(0, quick, [*costs(), *overhead_figures(measure(size, progress), size)], [])
