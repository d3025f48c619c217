"""Right numbers at wrong places: a buffer written in one order and read in another. No thresholds of policy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegauge.losses.elements import Array
from tidegauge.losses.structure import correlation

Ints = NDArray[np.int64]

#: Row pitches that are tried: up to so many elements more than a row has. Buffers are aligned to 128 bytes at most.
MOST_PITCH = 127
#: Elements that are looked at; for the shears, of which there are hundreds, fewer.
SAMPLE, SHEAR_SAMPLE = 1 << 13, 1 << 10


class Rearrangement(NamedTuple):
    """Correlations with the reference as it is, with rows and columns (or the layout) exchanged, with rows sheared."""

    as_it_is: float
    transposed: float
    sheared: float


def rearrangement(device: Array, reference: Array) -> Rearrangement:
    """Compare in each order that a buffer may be misread in: channels × height × width, both sides alike."""
    count = device.size
    flat = np.sort(np.random.default_rng(count).choice(count, min(SAMPLE, count), replace=False))
    seen = device.reshape(-1)[flat].astype(np.float64)
    values = reference.reshape(-1)
    orders = [_exchanged(flat, reference.shape), _other_layout(flat, reference.shape)]
    found = [correlation(seen, values[order].astype(np.float64)) for order in (flat, *orders)]
    step = max(1, flat.size // SHEAR_SAMPLE)
    return Rearrangement(found[0], max(found[1:]), _best_shear(seen[::step], values, flat[::step], reference.shape))


def _exchanged(flat: Ints, shape: tuple[int, ...]) -> Ints:
    """Where an element lies if each plane was written column by column."""
    height, width = shape[1:]
    plane, inside = np.divmod(flat, height * width)
    column, row = np.divmod(inside, height)
    return np.asarray(plane * height * width + row * width + column)


def _other_layout(flat: Ints, shape: tuple[int, ...]) -> Ints:
    """Where an element lies if the channels of a pixel were written together."""
    channels, height, width = shape
    pixel, channel = np.divmod(flat, channels)
    return np.asarray(channel * height * width + pixel)


def _best_shear(seen: NDArray[np.float64], values: Array, flat: Ints, shape: tuple[int, ...]) -> float:
    """The best correlation among row pitches, either written wider than read, or read wider than written."""
    height, width = shape[1:]
    plane, inside = np.divmod(flat, height * width)
    row, column = np.divmod(inside, width)
    best = 0.0
    for more in range(1, MOST_PITCH + 1):
        written_row, written_column = np.divmod(inside, width + more)
        read = row * (width + more) + column
        for source, usable in (
            (written_row * width + written_column, written_column < width),
            (read, read < height * width),
        ):
            if np.count_nonzero(usable) >= flat.size // 4:
                there = values[(plane * height * width + source)[usable]].astype(np.float64)
                best = max(best, correlation(seen[usable], there))
    return best
