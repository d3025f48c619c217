"""The device's codes against those that right arithmetic gives: how many are off, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.statistics import Encoding

Array = NDArray[Any]

_PIECE = 1 << 17
#: How far float32 may be off for a code, as a share of the code range: twice what two roundings leave.
_DOUBT = 2.5e-7
#: A channel of fewer codes is too small for a share.
_CHANNEL = 64
#: A value this near to the middle between two codes, in codes, may be rounded to either.
_TIE = 0.05
#: How far a code may lie from the computed value beyond the half code that rounding explains, in codes. Sums in float32
#: leave less than the first at 8 bits, up to 0.02 at 16 bits; fixed-point multipliers some hundredths; the last ones
#: tell kernels apart that approximate.
TIERS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
#: An element of a float tensor is off where it differs by this share of the tensor's peak: kernels in float differ by
#: about 1e-6 of it. A tier counts in it.
FLOAT_OFF = 1e-3


@dataclass(frozen=True)
class Codes:
    """Shares of all codes. `one`, `more`: off the predicted code by one, by more. `beyond`: for each of `TIERS`, those
    further from the computed value than half a code and that. `ones`: off by one where no tie excuses it;
    `worst_channel`: the largest such share in one channel, 0 where channels are too small.
    """

    one: float
    more: float
    beyond: tuple[float, ...]
    ones: float
    worst_channel: float


def examine(encoding: Encoding, codes: Array, value: Array) -> Codes:
    """Codes of any shape against computed values (float32 or float64) of the same shape."""
    flat, values = codes.reshape(-1), value.reshape(-1)
    channels, plane = (codes.shape[-3], math.prod(codes.shape[-2:])) if codes.ndim > 2 else (1, flat.size)
    one = more = 0
    counts = np.zeros(len(TIERS), np.int64)
    by_channel = np.zeros(channels, np.int64)
    for place in _apart(encoding, flat, values):
        device, exact = flat[place].astype(np.float64), _exact(encoding, values[place])
        apart, distance = np.abs(device - np.rint(exact)), np.abs(device - exact)
        one += int(np.count_nonzero(apart == 1))
        more += int(np.count_nonzero(apart > 1))
        counts += _beyond(distance - 0.5, counts.size)
        # Right kernels differ where a value lies almost between two codes.
        untied = place[(distance > 0.5 + _TIE) & (distance < 1.5 + _TIE)]
        by_channel += np.bincount(untied // plane % channels, minlength=channels)
    size, share = flat.size, flat.size // channels
    ones = float(by_channel.sum()) / size if one else 0.0
    worst = float(by_channel.max()) / share if one and codes.ndim > 2 and share >= _CHANNEL else 0.0
    return Codes(one / size, more / size, tuple(float(c) / size for c in counts), ones, worst)


def _apart(encoding: Encoding, codes: Array, values: Array) -> Iterator[Array]:
    """Positions of all codes that may not be the nearest to their value, piece by piece, and of few others.

    float32 tells for nearly all: it is off by no more than `_DOUBT` of the code range. The rest is for float64.
    """
    low, high = encoding.code_range
    limit = 0.5 - _DOUBT * (high - low)
    device, other = np.empty((2, min(_PIECE, codes.size)), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, codes.size, _PIECE):
            part = codes[first : first + _PIECE]
            d, f = device[: part.size], other[: part.size]
            np.copyto(d, part, casting="unsafe")
            np.multiply(values[first : first + _PIECE], np.float32(encoding.scale), out=f, casting="same_kind")
            if encoding.zero_point:
                np.add(f, np.float32(encoding.zero_point), out=f)
            np.subtract(d, f, out=d)
            np.abs(d, out=d)
            place = np.flatnonzero(~(d <= limit))  # not a number is for float64 too
            if place.size:
                yield first + place


def examine_floats(device: Array, value: Array) -> Codes:
    """The same for a float tensor, in which a step of `FLOAT_OFF` of the largest value counts as a code."""
    peak = float(np.abs(value).max(initial=0.0)) or 1.0
    distance = np.abs(device.reshape(-1).astype(np.float64) - value.reshape(-1)) / (FLOAT_OFF * peak)
    counts = _beyond(distance - 0.5, len(TIERS))
    return Codes(0.0, 0.0, tuple(float(c) / distance.size for c in counts), 0.0, 0.0)


def _exact(encoding: Encoding, value: Array) -> NDArray[np.float64]:
    """The values in codes, not rounded, clipped as the device clips."""
    low, high = encoding.code_range
    exact: NDArray[np.float64] = value.astype(np.float64)
    exact *= encoding.scale
    exact += encoding.zero_point
    return np.clip(exact, low, high, out=exact)


def _beyond(distance: NDArray[np.float64], tiers: int) -> NDArray[np.int64]:
    far = distance[distance > TIERS[0]]
    return np.asarray([np.count_nonzero(far > TIERS[i]) for i in range(tiers)], np.int64)
