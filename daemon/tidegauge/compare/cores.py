"""Pieces of work done on every core that this process may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

Piece = TypeVar("Piece")
Done = TypeVar("Done")


def count() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def share(work: Callable[[Piece], Done], pieces: Sequence[Piece]) -> list[Done]:
    """Do all pieces; results in their order. Each core takes the next piece when it is done with one.

    Raises what `work` raises, when no piece is under way any more.
    """
    if len(pieces) < 2:
        return [work(piece) for piece in pieces]
    helpers = min(count(), len(pieces)) - 1
    todo, results = iter(range(len(pieces))), dict[int, Done]()

    def some() -> None:
        for number in todo:  # one step of this iterator is one step of the interpreter: no two get the same
            results[number] = work(pieces[number])

    started = [_pool(os.getpid()).submit(some) for _ in range(helpers)]
    try:
        some()
    finally:
        failed = [one.exception() for one in started if not one.cancel()]  # not begun: nothing is left to do
    for error in failed:
        if error is not None:
            raise error
    return [results[number] for number in range(len(pieces))]


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """The threads of this process: those of its parent are not in a fork."""
    return ThreadPoolExecutor(max(1, count() - 1), "tidegauge-compare")
