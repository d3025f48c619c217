"""Byte ranges against sets of integers."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tidegauge.link import ranges

SIZE = 24
pairs = st.lists(st.tuples(st.integers(-3, SIZE + 3), st.integers(-3, SIZE + 3)), max_size=8)


def as_set(parts: ranges.Ranges) -> set[int]:
    return {byte for start, stop in parts for byte in range(start, stop)}


def assert_canonical(parts: ranges.Ranges) -> None:
    """Sorted, not empty, and with a gap between neighbours."""
    assert all(start < stop for start, stop in parts)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(parts))


@given(pairs)
def test_merged_and_missing(raw: list[tuple[int, int]]) -> None:
    parts = ranges.merged(raw, SIZE)
    assert_canonical(parts)
    expected = {byte for start, stop in raw for byte in range(max(0, start), min(SIZE, stop))}
    assert as_set(parts) == expected
    gaps = ranges.missing(parts, SIZE)
    assert_canonical(gaps)
    assert as_set(gaps) == set(range(SIZE)) - expected
    assert ranges.total(parts) == len(expected)
    assert ranges.first_gap(parts, SIZE) == min(set(range(SIZE)) - expected, default=None)


@given(pairs, st.integers(0, SIZE), st.integers(0, SIZE))
def test_add_covers(raw: list[tuple[int, int]], start: int, stop: int) -> None:
    parts = ranges.merged(raw, SIZE)
    wanted = set(range(start, stop))
    assert ranges.covers(parts, start, stop) == (wanted <= as_set(parts))
    grown = ranges.add(parts, start, stop)
    assert_canonical(grown)
    assert as_set(grown) == as_set(parts) | wanted


@given(pairs, pairs)
def test_union(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    one, two = ranges.merged(left, SIZE), ranges.merged(right, SIZE)
    both = ranges.union(one, two)
    assert_canonical(both)
    assert as_set(both) == as_set(one) | as_set(two)
