"""How a tensor's live codes use the range that the calibration gave it. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.raw_types import RangeUse
from tidegauge.compare.statistics import Encoding

Array = NDArray[Any]

#: Elements that are looked at, evenly spread; and the share at either end that does not count.
_SAMPLE, _TAIL = 1 << 16, 1e-3


def range_use(encoding: Encoding, codes: Array, clipped: float) -> RangeUse | None:
    """None for floats. `clipped`: the share of the float run's values outside the code range."""
    if not encoding.integer:
        return None
    flat = codes.reshape(-1)
    low, high = np.quantile(flat[:: max(1, flat.size // _SAMPLE)], [_TAIL, 1 - _TAIL])
    ends, live = encoding.value_range, encoding.values(np.asarray([low, high]))
    bottom, top = encoding.code_range
    reach = max(abs(bottom - encoding.zero_point), abs(top - encoding.zero_point))
    return RangeUse(
        low=ends[0],
        high=ends[1],
        live_low=float(live[0]),
        live_high=float(live[1]),
        used=min(1.0, float(max(abs(low - encoding.zero_point), abs(high - encoding.zero_point))) / reach),
        clipped=min(1.0, clipped),
    )
