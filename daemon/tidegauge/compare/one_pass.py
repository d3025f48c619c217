"""A device tensor and its reference read once: the compiled sweep over lines, in parts that cores share.

Parts depend on the shape alone, and are added up in their order: the sums are the same with any number of cores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.cores import share
from tidegauge.compare.machine_code import DTYPES, sweep

Array = NDArray[Any]
Float64 = NDArray[np.float64]

#: Sums by line, by place in a line, and in all, of one part.
Swept = tuple[Float64, Float64, Float64]

#: What the sweep gives, in its order.
TOTALS = ("count", "d", "abs_d", "d2", "g", "g2", "dg", "max_d", "low", "high", "device_bad", "reference_bad")
_COUNTS = ("count", "low", "high", "device_bad", "reference_bad")
_MAX, _LEAST, _MOST = TOTALS.index("max_d"), len(TOTALS), len(TOTALS) + 1
#: What it begins with: no sum, and ends that any value moves.
_EMPTY = (*[0.0] * len(TOTALS), 2.0**31 - 1, -(2.0**31))
#: Rows shorter than this are swept a plane at a time, where a plane is no larger than this.
_SHORT, _PLANE = 256, 16384
#: Elements of a line where lines mean nothing.
_FLAT = 4096
#: Elements that make a part worth a thread, and how many parts there are at most.
_PART, _PARTS = 1 << 19, 8
#: Parts of planes begin at multiples of so many elements.
_ALIGNED = 16


class Part(NamedTuple):
    """Lines of `width` elements, the first at element `first`, each `stride` after the one before."""

    first: int
    lines: int
    width: int
    stride: int


@dataclass(frozen=True)
class Grid:
    """A flat tensor as lines: rows of one channel, planes of one channel, or (neither) pieces without meaning.

    `rest`: elements after the last whole line.
    """

    lines: int
    width: int
    rest: int = 0
    planes: bool = False

    def parts(self) -> list[Part]:
        """Some of the lines each; of planes, some of the places of every one, so that sums by place are taken once."""
        wanted = max(1, min(_PARTS, self.width if self.planes else self.lines, self.lines * self.width // _PART))
        if self.planes:
            ends = [self.width * i // wanted // _ALIGNED * _ALIGNED for i in range(wanted)] + [self.width]
            return [Part(a, self.lines, b - a, self.width) for a, b in itertools.pairwise(ends) if b > a and self.lines]
        ends = [self.lines * i // wanted for i in range(wanted + 1)]
        found = [Part(a * self.width, b - a, self.width, self.width) for a, b in itertools.pairwise(ends) if b > a]
        return [*found, Part(self.lines * self.width, 1, self.rest, self.rest)] if self.rest else found


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
    work = _Sweep(sweep(device.dtype.name), device, other, terms, grid.planes)
    swept = share(work, grid.parts())
    if not swept:
        return Found(dict.fromkeys(TOTALS, 0), np.zeros((2, 0)), np.zeros((2, 0)), math.inf, -math.inf)
    outs = np.array([out for _, _, out in swept])
    totals: dict[str, Any] = dict(zip(TOTALS, outs.sum(axis=0).tolist(), strict=False))
    totals["max_d"] = float(outs[:, _MAX].max())
    for name in _COUNTS:
        totals[name] = int(totals[name])
    lines, columns = _joined(swept, grid.planes)
    # NaNs of one sign lie below all numbers, those of the other above.
    least, most = _value(outs[:, _LEAST].min()), _value(outs[:, _MOST].max())
    broken = math.isnan(least) or math.isnan(most)
    return Found(totals, lines, columns, math.nan if broken else least, math.nan if broken else most)


def _joined(swept: Sequence[Swept], planes: bool) -> tuple[Float64, Float64]:
    """Sums by line and by place of all parts. What is left of a flat tensor has no place among the columns."""
    lines, columns, _ = swept[0]
    if len(swept) == 1:
        return lines, columns
    if planes:
        for more, _, _ in swept[1:]:
            lines = lines + more
        return lines, np.concatenate([column for _, column, _ in swept], axis=1)
    for _, more, _ in swept[1:]:
        if more.shape == columns.shape:
            columns = columns + more
    return np.concatenate([line for line, _, _ in swept], axis=1), columns


@dataclass(frozen=True)
class _Sweep:
    """One tensor and its reference, flat, about to be swept."""

    function: Callable[..., int]
    device: Array
    reference: Array
    terms: Terms
    planes: bool

    def __call__(self, part: Part) -> Swept:
        by_line, columns = np.zeros((2, part.lines)), np.zeros((2, part.width))
        narrow, out = np.zeros((4, part.width), np.float32), np.array(_EMPTY)
        nothing, terms, at = np.zeros(2, np.uintp), self.terms, _address
        self.function(
            at(nothing),
            at(nothing) + nothing.itemsize,
            at(self.device) + part.first * self.device.itemsize,
            at(self.reference) + part.first * self.reference.itemsize,
            part.lines,
            part.width,
            part.stride,
            self.planes,
            terms.inverse,
            terms.zero_point,
            terms.pivot,
            terms.low,
            terms.high,
            at(by_line),
            at(columns),
            at(narrow),
            at(out),
        )
        return by_line, columns, out


def _address(array: Array) -> int:
    """Where its elements are; `ctypes.data` says the same at five times the cost."""
    address: int = array.__array_interface__["data"][0]
    return address


def _value(key: float) -> float:
    """The float32 whose order among integers this is."""
    bits = np.asarray(key, np.int64).astype(np.int32)
    turned = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    return float(turned.view(np.float32))
