"""Two equally shaped traces, element by element: how many differ, how far, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.exact_types import Spread

Array = NDArray[Any]

_PIECE = 1 << 20


@dataclass
class Difference:
    off_by_one: int = 0
    off_by_more: int = 0
    largest: int = 0
    rows: Spread | None = None
    columns: Spread | None = None
    channels: Spread | None = None


def difference(one: Array, other: Array, dtype: str, dims: Sequence[int]) -> Difference:
    """Counts and places of differing elements, a few planes at a time."""
    batch, dim1, dim2, channels, height, width = dims
    little = np.dtype(dtype).newbyteorder("<")
    shape = (batch * dim1 * dim2 * channels, height, width)
    a, b = (data.view(little).reshape(shape) for data in (one, other))
    step = max(1, _PIECE // (height * width))
    found = Difference()
    rows, columns = np.zeros(height, bool), np.zeros(width, bool)
    planes = np.zeros(shape[0], bool)
    for first in range(0, shape[0], step):
        part = slice(first, first + step)
        distance = np.abs(_ordered(a[part]) - _ordered(b[part]))
        wrong = distance > 0
        found.off_by_one += int(np.count_nonzero(distance == 1))
        found.off_by_more += int(np.count_nonzero(distance > 1))
        found.largest = max(found.largest, int(distance.max(initial=0)))
        rows |= wrong.any(axis=(0, 2))
        columns |= wrong.any(axis=(0, 1))
        planes[part] = wrong.any(axis=(1, 2))
    found.rows, found.columns = _spread(rows), _spread(columns)
    found.channels = _spread(np.asarray(planes.reshape(-1, channels).any(axis=0)))
    return found


def _ordered(values: Array) -> Array:
    """Integers in the order of the values: codes as they are, floats numbered by their bits (both zeros are apart)."""
    if values.dtype.kind != "f":
        return values.astype(np.int64)
    bits = values.view(np.dtype("<i4")).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF) - 1, bits)


def _spread(touched: Array) -> Spread:
    places = np.flatnonzero(touched)
    if not places.size:
        return Spread(0, touched.size, 0, 0)
    return Spread(int(places.size), touched.size, int(places[0]), int(places[-1]))
