"""All figures of the layer comparison: faults drawn at random on the virtual board, each beside its goal."""

from __future__ import annotations

import math
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tidegauge.evaluation.figures import Figure, NotRun, Report
from tidegauge.evaluation.networks import NETWORKS
from tidegauge.evaluation.trial import (
    BITS,
    CAUSES,
    CHANGED,
    CHANGED_BY_TWO,
    Bits,
    Outcome,
    build,
    draw,
    false_culprits,
    try_faults,
    value_of,
)

HIT_GOAL, CAUSE_GOAL = 95.0, 90.0
SETS = ("at outputs", "inside the arithmetic", "two at once")
#: Bounds of the hit rate by size: share of the layer's codes that the fault changes.
_SIZES = ((0.0, 1e-3), (1e-3, 1e-2), (1e-2, 1e-1), (1e-1, 1.01))
_TRIES = 20


class Board(NamedTuple):
    """What one process does: a network at some bits, so many cases a set and healthy inputs."""

    network: str
    bits: Bits
    cases: int
    healthy: int
    seed: int


class Result(NamedTuple):
    """Outcomes by set, and the number of false culprits."""

    board: Board
    outcomes: dict[str, list[Outcome]]
    false: int


def boards(quick: bool, seed: int) -> list[Board]:
    """Every network at every width; quick: fewer cases and healthy inputs, the same code."""
    cases, healthy = (3, 2) if quick else (12, 20)
    return [Board(network, bits, cases, healthy, seed) for network in NETWORKS for bits in BITS]


def evaluate(quick: bool, seed: int, jobs: int = 0, progress: Callable[[str], None] = lambda text: None) -> Report:
    """`seed` draws layers, kinds, sizes and pictures; figures do not depend on `jobs`."""
    context = multiprocessing.get_context("spawn")
    results = []
    with ProcessPoolExecutor(jobs or os.cpu_count() or 1, mp_context=context) as pool:
        for result in pool.map(measure, boards(quick, seed)):
            results.append(result)
            missed = [o.what for found in result.outcomes.values() for o in found if o.detectable and not o.hit]
            progress(f"{result.board.network}, {result.board.bits}: done" + "".join(f"; missed {w}" for w in missed))
    return Report(seed, quick, _figures(results), _not_run())


def measure(board: Board) -> Result:
    """All cases of one board."""
    key = [board.seed, list(NETWORKS).index(board.network), BITS.index(board.bits)]
    outcomes: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory(prefix="tidegauge-evaluate-") as folder:
        bench = build(Path(folder), board.network, board.bits)
        for number, name in enumerate(SETS):
            random = np.random.default_rng([*key, number])
            found: list[Outcome] = []
            for _ in range(board.cases * _TRIES):
                if len(found) == board.cases:
                    break
                first = draw(random, bench, inside=number == 1)
                second = draw(random, bench, inside=bool(random.integers(2))) if number == 2 else None
                if first is None or (second is not None and second.layer == first.layer):
                    continue
                faults = [first] if second is None else [first, second]
                outcome = try_faults(bench, faults, value_of(bench, int(random.integers(100, 1 << 20))))
                if outcome is not None:
                    found.append(outcome)
            outcomes[name] = found
        return Result(board, outcomes, false_culprits(bench, board.healthy))


def _figures(results: Sequence[Result]) -> list[Figure]:
    found: list[Figure] = []
    for name in SETS:
        cases = [outcome for result in results for outcome in result.outcomes[name]]
        found += _set(name, cases)
    runs = sum(result.board.healthy for result in results)
    false = sum(result.false for result in results)
    found.append(Figure("Healthy inputs", "false culprits", false, f"in {runs} runs", 0, "<="))
    return found


def _set(name: str, cases: Sequence[Outcome]) -> list[Figure]:
    group = f"Faults {name}" if name != SETS[2] else "Two faults at once"
    able = [case for case in cases if case.detectable]
    two = name == SETS[2]
    hits = sum(case.both if two else case.hit for case in able)
    title = "both named, and nothing else" if two else "culprit right (first named)"
    found = [_rate(group, title, hits, len(able), HIT_GOAL)]
    caused = [case for case in able if case.cause is not None]
    if caused:
        right = sum(bool(case.cause) for case in caused)
        found.append(_rate(group, "layer and cause right", right, len(caused), CAUSE_GOAL))
    for low, high in _SIZES:
        part = [case for case in cases if low <= case.changed < high]
        if part:
            title = f"named, {low * 100:g} to {min(high, 1) * 100:g} % of codes changed"
            found.append(_rate(group, title, sum(case.both if two else case.hit for case in part), len(part), None))
    return found


def _rate(group: str, name: str, right: int, cases: int, goal: float | None) -> Figure:
    """In per cent; NaN (which meets no goal) without a case."""
    value = 100 * right / cases if cases else math.nan
    low, high = wilson(right, cases)
    note = f"{right} of {cases}, 95 % interval {100 * low:.1f} to {100 * high:.1f} %"
    return Figure(group, name, value, "%", goal, ">=", note)


def wilson(right: int, cases: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a share (E. B. Wilson, JASA 22, 1927); 0 to 1 without a case."""
    if not cases:
        return 0.0, 1.0
    share = right / cases
    middle = (share + z * z / (2 * cases)) / (1 + z * z / cases)
    half = z / (1 + z * z / cases) * math.sqrt(share * (1 - share) / cases + z * z / (4 * cases * cases))
    return max(0.0, middle - half), min(1.0, middle + half)


def _not_run() -> list[NotRun]:
    return [
        NotRun("Independent devices", "integer kernels of ONNX Runtime and LiteRT", "no such device is written yet"),
        NotRun("Architectures", "single-shot detector, transformer block", "not among the networks yet"),
    ]


def conditions() -> str:
    """What was fixed before any case was drawn, in words."""
    kinds = ", ".join(CAUSES)
    return (
        f"Detectable: a share of {CHANGED * 100:g} % of the layer's codes changed, or {CHANGED_BY_TWO} codes by two or "
        f"more. Causes are judged for {kinds}. A layer called wrong without effect on the output counts as named."
    )
