"""Heap lines of TI's statistics."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.tidl.heap_stats import Heap, parse

names = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789", min_size=1, max_size=16)
counts = st.integers(0, 2**40)


@settings(max_examples=60)
@given(st.lists(st.tuples(names, counts, counts), max_size=5))
def test_what_is_printed_is_read(heaps: list[tuple[str, int, int]]) -> None:
    lines = ["APP: Init ... !!!"]
    for name, size, free in heaps:
        lines.append(
            f"CPU: {'c7x_1':>6}: HEAP: {name:>16}: size = {size:10d} B, free = {free:10d} B ({50:3d} % unused)"
        )
    assert parse("\r\n".join(lines)) == tuple(Heap("c7x_1", name, size, free) for name, size, free in heaps)


@settings(max_examples=60)
@given(st.text(max_size=400))
def test_anything_else_is_passed_over(text: str) -> None:
    assert isinstance(parse(text), tuple)
    assert parse("CPU: mcu1_0: TOTAL LOAD =   1. 0 % ( HWI =   0. 0 %, SWI =   0. 0 % )") == ()
