"""Scales that no table tells: from the ranges that the C7x prints, else by least squares against the float run.

So are those of which a table prints too few digits; the fit stays within what it prints.

An estimate is marked as such: it takes the float run for true, so a wrong scale or a gain would not show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.match import Match
from tidegauge.compare.model import Model
from tidegauge.compare.reference import Reference
from tidegauge.compare.traces import DeviceTensor

Array = NDArray[Any]

#: Share of the codes' variance that a fit must explain.
FITS = 0.8
_SAMPLE = 1 << 18
#: Rounds of the trimmed fit, and the share of elements that each keeps.
_ROUNDS, _KEPT = 6, 0.6


def complete(
    model: Model, inputs: Mapping[str, Array], tensors: Sequence[DeviceTensor], matches: Sequence[Match]
) -> None:
    """Fill in scale, zero point and type of tensors that lack them, in place; what can't be told stays unknown."""
    open_ones: dict[str, DeviceTensor] = {}
    for tensor, found in zip(tensors, matches, strict=True):
        if tensor.status != "ok" or found.tensor is None or tensor.read is None:
            continue
        if tensor.scale is not None and tensor.zero_point is None:
            _zero_from_range(tensor)
        if tensor.scale is None or tensor.zero_point is None or tensor.dtype is None or tensor.coarse:
            open_ones[found.tensor] = tensor
    if not open_ones:
        return
    run = Reference(model, inputs, {}, {name: tensor.count for name, tensor in open_ones.items()})
    given = {name: value for name, value in inputs.items() if name in open_ones}
    for values in [given, *run.walk()]:
        for name, value in values.items():
            if value.size == open_ones[name].count:
                _fit(open_ones[name], value.reshape(-1))


def _zero_from_range(tensor: DeviceTensor) -> None:
    """The log prints the dumped tensor's lowest and highest value, so both codes must give one zero point."""
    if tensor.dtype is None or tensor.scale is None or tensor.low is None or tensor.high is None:
        return
    codes = tensor.codes()
    ends = ((float(codes.min()), tensor.low), (float(codes.max()), tensor.high))
    zeros = [code - tensor.scale * value for code, value in ends]
    # The log rounds scale and values to five decimals.
    doubt = max(0.25 + 0.5e-5 * (tensor.scale + abs(code) / tensor.scale) for code, _ in ends)
    if codes.dtype.itemsize == 2 and all(abs(zero) <= doubt for zero in zeros):
        tensor.zero_point = 0  # TIDL's 16-bit tensors are symmetric
    elif doubt < 0.5 and all(abs(zero - round(zeros[0])) <= doubt for zero in zeros):
        tensor.zero_point = round(zeros[0])


def _fit(tensor: DeviceTensor, value: Array) -> None:
    data = tensor.read() if tensor.read is not None else b""
    width = tensor.size // tensor.count
    signs = [tensor.dtype] if tensor.dtype is not None else [f"uint{8 * width}", f"int{8 * width}"]
    read = {dtype: np.frombuffer(data, np.dtype(dtype).newbyteorder("<")) for dtype in signs}
    # Of the wrong sign, half the codes may fit perfectly: choose by all of them.
    dtype = max(read, key=lambda name: _correlation(read[name], value))
    explained, scale, zero = _least_squares(read[dtype], value, dtype)
    if tensor.scale is not None and tensor.zero_point is not None and tensor.dtype is not None:
        if explained >= FITS:
            low, high = tensor.scale * (1 - tensor.doubt), tensor.scale * (1 + tensor.doubt)
            tensor.scale = min(max(scale, low), high)
        tensor.source = "estimate"
        return
    if explained < FITS or scale <= 0:
        tensor.reason = f"no table tells its scale, and none fits the float run ({explained:.0%} explained)"
        return
    tensor.dtype, tensor.scale, tensor.zero_point, tensor.source = dtype, scale, zero, "estimate"


def _correlation(codes: Array, value: Array) -> float:
    stride = max(1, codes.size // _SAMPLE)
    c, f = codes[::stride].astype(np.float64), value[::stride].astype(np.float64)
    c, f = c - c.mean(), f - f.mean()
    size = float(np.sqrt(np.dot(c, c) * np.dot(f, f)))
    return float(np.dot(c, f)) / size if size > 0 else 0.0


def _least_squares(codes: Array, value: Array, dtype: str) -> tuple[float, float, int]:
    """Explained share of variance, scale, zero point. Codes at the ends may be clipped and are left out.

    Trimmed: the elements that fit worst are dropped and the rest fitted again, so that a fault in a part of the tensor
    does not bend the scale.
    """
    stride = max(1, codes.size // _SAMPLE)
    c, f = codes[::stride].astype(np.float64), value[::stride].astype(np.float64)
    info = np.iinfo(dtype)
    inner = (c > info.min) & (c < info.max) & np.isfinite(f)
    c, f = c[inner], f[inner]
    kept = np.ones(c.size, bool)
    scale = zero = explained = 0.0
    for _ in range(_ROUNDS):
        x, y = f[kept] - f[kept].mean(), c[kept] - c[kept].mean()
        if x.size < 16 or not x.any() or not y.any():
            return 0.0, 0.0, 0
        scale = float(np.dot(x, y) / np.dot(x, x))
        zero = float(c[kept].mean() - scale * f[kept].mean())
        distance = np.abs(c - scale * f - zero)
        explained = 1.0 - float(np.square(distance[kept]).sum() / np.dot(y, y))
        kept = distance <= np.quantile(distance, _KEPT)
    if abs(zero) < 1.5 or info.bits == 16:  # TIDL's 16-bit and unsigned tensors are symmetric
        zero = 0.0
        scale = float(np.dot(c[kept], f[kept]) / np.dot(f[kept], f[kept]))
    return explained, scale, round(zero)
