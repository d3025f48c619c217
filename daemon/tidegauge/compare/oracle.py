"""The device's codes against those that right arithmetic gives: how many are off, and by how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.statistics import Encoding

Array = NDArray[Any]

_PIECE = 1 << 18
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
    one = more = 0
    counts = np.zeros(len(TIERS), np.int64)
    for first in range(0, flat.size, _PIECE):
        part = slice(first, first + _PIECE)
        exact = _exact(encoding, values[part])
        device = flat[part].astype(np.float64)
        apart = np.abs(device - np.rint(exact))
        one += int(np.count_nonzero(apart == 1))
        more += int(np.count_nonzero(apart > 1))
        if apart.any():
            counts += _beyond(np.abs(device - exact) - 0.5, counts.size)
    ones, worst = _channels(encoding, codes, value) if one else (0.0, 0.0)
    size = flat.size
    return Codes(one / size, more / size, tuple(float(c) / size for c in counts), ones, worst)


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


def _channels(encoding: Encoding, codes: Array, value: Array) -> tuple[float, float]:
    """Shares of codes off by one where no tie excuses it: in the whole tensor, and at most in one channel.

    Right kernels differ where a value lies almost between two codes. Channels that are too small for a share give 0.
    """
    if codes.ndim < 3:
        found = _off_ties(encoding, codes, value)
        return found / codes.size, 0.0
    counts = [_off_ties(encoding, codes[..., c, :, :], value[..., c, :, :]) for c in range(codes.shape[-3])]
    size = codes[..., 0, :, :].size
    return sum(counts) / codes.size, max(counts) / size if size >= _CHANNEL else 0.0


def _off_ties(encoding: Encoding, codes: Array, value: Array) -> int:
    distance = np.abs(codes - _exact(encoding, value))
    return int(np.count_nonzero((distance > 0.5 + _TIE) & (distance < 1.5 + _TIE)))
