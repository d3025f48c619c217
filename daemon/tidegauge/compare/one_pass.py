"""A device tensor and its reference read once: the compiled sweep over lines, in parts that cores share.

Parts depend on the shape alone, and are added up in their order: the sums are the same with any number of cores.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.machine_code import DTYPES, sweep

Array = NDArray[Any]
Float64 = NDArray[np.float64]

#: What the sweep gives, in its order.
TOTALS = ("count", "d", "abs_d", "d2", "g", "g2", "dg", "max_d", "low", "high", "device_bad", "reference_bad")
_COUNTS = ("count", "low", "high", "device_bad", "reference_bad")
_MAX, _LEAST, _MOST = TOTALS.index("max_d"), len(TOTALS), len(TOTALS) + 1
#: Rows shorter than this are swept a plane at a time, where a plane is no larger than this.
_SHORT, _PLANE = 256, 16384
#: Elements of a line where lines mean nothing.
_FLAT = 4096
#: Elements that make a part worth a thread, and how many parts there are at most.
_PART, _PARTS = 1 << 18, 8


@dataclass(frozen=True)
class Grid:
    """A flat tensor as lines: rows of one channel, planes of one channel, or (neither) pieces without meaning.

    `rest`: elements after the last whole line.
    """

    lines: int
    width: int
    rest: int = 0
    planes: bool = False

    def parts(self) -> list[tuple[int, int, int]]:
        """(first element, lines, width) of each part."""
        wanted = max(1, min(_PARTS, self.lines, self.lines * self.width // _PART))
        ends = [self.lines * i // wanted for i in range(wanted + 1)]
        found = [(a * self.width, b - a, self.width) for a, b in itertools.pairwise(ends) if b > a]
        return [*found, (self.lines * self.width, 1, self.rest)] if self.rest else found


@dataclass(frozen=True)
class Terms:
    """value = (code - zero_point) · inverse; `pivot` is taken from the reference; `low` and `high` codes are counted,
    where they differ."""

    inverse: float
    zero_point: int
    pivot: float
    low: int = 0
    high: int = 0


@dataclass(frozen=True)
class Found:
    """`totals` by name. `lines`, `columns`: Σd² and Σf² (rows 0 and 1) by line and by place in a line; Σf² by place is
    known for planes only. `least`, `most`: the reference's smallest and largest value, not a number where one is none.
    """

    totals: dict[str, Any]
    lines: Float64
    columns: Float64
    least: float
    most: float


def shaped(channels: int, height: int, width: int) -> Grid:
    """The grid that tells rows, columns and channels of such a tensor."""
    if width < _SHORT and height * width <= _PLANE:
        return Grid(channels, height * width, planes=True)
    return Grid(channels * height, width)


def flat(size: int) -> Grid:
    """The grid where only totals are wanted."""
    return Grid(size // _FLAT, _FLAT, size % _FLAT)


def run(codes: Array, reference: Array, terms: Terms, grid: Grid) -> Found:
    """Sweep over all of the grid. Any shape; types other than the usual ones are converted to float32."""
    device = np.ascontiguousarray(codes).reshape(-1)
    if device.dtype.name not in DTYPES or not device.dtype.isnative:
        device = device.astype(np.float32)
    with np.errstate(over="ignore"):
        other = np.ascontiguousarray(reference, np.float32).reshape(-1)
    function, parts = sweep(device.dtype.name), grid.parts()
    swept = _share([lambda part=part: _part(function, device, other, terms, grid.planes, *part) for part in parts])  # type: ignore[misc]
    if not swept:
        return Found(dict.fromkeys(TOTALS, 0), np.zeros((2, 0)), np.zeros((2, 0)), math.inf, -math.inf)
    outs = np.stack([out for _, _, out in swept])
    totals: dict[str, Any] = dict(zip(TOTALS, outs.sum(axis=0).tolist(), strict=False))
    totals["max_d"] = float(outs[:, _MAX].max())
    totals |= {name: int(totals[name]) for name in _COUNTS}
    columns = swept[0][1]
    for _, more, _ in swept[1:]:
        if more.shape == columns.shape:
            columns = columns + more
    lines = np.concatenate([line for line, _, _ in swept], axis=1)
    # NaNs of one sign lie below all numbers, those of the other above.
    least, most = _value(outs[:, _LEAST].min()), _value(outs[:, _MOST].max())
    broken = math.isnan(least) or math.isnan(most)
    return Found(totals, lines, columns, math.nan if broken else least, math.nan if broken else most)


def _part(
    function: Callable[..., int],
    device: Array,
    other: Array,
    terms: Terms,
    planes: bool,
    first: int,
    lines: int,
    width: int,
) -> tuple[Float64, Float64, Float64]:
    by_line, columns, narrow = np.zeros((2, lines)), np.zeros((2, width)), np.zeros((4, width), np.float32)
    out = np.zeros(len(TOTALS) + 2)
    out[_LEAST], out[_MOST] = 2**31 - 1, -(2**31)
    nothing = np.zeros(2, np.uintp)
    function(
        nothing[:1].ctypes.data,
        nothing[1:].ctypes.data,
        device.ctypes.data + first * device.itemsize,
        other.ctypes.data + first * other.itemsize,
        lines,
        width,
        int(planes),
        terms.inverse,
        float(terms.zero_point),
        terms.pivot,
        float(terms.low),
        float(terms.high),
        by_line.ctypes.data,
        columns.ctypes.data,
        narrow.ctypes.data,
        out.ctypes.data,
    )
    return by_line, columns, out


def _value(key: float) -> float:
    """The float32 whose order among integers this is."""
    bits = np.asarray(key, np.int64).astype(np.int32)
    turned = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    return float(turned.view(np.float32))


# --- threads -----------------------------------------------------------------------------------------------------


def _share(tasks: Sequence[Callable[[], tuple[Float64, Float64, Float64]]]) -> list[tuple[Float64, Float64, Float64]]:
    """Do all, on every core that this process may use; results in the order of the tasks."""
    helpers = min(len(os.sched_getaffinity(0)), len(tasks)) - 1
    if helpers < 1:
        return [task() for task in tasks]
    todo, results = iter(range(len(tasks))), dict[int, tuple[Float64, Float64, Float64]]()

    def work() -> None:
        for number in todo:  # one step of this iterator is one step of the interpreter: no two get the same
            results[number] = tasks[number]()

    started = [_pool(os.getpid()).submit(work) for _ in range(helpers)]
    work()
    for one in started:
        if not one.cancel():  # not begun: nothing is left to do
            one.result()
    return [results[number] for number in range(len(tasks))]


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """The threads of this process: those of its parent are not in a fork."""
    return ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) - 1), "tidegauge-statistics")
