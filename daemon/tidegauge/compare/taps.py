"""Loops over device tensors as recorded, written for Numba: depthwise convolutions of 3 × 3 weights, and sums.

Both take less time than to turn codes into values and to read these again, so only rows in the cache are ever held as
values. `python -m tidegauge.compare.taps codes` writes the object code to standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from tidegauge.compare.decode import FAST, INLINE, decoding, views
from tidegauge.compare.emit import object_code, prepare

# Typed in part only; the loops below take their types from Numba's signatures, so mypy is told to pass over them.
numba: Any = import_module("numba")
types = numba.types

_F = np.float32


def _window(out, x, y, z, w, bias, low, high):  # type: ignore[no-untyped-def]
    """A row of the convolution, from the rows above, at and below it, each with a value of padding at both ends."""
    a, b, c, d, e, f, g, h, k = w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8]
    for i in range(out.size):
        value = bias + a * x[i] + b * x[i + 1] + c * x[i + 2] + d * y[i] + e * y[i + 1] + f * y[i + 2]
        value += g * z[i] + h * z[i + 1] + k * z[i + 2]
        value = value if value > low else low
        out[i] = value if value < high else high


def _sum(out, x, y, sign, low, high):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        value = x[i] + sign * y[i]
        value = value if value > low else low
        out[i] = value if value < high else high


def loops() -> Callable[..., None]:
    """Planes `first` up to before `last` of `out`, which is planes × height × width.

    `one`, `other`: the codes of each source in each of `machine_code.KINDS`, flat; `kinds`, `inverses`, `zeros`: of
    each. Of one source this is a convolution: `weights`, `bias`: nine and one of each plane, repeated where there are
    more planes, and `rows`, zero at first, has room for three rows with one value of padding at both ends. Of two
    sources it is their sum, the second times `weights[0, 0]`; `rows` has room for one row of each.
    """
    window, total = (numba.njit(**INLINE, fastmath=FAST)(each) for each in (_window, _sum))
    convert = decoding()

    def planes(one, other, kinds, inverses, zeros, weights, bias, low, high, rows, first, last, out):  # type: ignore[no-untyped-def]
        height, width, tables = out.shape[1], out.shape[2], bias.size
        for plane in range(first, last):
            weight, start = weights[plane % tables], bias[plane % tables]
            place = plane * height * width
            if rows.shape[0] == 2:
                for line in range(height):
                    x, y = rows[0, 0], rows[1, 0]
                    convert(one, kinds[0], place + line * width, zeros[0], inverses[0], x)
                    convert(other, kinds[1], place + line * width, zeros[1], inverses[1], y)
                    total(out[plane, line], x, y, weight[0], low, high)
                continue
            for ready in range(-1, height + 1):  # rows of the tensor; one of `out` is done when the next is there
                row = rows[0, (ready + 1) % 3, 1 : width + 1]
                if ready < 0 or ready == height:
                    row[:] = _F(0)
                else:
                    convert(one, kinds[0], place + ready * width, zeros[0], inverses[0], row)
                if ready > 0:
                    x, y, z = rows[0, (ready - 1) % 3], rows[0, ready % 3], rows[0, (ready + 1) % 3]
                    window(out[plane, ready - 1], x, y, z, weight, start, low, high)

    return numba.njit(**INLINE)(planes)  # type: ignore[no-any-return]


def entry() -> Any:
    """The loops with the arguments of a C function (`machine_code.TAPS`)."""
    planes, seen = loops(), numba.njit(**INLINE)(views)
    single, size = types.CPointer(types.float32), types.int64
    signature = types.void(
        types.voidptr, types.voidptr, types.CPointer(types.int64), single, single, single, single, size, single,
        single, *[size] * 6, single,
    )  # fmt: skip

    def function(  # type: ignore[no-untyped-def]
        one, other, kinds, inverses, zeros, weights, bias, tables, bounds, rows, sources, count, height, width,
        first, last, out,
    ):  # fmt: skip
        size = count * height * width
        pad = 2 - sources
        shape = (sources, 1 + 2 * pad, width + 2 * pad)
        bound = numba.carray(bounds, (2,))
        planes(
            seen(one, size),
            seen(other, size),
            numba.carray(kinds, (2,)),
            numba.carray(inverses, (2,)),
            numba.carray(zeros, (2,)),
            numba.carray(weights, (tables, 9)),
            numba.carray(bias, (tables,)),
            bound[0],
            bound[1],
            numba.carray(rows, shape),
            first,
            last,
            numba.carray(out, (count, height, width)),
        )

    return numba.cfunc(signature, error_model="numpy")(function)


if __name__ == "__main__":
    prepare()
    sys.stdout.buffer.write(object_code("taps", sys.argv[1], entry()))
