"""Half-open byte ranges `(start, stop)`, sorted, disjoint and merged: which part of a file is there."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Range = tuple[int, int]
Ranges = tuple[Range, ...]


def add(ranges: Ranges, start: int, stop: int) -> Ranges:
    """`ranges` with `[start, stop)` merged in; touching ranges become one. An empty range changes nothing."""
    if start >= stop:
        return ranges
    low = bisect_left(ranges, start, key=lambda item: item[1])
    high = bisect_right(ranges, stop, key=lambda item: item[0])
    if low < high:
        start, stop = min(start, ranges[low][0]), max(stop, ranges[high - 1][1])
    return (*ranges[:low], (start, stop), *ranges[high:])


def merged(pairs: Iterable[Range], size: int) -> Ranges:
    """Ranges from anywhere, in any order and with any numbers, clipped to `[0, size)` and merged."""
    out: list[Range] = []
    for start, stop in sorted((max(0, start), min(size, stop)) for start, stop in pairs):
        if start >= stop:
            continue
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], stop))
        else:
            out.append((start, stop))
    return tuple(out)


def union(left: Ranges, right: Ranges) -> Ranges:
    """What is in either."""
    stop = max((ranges[-1][1] for ranges in (left, right) if ranges), default=0)
    return merged((*left, *right), stop)


def missing(ranges: Ranges, size: int) -> Ranges:
    """The gaps of `ranges` in `[0, size)`."""
    gaps: list[Range] = []
    at = 0
    for start, stop in ranges:
        if at < min(start, size):
            gaps.append((at, min(start, size)))
        at = max(at, stop)
    if at < size:
        gaps.append((at, size))
    return tuple(gaps)


def first_gap(ranges: Ranges, size: int) -> int | None:
    """The first byte of `[0, size)` that isn't in `ranges`; None where all are."""
    at = ranges[0][1] if ranges and ranges[0][0] == 0 else 0
    return at if at < size else None


def covers(ranges: Ranges, start: int, stop: int) -> bool:
    """Whether every byte of `[start, stop)` is in `ranges`."""
    if start >= stop:
        return True
    at = bisect_right(ranges, start, key=lambda item: item[0]) - 1
    return at >= 0 and ranges[at][1] >= stop


def total(ranges: Ranges) -> int:
    """Number of bytes in `ranges`."""
    return sum(stop - start for start, stop in ranges)
