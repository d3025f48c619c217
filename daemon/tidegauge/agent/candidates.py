"""Which shadow samples become golden tensors: the first, the darkest and the brightest, and one of each context. Pure.

The candidates are part of the state, so that an acceptance that goes on after a restart chooses among all it has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from tidegauge.agent.events import Evidence
from tidegauge.agent.state import Candidate, Golden

FIRST, DARKEST, BRIGHTEST = "first", "darkest", "brightest"


def roles(held: tuple[Candidate, ...], level: float, context: str) -> tuple[str, ...]:
    """The roles that a new pair would take from those who hold them, or take as the first."""
    by_role = {each.role: each.level for each in held}
    taken = [] if FIRST in by_role else [FIRST]
    if level < by_role.get(DARKEST, float("inf")):
        taken.append(DARKEST)
    if level > by_role.get(BRIGHTEST, float("-inf")):
        taken.append(BRIGHTEST)
    if context not in by_role:
        taken.append(context)
    return tuple(taken)


def chosen(held: tuple[Candidate, ...], count: int) -> tuple[Golden, ...]:
    """At most `count` different tensors, those of the first roles first, numbered from 0."""
    order = [FIRST, DARKEST, BRIGHTEST]
    ranked = sorted(held, key=lambda each: order.index(each.role) if each.role in order else len(order))
    different: dict[str, Golden] = {}
    for each in ranked:
        different.setdefault(each.golden.sha256, msgspec.structs.replace(each.golden, role=each.role))
    kept = list(different.values())[:count]
    return tuple(msgspec.structs.replace(golden, index=index) for index, golden in enumerate(kept))


def coverage(golden: Iterable[Golden], seen: Iterable[Mapping[str, tuple[float, float]]]) -> dict[str, float]:
    """Which share of the range that each tensor had in all `seen` samples lies between the golden set's least and most.

    A tensor that never varied is covered as a whole; one that no golden tensor has is left out.
    """
    whole = _spans(seen)
    found = {}
    for name, (low, high) in _spans(each.ranges for each in golden).items():
        if name in whole:
            least, most = whole[name]
            width = most - least
            found[name] = (min(high, most) - max(low, least)) / width if width > 0 else 1.0
    return found


def _spans(ranges: Iterable[Mapping[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for each in ranges:
        for name, (low, high) in each.items():
            least, most = found.get(name, (low, high))
            found[name] = (min(low, least), max(high, most))
    return found


class Spans:
    """Least and most of each tensor so far."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}

    def widened(self, ranges: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        """Those of `ranges` that reach beyond what is known, which takes them in."""
        found = {}
        for name, (low, high) in ranges.items():
            least, most = self._known.get(name, (np.inf, -np.inf))
            if low < least or high > most:
                found[name] = (low, high)
                self._known[name] = (min(low, least), max(high, most))
        return found


def level(evidence: Evidence) -> float:
    """How bright an input is: the mean of its bytes' most significant parts is enough to choose by."""
    data = np.frombuffer(evidence.inputs[0], np.uint8)
    return float(data[3::4].mean()) if data.size >= 4 else float(data.mean())
