"""Where a tensor's error lies and how its values are spread: what the report draws of a layer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.statistics import Encoding, Sums
from tidegauge.compare.types import Histogram, Profiles

Array = NDArray[Any]

_BINS, _PROFILE_BINS, _SAMPLE = 48, 64, 1 << 14


def profiles(sums: Sums, floor: float, shape: tuple[int, int, int]) -> Profiles | None:
    """Mean squared error along rows, columns and channels over the floor, from the sums of one pass."""
    if sums.row_d2 is None or sums.column_d2 is None or sums.channel_d2 is None or floor <= 0:
        return None
    channels, height, width = shape
    return Profiles(
        rows=_binned(sums.row_d2 / (channels * width * floor)),
        columns=_binned(sums.column_d2 / (channels * height * floor)),
        channels=_binned(sums.channel_d2 / (height * width * floor)),
    )


def _binned(values: NDArray[np.float64]) -> tuple[float, ...]:
    bins = min(_PROFILE_BINS, values.size)
    edges = np.linspace(0, values.size, bins + 1).astype(int)
    means = np.add.reduceat(values, edges[:-1]) / np.diff(edges)
    return tuple(float(f"{value:.4g}") for value in means)


def histogram(encoding: Encoding, codes: Array, value: Array) -> Histogram | None:
    """Device and reference in the same bins, from a sample; None where there is no spread to show."""
    stride = max(1, codes.size // _SAMPLE)
    device = encoding.values(codes.reshape(-1)[::stride])
    local = value.reshape(-1)[::stride]
    device, local = device[np.isfinite(device)], local[np.isfinite(local)]
    if not device.size or not local.size:
        return None
    low, high = float(min(device.min(), local.min())), float(max(device.max(), local.max()))
    span = high - low
    if span <= 1e-6 * max(abs(low), abs(high)):
        return None
    counts = []
    for side in (device, local):
        place = np.minimum((side.astype(np.float64) - low) / span * _BINS, _BINS - 1).astype(np.int64)
        counts.append(tuple(int(n) for n in np.bincount(place, minlength=_BINS)))
    return Histogram(low, high, counts[0], counts[1])
