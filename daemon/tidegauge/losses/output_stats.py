"""Cheap statistics of every device run, and the decoded result that leaves the board. Both see each frame."""

from __future__ import annotations

from math import ceil, isfinite, nan

import numpy as np

from tidegauge.losses.elements import Array, flat
from tidegauge.losses.image import planes
from tidegauge.losses.saturation import ends
from tidegauge.pipeline.messages import OutputStats
from tidegauge.profile import Output

#: Elements in a block; larger than for comparisons, since there is one array and no intermediate result.
BLOCK = 1 << 16
#: Outputs up to so many elements are looked at in full; of larger ones every n-th block is, so that a frame costs no
#: more than one of this size. A fixed stride: what is looked at never depends on what was seen.
FULL = 1 << 20
#: Of more elements than these, mean and shares come from the first n-th of each block: minimum and maximum, which
#: prove that every element is finite, cost less than either.
SHARES = 3 << 16
#: A summary looks at whole rows of so many pixels at most, evenly spread.
PIXELS = 1 << 13
#: Weights of red, green and blue in luma (ITU-R BT.601).
LUMA = (0.299, 0.587, 0.114)


def output_stats(name: str, array: Array, low: float, high: float) -> OutputStats:
    """Statistics of one output, over its finite elements: minimum, maximum and mean are NaN where there is none.

    Ends are those of an integer's type, else `low` and `high`, which may be infinite. Of outputs beyond 2^20 elements
    every n-th block of 65,536 is looked at, and `finite` counts the rest as finite; beyond 3 · 2^16 elements the mean
    and the shares are those of the first n-th of each block. Raises `ShapeMismatch` for an output without elements.
    """
    values = flat(array)
    at_low, at_high = ends(values.dtype, low, high)
    every, parts = ceil(values.size / FULL), ceil(values.size / SHARES)
    least, most = np.inf, -np.inf
    seen = finite = taken = lowest = highest = 0
    total = 0.0
    for start in range(0, values.size, BLOCK * every):
        whole = values[start : start + BLOCK]
        seen += whole.size
        block, block_least, block_most = _finite_part(whole)
        if block.size == 0:
            continue
        part = block[: ceil(block.size / parts)]
        if block_least <= at_low:
            lowest += int(np.count_nonzero(part <= at_low))
        if block_most >= at_high:
            highest += int(np.count_nonzero(part >= at_high))
        least, most = min(least, block_least), max(most, block_most)
        finite, taken, total = finite + block.size, taken + part.size, total + _sum(part)
    if finite == 0:
        return OutputStats(name, values.size, 0, nan, nan, nan, nan, nan)
    all_finite = values.size - (seen - finite)
    return OutputStats(name, values.size, all_finite, least, most, total / taken, lowest / taken, highest / taken)


def _finite_part(block: Array) -> tuple[Array, float, float]:
    """The finite elements, the least and the most of them; both are finite only where all elements are."""
    if block.dtype.kind != "f":
        return block, float(block.min()), float(block.max())
    with np.errstate(invalid="ignore"):
        least, most = float(block.min()), float(block.max())  # NaN where one is
    if isfinite(least) and isfinite(most):
        return block, least, most
    kept = block[np.isfinite(block)]
    return (kept, float(kept.min()), float(kept.max())) if kept.size else (kept, nan, nan)


def _sum(part: Array) -> float:
    if part.dtype.kind != "f":
        return float(np.sum(part, dtype=np.float64 if part.dtype.itemsize == 8 else np.int64))
    with np.errstate(over="ignore"):
        total = float(np.sum(part))  # pairwise: in float32 good to 1e-6 of a block
    return total if isfinite(total) else float(np.sum(part, dtype=np.float64))


def summary(output: Output, array: Array, known: OutputStats | None = None) -> dict[str, float]:
    """The decoded result by name. What is not finite is left out, so that no number stands for "none".

    For a picture: `minimum`, `maximum` of all elements; mean `luma`, its `contrast` (standard deviation) and
    `sharpness` (mean absolute difference of neighbours in a row), over rows spread evenly, in the output's unit. For a
    raw tensor: `minimum`, `maximum`, `mean`, `argmax` (flat index). `known`: the output's statistics, whose minimum and
    maximum are taken where all elements are finite. Raises `ShapeMismatch` for an output that isn't as the profile
    says.
    """
    values = flat(array)
    if known is not None and known.finite == known.count:
        found = {"minimum": known.minimum, "maximum": known.maximum}
    else:
        found = {"minimum": float(values.min()), "maximum": float(values.max())}
    if output.kind == "image":
        found |= _picture(output, array)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            found["mean"] = float(np.mean(values, dtype=np.float64))
        if isfinite(found["maximum"]):
            found["argmax"] = float(values.argmax())
    return {name: value for name, value in found.items() if isfinite(value)}


def _picture(output: Output, array: Array) -> dict[str, float]:
    picture = planes(array, output.layout)
    channels, height, width = picture.shape
    rows = picture[:, :: max(1, ceil(height * width / PIXELS))]
    weights = LUMA if channels == 3 else (1 / channels,) * channels
    if output.channel_order == "BGR":
        weights = weights[::-1]
    luma = np.zeros(rows.shape[1:], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for weight, plane in zip(weights, rows, strict=True):
            luma += plane * np.float32(weight)
        found = {"luma": float(luma.mean()), "contrast": float(luma.std())}
        if width > 1:
            found["sharpness"] = float(np.abs(luma[:, 1:] - luma[:, :-1]).mean())
    return found
