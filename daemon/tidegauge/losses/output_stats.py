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
#: A summary looks at whole rows of so many pixels at most, evenly spread.
PIXELS = 1 << 15
#: Weights of red, green and blue in luma (ITU-R BT.601).
LUMA = (0.299, 0.587, 0.114)


def output_stats(name: str, array: Array, low: float, high: float) -> OutputStats:
    """Statistics of one output, over its finite elements: minimum, maximum and mean are NaN where there is none.

    Ends are those of an integer's type, else `low` and `high`, which may be infinite. Raises `ShapeMismatch` for an
    output without elements.
    """
    values = flat(array)
    at_low, at_high = ends(values.dtype, low, high)
    least, most = np.inf, -np.inf
    finite = lowest = highest = 0
    total = 0.0
    for start in range(0, values.size, BLOCK):
        block, block_sum = _finite_part(values[start : start + BLOCK])
        if block.size == 0:
            continue
        block_least, block_most = float(block.min()), float(block.max())
        if block_least <= at_low:
            lowest += int(np.count_nonzero(block <= at_low))
        if block_most >= at_high:
            highest += int(np.count_nonzero(block >= at_high))
        least, most = min(least, block_least), max(most, block_most)
        finite += block.size
        total += block_sum
    if finite == 0:
        return OutputStats(name, values.size, 0, nan, nan, nan, nan, nan)
    return OutputStats(name, values.size, finite, least, most, total / finite, lowest / finite, highest / finite)


def _finite_part(block: Array) -> tuple[Array, float]:
    """The finite elements and their sum. A finite sum proves that all are finite, and saves a pass."""
    if block.dtype.kind != "f":
        return block, float(np.sum(block, dtype=np.float64 if block.dtype.itemsize == 8 else np.int64))
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.sum(block))  # pairwise: in float32 good to 1e-6 of a block
    if isfinite(total):
        return block, total
    kept = block[np.isfinite(block)]
    return kept, float(np.sum(kept, dtype=np.float64))


def summary(output: Output, array: Array) -> dict[str, float]:
    """The decoded result by name. What is not finite is left out, so that no number stands for "none".

    For a picture: `minimum`, `maximum` of all elements; mean `luma`, its `contrast` (standard deviation) and
    `sharpness` (mean absolute difference of neighbours in a row), over rows spread evenly, in the output's unit. For a
    raw tensor: `minimum`, `maximum`, `mean`, `argmax` (flat index). Raises `ShapeMismatch` for an output that isn't as
    the profile says.
    """
    values = flat(array)
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
