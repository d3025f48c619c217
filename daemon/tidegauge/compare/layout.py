"""Other layouts of a trace than the model's: told by its name, promised by TIDL's documents, or found in its bytes.

A trace whose dims are a permutation of the float tensor's is read that way round where the values agree by a wide
margin, and the report says so unless the documents promise it. Bytes that lie otherwise than the name says are a
finding, and the layer stays wrong: nobody promised that.

Source: TIDL's trace writer permutes the dims of data-convert layers with NHWC layout (width field C, height field W,
channel field H).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.traces import DeviceTensor

Array = NDArray[Any]

#: A permutation is believed from the first correlation on; bytes that fit their dims at the second one do fit.
FITS, DOES_NOT = 0.9, 0.3
#: Where the dims fit no other way, the best order leaves this many times less unexplained than any other.
MARGIN = 5.0
_SAMPLE = 1 << 16
#: Orders of a stored trace's six dims that give (batch, dim1, dim2, channels, height, width).
_ORDERS: dict[str, tuple[int, ...]] = {
    "NHWC": (0, 1, 2, 5, 3, 4),
    "width and height swapped": (0, 1, 2, 3, 5, 4),
    "CHW last to first": (0, 1, 2, 5, 4, 3),
    "channels between height and width": (0, 1, 2, 4, 3, 5),
}
#: The kind whose NHWC traces the documents promise.
PROMISED = ("TIDL_DataConvertLayer", "NHWC")


def arrange(tensor: DeviceTensor, value: Array) -> str | None:
    """Read a trace whose dims don't fit the float tensor's in the order that fits, in place; the order, or None."""
    wanted = [n for n in value.shape if n != 1]
    fits = {}
    for name, order in _ORDERS.items():
        if [d for i in order if (d := tensor.dims[i]) != 1] == wanted and tensor.dtype is not None:
            fits[name] = _agreement(tensor.codes().reshape(tensor.dims).transpose(order), value)
    if not fits:
        return None
    best = max(fits, key=lambda name: fits[name])
    if (tensor.kind, best) == PROMISED and len(fits) == 1:
        tensor.arrange(_ORDERS[best])
        return best
    as_it_is = _agreement(tensor.codes(), value)
    rivals = [agreement for name, agreement in fits.items() if name != best]
    if fits[best] > FITS and all(_by_far(fits[best], rival) for rival in (as_it_is, *rivals)):
        tensor.arrange(_ORDERS[best])
        return best
    return None


def told_otherwise(tensor: DeviceTensor, value: Array) -> str | None:
    """The order in which the bytes of a trace lie where it is by far another than its dims say; None where not."""
    shape = (1,) * (3 - min(3, value.ndim)) + value.shape
    channels, height, width = shape[-3:]
    codes = tensor.codes()
    if codes.size != value.size or _agreement(codes, value) >= DOES_NOT:
        return None
    lead = shape[:-3]
    axes = tuple(range(len(lead)))
    n = len(lead)
    readings = {
        "NHWC": codes.reshape(*lead, height, width, channels).transpose(*axes, n + 2, n, n + 1),
        "width and height swapped": codes.reshape(*lead, channels, width, height).transpose(*axes, n, n + 2, n + 1),
    }
    agreements = {name: _agreement(reading, value) for name, reading in readings.items()}
    best = max(agreements, key=lambda name: agreements[name])
    return best if agreements[best] > FITS else None


def _by_far(best: float, rival: float) -> bool:
    """Channels have means of their own, so that a wrong order agrees somewhat: what counts is what is unexplained."""
    return 1 - max(rival, 0.0) ** 2 > MARGIN * (1 - best**2)


def _agreement(codes: Array, value: Array) -> float:
    """The correlation, over evenly spread elements; 0 where one side does not vary."""
    step = max(1, value.size // _SAMPLE)
    ours, theirs = (np.ascontiguousarray(x).reshape(-1)[::step].astype(np.float64) for x in (codes, value))
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()) or np.ptp(ours) == 0 or np.ptp(theirs) == 0:
        return 0.0
    return float(np.corrcoef(ours, theirs)[0, 1])
