"""The proof that the spool survives a power cut: many random histories, and each sync left out on purpose in turn."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tidegauge.evaluation.durability_history import FOLDER, ROOT, VIOLATIONS, Outcome, history
from tidegauge.evaluation.figures import Figure, Report
from tidegauge.spool.states import BUNDLES, DELETING, INCOMING, JOURNAL

#: Histories with one sync left out, of each kind, and the share of their steps that are cut.
MUTANTS, MUTANTS_SHARE = 40, 0.3


def role(kind: str, path: Path) -> str:
    """What a sync of the spool is of."""
    if path == ROOT:
        return "the folder of the spool's folder"
    parts = path.relative_to(FOLDER).parts
    if kind == "file":
        return "a journal's segment" if parts[0] == JOURNAL else "a blob" if "blobs" in parts else "the manifest"
    names: dict[tuple[int, str], str] = {
        (0, ""): "the spool's folder",
        (1, BUNDLES): "bundles/",
        (1, INCOMING): "incoming/",
        (1, DELETING): "deleting/",
        (1, JOURNAL): "journal/",
        (2, INCOMING): "a bundle's folder",
        (3, INCOMING): "a bundle's blobs/",
        (4, INCOMING): "a bundle's blobs/sha256/",
    }
    return names.get((len(parts), parts[0] if parts else ""), "")


ROLES = (
    "a blob",
    "the manifest",
    "a journal's segment",
    "the folder of the spool's folder",
    "the spool's folder",
    "bundles/",
    "incoming/",
    "deleting/",
    "journal/",
    "a bundle's folder",
    "a bundle's blobs/",
    "a bundle's blobs/sha256/",
)


def quiet() -> None:
    """The spool says what it finds after a cut, thousands of times."""
    logging.getLogger("tidegauge.spool").setLevel(logging.CRITICAL)


def histories(seeds: range, share: float = 1.0, dropped: str = "") -> Outcome:
    """Several. `dropped`: the role of the syncs that are left out."""
    total = Outcome(0, 0, 0, {})
    for seed in seeds:
        total.add(history(seed, share, (lambda kind, path: role(kind, path) == dropped) if dropped else None))
    return total


def evaluate(
    count: int,
    seed: int,
    jobs: int,
    progress: Callable[[str], None] = lambda text: None,
    share: float = 1.0,
    dropped: str = "",
    mutants: int = MUTANTS,
) -> Report:
    """`count` histories, cut at a `share` of their steps, and a few with each sync left out, which must be found.

    `dropped`: of `ROLES`, a sync that is left out of all of them: then goals are missed.
    """
    total = Outcome(0, 0, 0, {})
    size = max(1, count // 40)
    first = seed * 1_000_000
    blocks = [range(first + at, first + min(at + size, count)) for at in range(0, count, size)]
    with ProcessPoolExecutor(jobs or None, initializer=quiet) as pool:
        for part in pool.map(partial(histories, share=share, dropped=dropped), blocks):
            total.add(part)
            progress(f"{total.histories} histories, {total.cuts} cuts, {sum(total.found.values())} violations")
        left_out = list(pool.map(partial(_without, mutants), ROLES))
    figures = [
        Figure("power cuts", "histories", total.histories),
        Figure("power cuts", "cuts, each before a step of an operation", total.cuts),
    ]
    figures += [
        Figure("power cuts", words, float(total.found.get(name, 0)), goal=0.0, relation="<=")
        for name, words in VIOLATIONS.items()
    ]
    if total.first:
        progress(f"the first violation: {total.first}")
    figures += [
        Figure("a sync left out, on purpose", each, float(sum(found.values())), "violations", 1.0, ">=", _words(found))
        for each, found in left_out
    ]
    return Report(seed, False, figures, [])


def _without(number: int, dropped: str) -> tuple[str, dict[str, int]]:
    return dropped, histories(range(number), MUTANTS_SHARE, dropped).found


def _words(found: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(found.items()))
