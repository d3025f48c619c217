"""What every comparison of a device output with its reference shares: equal shapes, block by block, no default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.errors import TidegaugeError

Array = NDArray[Any]

#: Elements in a block: its intermediate results stay in the second-level cache of an A53 cluster (512 KiB), and a dot
#: product of so few is no work that OpenBLAS shares among threads (from 10,000 on): a background worker wakes none.
BLOCK = 1 << 13
#: A difference of one step exactly is not "more than one step", though float32 may say so: two codes of 16 bits that
#: are one step apart come out as far as 1.004 steps apart.
ROUNDING = 1.01


class ShapeMismatch(TidegaugeError):
    """Two outputs that can't be compared, or an output that isn't what the profile says."""


def flat_pair(device: Array, reference: Array) -> tuple[Array, Array]:
    """Both as one-dimensional arrays. Raises `ShapeMismatch` unless shapes are equal and there is an element."""
    if device.shape != reference.shape:
        raise ShapeMismatch(
            f"the device's output has shape {list(device.shape)}, the reference's {list(reference.shape)}",
            "let `model` and `artifacts` of the profile belong to one compile",
        )
    return flat(device), flat(reference)


def flat(array: Array) -> Array:
    """One-dimensional, without a copy where it is contiguous. Raises `ShapeMismatch` for an array without elements."""
    if array.size == 0:
        raise ShapeMismatch(
            f"an output of shape {list(array.shape)} has no elements", "correct `output` of the profile"
        )
    return array.reshape(-1)


def blocks(array: Array) -> Iterator[Array]:
    """Views of a one-dimensional array, `BLOCK` elements each."""
    for start in range(0, array.size, BLOCK):
        yield array[start : start + BLOCK]


def share_off(device: Array, reference: Array, step: float) -> float:
    """Share of elements that differ by more than `step` (same unit as the arrays, > 0), in [0, 1].

    An element that is not finite on either side is off: it is no answer, whatever the other side says. Raises
    `ShapeMismatch`.
    """
    left, right = flat_pair(device, reference)
    working = np.float32 if _fits_float32(left) and _fits_float32(right) else np.float64
    limit = working(step * ROUNDING)
    difference = np.empty(min(BLOCK, left.size), working)
    near = 0
    with np.errstate(invalid="ignore", over="ignore"):
        for one, other in zip(blocks(left), blocks(right), strict=True):
            part = difference[: one.size]
            np.subtract(one, other, out=part, dtype=working, casting="unsafe")
            np.abs(part, out=part)
            near += int(np.count_nonzero(part <= limit))  # false for NaN and infinity
    return (left.size - near) / left.size


def all_finite(array: Array) -> bool:
    """Whether every element is finite."""
    if array.dtype.kind != "f":
        return True
    return all(bool(np.isfinite(block).all()) for block in blocks(flat(array)))


def _fits_float32(array: Array) -> bool:
    return array.dtype.itemsize <= 2 or array.dtype == np.float32
