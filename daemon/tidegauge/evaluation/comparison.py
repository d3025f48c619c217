"""All figures of the layer comparison: faults drawn at random on the virtual board, each beside its goal."""

from __future__ import annotations

import math
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tidegauge.evaluation.figures import Figure, Report
from tidegauge.evaluation.independent_trial import (
    Device,
    Habit,
    Independent,
    devices,
    habit_figures,
    habits,
    independent_figures,
    lite_missing,
    try_device,
)
from tidegauge.evaluation.networks import NETWORKS
from tidegauge.evaluation.operator_trial import Imports, try_imports
from tidegauge.evaluation.oracle_trial import Oracle, oracle_figures, try_oracle
from tidegauge.evaluation.trial import (
    BITS,
    CAUSES,
    CHANGED,
    CHANGED_BY_TWO,
    CHANGED_OVER_NOISE,
    GROSS,
    NOISE,
    Bench,
    Bits,
    Outcome,
    build,
    draw,
    healthy,
    make_noisy,
    try_faults,
    value_of,
)

HIT_GOAL, CAUSE_GOAL = 95.0, 90.0
#: Sets, and the families of faults (`trial.KINDS`) of which each case draws one.
SETS: dict[str, tuple[str, ...]] = {
    "gross, at outputs": ("gross",),
    "mild, at outputs": ("mild",),
    "inside the arithmetic": ("inside",),
    "two at once": ("any", "any"),
}
NOISY = "on a noisy 6-bit device"
IMPORTS = "of the import: an operator taken for another"
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
    """Outcomes by set, and what healthy runs and the smallest faults showed."""

    board: Board
    outcomes: dict[str, list[Outcome]]
    oracle: Oracle
    habits: dict[str, Habit]


def boards(quick: bool, seed: int) -> list[Board]:
    """Every network at every width; quick: fewer cases and healthy inputs, the same code."""
    found = []
    for network in NETWORKS:
        for bits in BITS:
            cases = (2 if quick else 7) if bits != "6 bit" else (3 if quick else 21)
            found.append(Board(network, bits, cases, 2 if quick else 20 if bits == "8 bit" else 7, seed))
    return found


def evaluate(quick: bool, seed: int, jobs: int = 0, progress: Callable[[str], None] = lambda text: None) -> Report:
    """`seed` draws layers, kinds, sizes and pictures; figures do not depend on `jobs`."""
    context = multiprocessing.get_context("spawn")
    results, others, imports = [], [], list[Outcome]()
    with ProcessPoolExecutor(jobs or os.cpu_count() or 1, mp_context=context) as pool:
        independent = [pool.submit(_independent, device) for device in devices(quick, seed)]
        mistaken = [pool.submit(try_imports, Imports(name, 2 if quick else 20, seed)) for name in NETWORKS]
        for result in pool.map(measure, boards(quick, seed)):
            results.append(result)
            words = _complaints(result.outcomes.items(), result.oracle.false)
            progress(f"{result.board.network}, {result.board.bits}: done{words}")
        for future in independent:
            other = future.result()
            others.append(other)
            progress(f"{other.device}: done" + _complaints([(other.device, other.outcomes)], other.false))
        for name, task in zip(NETWORKS, mistaken, strict=True):
            found = task.result()
            imports += found
            progress(f"{name}, mistaken imports: done" + _complaints([(IMPORTS, found)], ()))
    missing = lite_missing()
    return Report(seed, quick, _figures(results, others, imports), [missing] if missing is not None else [])


def _independent(device: Device) -> Independent:
    with tempfile.TemporaryDirectory(prefix="tidegauge-evaluate-") as folder:
        return try_device(Path(folder), device)


def _complaints(sets: Iterable[tuple[str, list[Outcome]]], false: Iterable[str]) -> str:
    lines = []
    for name, found in sets:
        for case in found:
            right = case.both if name == "two at once" else case.hit
            if case.detectable and (not right or case.cause is False):
                what = "missed" if not right else "another cause"
                lines.append(f"\n  {what}, {name}: {case.what} ({case.changed:.2%} changed); named {case.named}")
    return "".join([*lines, *(f"\n  false culprit: {layer}" for layer in false)])


def measure(board: Board) -> Result:
    """All cases of one board."""
    outcomes: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory(prefix="tidegauge-evaluate-") as folder:
        bench = build(Path(folder), board.network, board.bits)
        runs = list(healthy(bench, range(board.healthy)))
        oracle = try_oracle(bench, board.bits, runs, np.random.default_rng(_key(board, 99)))
        if board.bits == "6 bit":
            make_noisy(bench)
            oracle = oracle.with_runs(healthy(bench, range(100, 100 + board.healthy)))
            outcomes[NOISY] = _cases(board, bench, ("any",), 98)
        else:
            for number, (name, families) in enumerate(SETS.items()):
                outcomes[name] = _cases(board, bench, families, number)
    return Result(board, outcomes, oracle, habits(runs) if board.bits == "8 bit" else {})


def _key(board: Board, number: int) -> list[int]:
    return [board.seed, list(NETWORKS).index(board.network), BITS.index(board.bits), number]


def _cases(board: Board, bench: Bench, families: Sequence[str], number: int) -> list[Outcome]:
    random = np.random.default_rng(_key(board, number))
    found: list[Outcome] = []
    for _ in range(board.cases * _TRIES):
        if len(found) == board.cases:
            break
        drawn = [draw(random, bench, family) for family in families]
        faults = [fault for fault in drawn if fault is not None]
        picture = int(random.integers(1000, 1 << 20))
        if len({fault.layer for fault in faults}) < len(drawn):
            continue
        outcome = try_faults(bench, faults, value_of(bench, picture))
        if outcome is not None:
            found.append(outcome)
    return found


def _figures(results: Sequence[Result], others: Sequence[Independent], imports: Sequence[Outcome] = ()) -> list[Figure]:
    found: list[Figure] = []
    for name in (*SETS, NOISY):
        found += _set(name, [outcome for result in results for outcome in result.outcomes.get(name, [])])
    if imports:
        found += _set(IMPORTS, imports)
    found += oracle_figures([(result.board.bits, result.oracle) for result in results])
    found += independent_figures(others, _set)
    rows = [("twin", result.habits) for result in results]
    return found + habit_figures([*rows, *((other.device, other.habits) for other in others)])


def _set(name: str, cases: Sequence[Outcome]) -> list[Figure]:
    group = f"Faults {name}" if name != "two at once" else "Two faults at once"
    able = [case for case in cases if case.detectable]
    two = name == "two at once"
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


def conditions() -> str:
    """What was fixed before any case was drawn, in words."""
    kinds = ", ".join(CAUSES)
    return (
        f"Detectable: a share of {CHANGED * 100:g} % of the layer's codes changed, or {CHANGED_BY_TWO} codes by two or "
        f"more. The noisy device has {NOISE:.0%} of all codes off by one, and a baseline of healthy runs; there a "
        f"fault must change {CHANGED_OVER_NOISE:.0%} and {CHANGED_BY_TWO} codes, or {CHANGED_BY_TWO} codes by two. "
        f"Gross: from {GROSS:.0%} of a tensor's range; mild: from one code to that. Causes are judged for {kinds}. A "
        "layer called wrong without effect on the output counts as named."
    )
