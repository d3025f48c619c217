"""Traces that are floats: of a network compiled as float, or codes that were written as floats."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tidegauge.compare.traces import DeviceTensor

#: Tensors looked at to tell floats of a float network from codes that were dumped as floats.
_LOOKED_AT = 4
FLOAT_NETWORK = (
    "The traces of {} are of a network compiled as float (tensor_bits 32): they are the 32-bit rung and say nothing "
    "about quantisation or the board."
)


def is_float_network(tensors: Sequence[DeviceTensor]) -> bool:
    """Whether the traces are of a network compiled with tensor_bits 32: floats only, and not codes written as floats.

    TIDL's tables then say scale 1 and the range 0 to 0, or there are none of this compile.
    """
    there = [t for t in tensors if t.read is not None and t.status == "ok"]
    if not there or any(t.source != "float" for t in there):
        return False
    tabled = [t for t in there if t.table is not None]
    return not tabled or not all(_on_grid(t) for t in tabled[:_LOOKED_AT])


def _on_grid(tensor: DeviceTensor) -> bool:
    """Whether all values are codes over the table's scale."""
    if tensor.table is None or tensor.dtype != "float32":
        return False
    scaled = np.asarray(tensor.codes(), np.float64) * tensor.table.scale
    return bool(np.isfinite(scaled).all() and (np.abs(scaled - np.rint(scaled)) < 0.01).all())


def codes_of_floats(tensors: Sequence[DeviceTensor]) -> list[DeviceTensor]:
    """`_float.bin` files of a quantised run, where there is no `.y`, turned back into codes. Elsewhere as they are."""
    return [_as_codes(t) if t.status == "ok" and t.table is not None and _on_grid(t) else t for t in tensors]


def _as_codes(tensor: DeviceTensor) -> DeviceTensor:
    encoding = tensor.table
    if encoding is None:
        raise ValueError(f"{tensor.name} has no table")

    def read() -> Any:
        values = np.asarray(tensor.codes(), np.float64)
        low, high = encoding.code_range
        codes = np.clip(np.rint(values * encoding.scale) + encoding.zero_point, low, high)
        return np.ascontiguousarray(codes.astype(np.dtype(encoding.dtype).newbyteorder("<")).view(np.uint8))

    size = tensor.count * np.dtype(encoding.dtype).itemsize
    return dataclasses.replace(
        tensor,
        read=read,
        size=size,
        dtype=encoding.dtype,
        scale=encoding.scale,
        zero_point=encoding.zero_point,
        source=tensor.table_source,
        table=None,
    )
