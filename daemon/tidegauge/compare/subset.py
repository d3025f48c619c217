"""The smallest set of changes that does: greedy, from nothing upwards or from everything downwards."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidegauge.compare.emulate import Change
from tidegauge.compare.layers import Layer
from tidegauge.compare.types import Advice, WhatIf

#: A change that lowers the output's error energy by less than this share gains nothing.
_NOTHING = 0.02


class Figures(Protocol):
    """What a set of changes (by float tensor) does to the output that is furthest off."""

    def figure(self, changes: Mapping[str, Change]) -> WhatIf: ...


@dataclass(frozen=True)
class Candidate:
    """A region with those that must change with it, and the lines that do it. `change`: of the region itself."""

    layer: Layer
    change: Change
    changes: Mapping[str, Change]
    lines: tuple[Advice, ...]


@dataclass(frozen=True)
class Step:
    candidate: Candidate
    after: WhatIf


def greedy(
    search: Figures,
    candidates: Sequence[Candidate],
    taken: Sequence[Step],
    before: WhatIf,
    target_db: float | None,
) -> list[Step]:
    """The candidate that removes most error, again and again, until the target is reached or none removes any.

    A gain once measured bounds a later one from above (errors add up), so that only the most promising candidate is
    measured again. Culprits (no target) are all taken, whatever they gain.
    """
    changes = together([step.candidate for step in taken])
    now, steps = last(taken, before), list[Step]()
    queue = [(-math.inf, number, 0) for number in range(len(candidates))]
    heapq.heapify(queue)
    figures: dict[int, WhatIf] = {}
    while queue and not (target_db is not None and reached(now, target_db)):
        gain, number, measured = heapq.heappop(queue)
        one = candidates[number]
        if gain == -math.inf or measured != len(steps):
            figures[number] = search.figure({**one.changes, **changes, one.layer.twin: one.change})
            heapq.heappush(queue, (_energy(figures[number]) - _energy(now), number, len(steps)))
            continue
        if target_db is not None and gain >= 0:
            break
        changes = {**one.changes, **changes, one.layer.twin: one.change}
        now = figures[number]
        steps.append(Step(one, now))
    return steps


def useful(search: Figures, steps: list[Step]) -> list[Step]:
    """Without the steps that gain nothing: a region may be wrong by less than the others round."""
    kept = list(steps)
    for step in reversed(steps):
        others = [s for s in kept if s is not step]
        all_of_them = _energy(search.figure(together([s.candidate for s in kept])))
        if _energy(search.figure(together([s.candidate for s in others]))) <= (1 + _NOTHING) * all_of_them:
            kept = others
    return steps if len(kept) == len(steps) else _again(search, kept)


def _again(search: Figures, steps: Sequence[Step]) -> list[Step]:
    """The figures of fewer steps."""
    taken = [step.candidate for step in steps]
    return [Step(one, search.figure(together(taken[: number + 1]))) for number, one in enumerate(taken)]


def leave_out(
    search: Figures, candidates: Sequence[Candidate], fixed: Sequence[Candidate], target_db: float
) -> list[Candidate]:
    """The other way round, for where single changes gain nothing without others: from all of them, leave out the one
    that costs least, again and again. Empty where not even all of them reach the target.

    A cost once measured bounds a later one from below (errors add up).
    """
    kept = list(candidates)
    if not reached(search.figure(together([*fixed, *kept])), target_db):
        return []
    queue = [(-1.0, number, -1) for number in range(len(candidates))]
    heapq.heapify(queue)
    round_ = 0
    while queue:
        _, number, measured = heapq.heappop(queue)
        others = [one for one in kept if one is not candidates[number]]
        if measured != round_:
            figure = search.figure(together([*fixed, *others]))
            if reached(figure, target_db):
                heapq.heappush(queue, (_energy(figure), number, round_))
            continue
        kept = others
        round_ += 1
    return kept


def pruned(search: Figures, steps: list[Step], before: WhatIf, target_db: float | None) -> list[Step]:
    """Without the steps that the target doesn't need once the later ones are there."""
    if target_db is None or not reached(last(steps, before), target_db):
        return steps
    kept = list(steps)
    for step in steps[:-1]:
        others = [s for s in kept if s is not step]
        if reached(search.figure(together([s.candidate for s in others])), target_db):
            kept = others
    return steps if len(kept) == len(steps) else _again(search, kept)


def together(candidates: Sequence[Candidate]) -> dict[str, Change]:
    """All their changes; what a region is given for its own sake goes before what another brings along."""
    own: dict[str, Change] = {one.layer.twin: one.change for one in candidates}
    return {name: change for one in candidates for name, change in one.changes.items()} | own


def last(steps: Sequence[Step], before: WhatIf) -> WhatIf:
    return steps[-1].after if steps else before


def _energy(figure: WhatIf) -> float:
    return 1e30 if figure.error is None else figure.error**2


def reached(figure: WhatIf, target_db: float) -> bool:
    return figure.error is not None and figure.error <= 10 ** (-target_db / 20)
