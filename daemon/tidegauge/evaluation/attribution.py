"""How often the verdict is right, on faults and changes drawn at random: all figures, each beside its goal."""

from __future__ import annotations

import math
import multiprocessing
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tidegauge.detectors.acceptance import AcceptanceRules
from tidegauge.evaluation.comparison import wilson
from tidegauge.evaluation.corpus import (
    CAMERA_SHARE,
    CLEAR_PSI,
    FULL,
    LOSS_ABOVE,
    QUICK,
    Group,
    Outcome,
    Sizes,
    cases,
    try_case,
)
from tidegauge.evaluation.figures import Figure, Report
from tidegauge.evaluation.pairs import Pair, models
from tidegauge.evaluation.stack import GAP, Freeze, settle

RIGHT_GOAL, FEWEST_CASES = 95.0, 100
GROUPS: dict[Group, str] = {
    "device": "faults of the device",
    "device on live inputs": "faults of the device that no stored input shows",
    "reference": "faults of the reference",
    "data": "changed scenes",
    "camera": "faulty cameras",
    "device and data": "faults of the device in a changed scene",
}
#: Bounds of the rate by size: mean loss of the faulty device less m0.
_SIZES = ((-1.0, 0.0), (0.0, 0.1), (0.1, 0.3), (0.3, 1.01))


class Part(NamedTuple):
    """What one process does: every `parts`-th case of a model, from the `part`-th on."""

    model: str
    sizes: Sizes
    seed: int
    part: int
    parts: int
    freeze: Freeze


def parts(quick: bool, seed: int, freeze: Freeze) -> list[Part]:
    """The enhancer's cases in several parts, so that no process works alone in the end."""
    sizes, count = (QUICK if quick else FULL), {"enhancer": 1 if quick else 3, "classifier": 1 if quick else 2}
    return [
        Part(name, sizes[name], seed, part, count[name], freeze) for name in models() for part in range(count[name])
    ]


def measure(part: Part) -> list[Outcome]:
    """The part's cases. Each has randomness of its own: figures do not depend on how cases are shared out."""
    key = [part.seed, list(models()).index(part.model)]
    with tempfile.TemporaryDirectory(prefix="tidegauge-evaluate-") as folder:
        pair = Pair(Path(folder), part.model, part.seed)
        settled = settle(pair, AcceptanceRules(samples=part.sizes.acceptance), part.freeze)
        drawn = list(enumerate(cases(pair, part.sizes, np.random.default_rng(key))))
        return [
            try_case(pair, settled, case, np.random.default_rng([*key, number]))
            for number, case in drawn[part.part :: part.parts]
        ]


def evaluate(
    freeze: Freeze, quick: bool, seed: int, jobs: int = 0, progress: Callable[[str], None] = lambda text: None
) -> Report:
    """`freeze`: the agent's. `seed` draws faults, sizes and pictures; figures do not depend on `jobs`."""
    context = multiprocessing.get_context("spawn")
    found: list[Outcome] = []
    chosen = parts(quick, seed, freeze)
    with ProcessPoolExecutor(jobs or os.cpu_count() or 1, mp_context=context) as pool:
        for part, outcomes in zip(chosen, pool.map(measure, chosen), strict=True):
            found += outcomes
            missed = [said(each) for each in outcomes if each.expected and not each.right]
            missed += [said(each) for each in outcomes if falsely_accused(each)]
            progress(f"{part.model}, part {part.part + 1} of {part.parts}: done" + "".join(f"; {m}" for m in missed))
    return Report(seed, quick, figures(found), [])


def said(outcome: Outcome) -> str:
    verdicts = ", ".join(dict.fromkeys(outcome.verdicts)) or "nothing"
    return f"missed {outcome.case.what}: {verdicts} (effect {outcome.effect:.3g})"


def falsely_accused(outcome: Outcome) -> bool:
    return outcome.case.group in ("data", "camera", "reference") and outcome.accuses_device


def figures(found: Sequence[Outcome]) -> list[Figure]:
    clear = [each for each in found if each.expected]
    group = "the right verdict, above the detectable size"
    result = [
        Figure("cases", "cases", len(found), "", FEWEST_CASES, ">=", _kinds(found)),
        _rate(group, "all", clear, RIGHT_GOAL),
    ]
    result += [_rate(group, words, [each for each in clear if each.case.group == key]) for key, words in GROUPS.items()]
    pure = [each for each in found if each.case.group in ("data", "camera")]
    blamed = sum(falsely_accused(each) for each in pure)
    result.append(
        Figure(
            "no fault of the device", "verdicts against it", blamed, "", 0, "<=", f"in {len(pure)} scenes and cameras"
        )
    )
    return [*result, *_by_size(found), *_below(found), *_delays(clear)]


def _kinds(found: Sequence[Outcome]) -> str:
    return ", ".join(f"{count} {group}" for group, count in Counter(each.case.group for each in found).items())


def _by_size(found: Sequence[Outcome]) -> list[Figure]:
    devices = [each for each in found if each.case.group == "device" and each.expected]
    result = []
    for low, high in _SIZES:
        part = [each for each in devices if low <= each.effect < high]
        if part:
            name = f"mean loss less m0 {'below 0' if low < 0 else f'{low:g} to {min(high, 1):g}'}"
            result.append(_rate("the right verdict by size, faults of the device", name, part))
    return result


def _below(found: Sequence[Outcome]) -> list[Figure]:
    """What is said of cases below the detectable size."""
    group = "below the detectable size"
    result = []
    for key, words in GROUPS.items():
        small = [each for each in found if each.case.group == key and not each.expected]
        first = Counter(each.verdicts[0] if each.verdicts else "nothing" for each in small)
        note = ", ".join(f"{verdict} {count}" for verdict, count in sorted(first.items()))
        result.append(Figure(group, words, len(small), "cases", note=note))
    return result


def _delays(clear: Sequence[Outcome]) -> list[Figure]:
    result = []
    for key, words in GROUPS.items():
        waits = [each.samples * GAP / 60 for each in clear if each.case.group == key and each.right]
        if waits:
            late = f"95 % within {np.quantile(waits, 0.95):.0f}, {len(waits)} cases"
            result.append(Figure("minutes to the right verdict", words, float(np.mean(waits)), "minutes", note=late))
    return result


def _rate(group: str, name: str, found: Sequence[Outcome], goal: float | None = None) -> Figure:
    return rate(group, name, [each.right for each in found], goal)


def rate(group: str, name: str, found: Sequence[bool], goal: float | None = None) -> Figure:
    """In per cent, with Wilson's interval; NaN (which meets no goal) without a case."""
    right, count = sum(found), len(found)
    low, high = wilson(right, count)
    note = f"{right} of {count}, 95 % interval {100 * low:.1f} to {100 * high:.1f} %"
    return Figure(group, name, 100 * right / count if count else math.nan, "%", goal, ">=", note)


def conditions() -> str:
    """What was fixed before any case was drawn, in words."""
    return (
        "Detectable: a fault of the device that changes a bit of a golden output or raises the mean loss to "
        f"m0 + {LOSS_ABOVE:g} or more (where no stored input shows it: the latter only); one of the reference that "
        f"changes a bit of its answer to a golden tensor; a scene in which a feature's PSI is {CLEAR_PSI:g} or more; "
        f"a camera whose condition holds in {CAMERA_SHARE:.0%} of its frames. The first verdict counts; scenes and "
        "cameras are watched to the end for one against the device."
    )
