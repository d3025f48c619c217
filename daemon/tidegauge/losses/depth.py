"""Depth or disparity: positive values, of which ratios matter."""

from __future__ import annotations

import numpy as np

from tidegauge.losses.elements import Array, all_finite, blocks, flat_pair

#: The usual bound of a good pixel (Eigen et al., arXiv 1406.2283: δ < 1.25).
RATIO = 1.25


def loss(device: Array, reference: Array) -> float:
    """Share of elements with max(d/r, r/d) > 1.25. `ShapeMismatch`.

    Not finite is off. Zero or less means "none": off where only one side has none.
    """
    one, other = flat_pair(device, reference)
    off = 0
    for left, right in zip(blocks(one), blocks(other), strict=True):
        d, r = left.astype(np.float64), right.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            near = (d > 0) & (r > 0) & (np.maximum(d, r) <= RATIO * np.minimum(d, r))
            none = (d <= 0) & (r <= 0)
            off += int(np.count_nonzero(~(np.isfinite(d) & np.isfinite(r) & (near | none))))
    return off / one.size


def summary(output: Array) -> dict[str, float]:
    """`nearest`, `farthest` and `median` of the positive elements."""
    if not all_finite(output):
        return {}
    found = output[output > 0]
    if found.size == 0:
        return {}
    return {"nearest": float(found.min()), "farthest": float(found.max()), "median": float(np.median(found))}
