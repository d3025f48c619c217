"""Codes of a device tensor as values, inside loops written for Numba."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

# Typed in part only; the loops take their types from Numba's signatures, so mypy is told to pass over them.
numba: Any = import_module("numba")

_F = np.float32
#: A product may be fused into the sum, as ONNX Runtime's kernels do.
FAST = {"contract", "nsz"}
#: Of every loop that is a part of another.
INLINE: dict[str, Any] = {"error_model": "numpy", "forceinline": True}


def views(pointer, size):  # type: ignore[no-untyped-def]
    """The memory at `pointer`, of `size` codes, in each of `machine_code.KINDS`."""
    return (
        numba.carray(pointer, (size,), np.int8),
        numba.carray(pointer, (size,), np.uint8),
        numba.carray(pointer, (size,), np.int16),
        numba.carray(pointer, (size,), np.uint16),
    )


def _values(codes, zero, inverse, row):  # type: ignore[no-untyped-def]
    for i in range(row.size):
        row[i] = (_F(codes[i]) - zero) * inverse


def decoding() -> Any:
    """A function of `views`, the number of their kind, a place, zero point, inverse scale and a row of float32: fills
    the row with the values of the codes from that place on."""
    values = numba.njit(**INLINE, fastmath=FAST)(_values)

    def fill(seen, kind, place, zero, inverse, row):  # type: ignore[no-untyped-def]
        end = place + row.size
        if kind == 0:
            values(seen[0][place:end], zero, inverse, row)
        elif kind == 1:
            values(seen[1][place:end], zero, inverse, row)
        elif kind == 2:
            values(seen[2][place:end], zero, inverse, row)
        else:
            values(seen[3][place:end], zero, inverse, row)

    return numba.njit(**INLINE)(fill)
