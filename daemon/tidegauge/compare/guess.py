"""Whether guessed weights are the device's, though something is wrong with its codes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.statistics import Encoding

Array = NDArray[Any]

#: So many of the codes must be the predicted ones, shifted together. Other weights move codes everywhere.
_SHARE = 0.9
#: A value this near to the middle between two codes, in codes, may be rounded to either.
_TIE = 0.05
#: Fewer codes than this prove nothing.
_LEAST = 64


def follow(encoding: Encoding, codes: Array, value: Array) -> bool:
    """Whether nine of ten codes are those of the computed values plus one constant, whatever the others are.

    Codes at either end of the range don't count, since a shift ends there. A whole output that is a code too low, or a
    band of rows that is wrong, leaves the weights recognisable.
    """
    if not encoding.integer:
        return False
    device = codes.reshape(-1).astype(np.float64)
    exact = value.reshape(-1).astype(np.float64) * encoding.scale + encoding.zero_point
    low, high = encoding.code_range
    inner = (device > low) & (device < high) & (exact > low) & (exact < high)
    if int(inner.sum()) < _LEAST:
        return False
    apart = device[inner] - exact[inner]
    apart -= np.rint(np.median(apart))
    return float((np.abs(apart) <= 0.5 + _TIE).mean()) >= _SHARE
