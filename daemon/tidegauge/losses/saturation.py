"""Elements at either end of the quantised range: against the reference's, they tell clipping from a bright scene."""

from __future__ import annotations

from math import inf, isfinite

import numpy as np

from tidegauge.losses.elements import Array, blocks, flat

#: An element within this share of the range counts as at its end: dequantised ends are off by float32 rounding.
MARGIN = 1e-6
FLOAT32_MAX = float(np.finfo(np.float32).max)


def ends(dtype: np.dtype[np.generic], low: float, high: float) -> tuple[float, float]:
    """Values at or below the first, and at or above the second, are at the ends.

    For an integer type they are the type's own ends, else the given range; an infinite end is never reached.
    """
    if dtype.kind in "iu":
        info = np.iinfo(dtype.name)
        return float(info.min), float(info.max)
    margin = MARGIN * (high - low) if isfinite(high - low) else 0.0
    bottom, top = low + margin, high - margin
    return (-inf if bottom < -FLOAT32_MAX else bottom), (inf if top > FLOAT32_MAX else top)


def count_at_ends(finite: Array, at_low: float, at_high: float) -> tuple[int, int]:
    """Elements at the lower and at the upper end, of finite elements."""
    return int(np.count_nonzero(finite <= at_low)), int(np.count_nonzero(finite >= at_high))


def shares_at_ends(array: Array, low: float, high: float) -> tuple[float, float]:
    """Shares of the finite elements at either end; NaN where none is finite. Raises `ShapeMismatch` for no elements."""
    at_low, at_high = ends(array.dtype, low, high)
    lowest = highest = finite = 0
    for block in blocks(flat(array)):
        kept = block[np.isfinite(block)] if block.dtype.kind == "f" else block
        below, above = count_at_ends(kept, at_low, at_high)
        lowest, highest, finite = lowest + below, highest + above, finite + kept.size
    return (lowest / finite, highest / finite) if finite else (np.nan, np.nan)
