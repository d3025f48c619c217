"""The device's codes against those that right arithmetic gives: how many are off, and by how much."""

from __future__ import annotations

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


def off(encoding: Encoding, codes: Array, value: Array) -> tuple[float, float]:
    """Shares of codes that differ from the predicted ones by one, and by more."""
    one = more = 0
    for first in range(0, codes.size, _PIECE):
        part = slice(first, first + _PIECE)
        distance = np.abs(codes[part].astype(np.int32) - encoding.codes(value[part]))
        one += int(np.count_nonzero(distance == 1))
        more += int(np.count_nonzero(distance > 1))
    return one / codes.size, more / codes.size


def ones(encoding: Encoding, codes: Array, value: Array) -> tuple[float, float]:
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
    low, high = encoding.code_range
    exact = np.clip(value.astype(np.float64) * encoding.scale + encoding.zero_point, low, high)
    distance = np.abs(codes - exact)
    return int(np.count_nonzero((distance > 0.5 + _TIE) & (distance < 1.5 + _TIE)))
