"""The loops of the one-pass statistics, written for Numba; as a program, what makes machine code of them.

A line is a row of one channel, or part of a plane. Its elements are summed up in float32 in pieces of `PIECE`, the
pieces in float64. `reassoc` lets the compiler keep one sum in many lanes. NaN and infinity keep their meaning, and
products are rounded before anything is added, so that a value equal to the reference differs by nothing.

`python -m tidegauge.compare.sweep DTYPE` writes the object code for device tensors of this type to standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from tidegauge.compare.emit import object_code, prepare

# Typed in part only; the loops below take their types from Numba's signatures, so mypy is told to pass over them.
numba: Any = import_module("numba")
ir: Any = import_module("llvmlite.ir")
types, intrinsic = numba.types, import_module("numba.extending").intrinsic

#: Elements whose sums stay float32, and lines whose sums by column do. Four floats by place in a piece are kept at a
#: time: in a first-level cache of 32 KiB.
PIECE, LINES = 2048, 64
#: Bits of the magnitude from which a square is for float64: 1e16. Infinity and NaN lie above.
LARGE = 0x5A0E1BCA
_MAGNITUDE = 0x7FFFFFFF
_F = np.float32
_FAST = {"reassoc", "nsz"}

#: Places in `out`: `one_pass.TOTALS`, then the smallest and largest reference as ordered integers.
_COUNT, _D, _ABS, _D2, _G, _G2, _DG, _MAX, _LOW, _HIGH, _DEVICE_BAD, _REFERENCE_BAD, _LEAST, _MOST = range(14)


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def _bits(typing: Any, number: Any) -> Any:
    """A float32's bits as int32."""
    return types.int32(types.float32), lambda _, builder, __, args: builder.bitcast(args[0], ir.IntType(32))


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def _real(typing: Any, number: Any) -> Any:
    """The float32 with these bits."""
    return types.float32(types.int32), lambda _, builder, __, args: builder.bitcast(args[0], ir.FloatType())


def _piece(codes, reference, inverse, zero, pivot, before, after):  # type: ignore[no-untyped-def]
    """Sums of a piece; squares by column: `after` = `before` + d². Plain float32 throughout, so that it can fail."""
    d1, a1, d2, g1, g2, dg = _F(0), _F(0), _F(0), _F(0), _F(0), _F(0)
    top = np.int32(0)
    least, most = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for i in range(codes.size):
        f = reference[i]
        d = (_F(codes[i]) - zero) * inverse - f
        g = f - pivot
        size = _bits(d) & np.int32(_MAGNITUDE)
        top = max(top, size)
        # Read as integers, with all but the sign turned over below zero, floats keep their order.
        bits = _bits(f)
        key = bits ^ ((bits >> np.int32(31)) & np.int32(_MAGNITUDE))
        least = min(least, key)
        most = max(most, key)
        d1 += d
        a1 += _real(size)
        d2 += d * d
        g1 += g
        g2 += g * g
        dg += d * g
        after[i] = before[i] + d * d
    return d1, a1, d2, g1, g2, dg, top, least, most


def _squares(reference, before, after):  # type: ignore[no-untyped-def]
    for i in range(reference.size):
        after[i] = before[i] + reference[i] * reference[i]


def _extremes(codes):  # type: ignore[no-untyped-def]
    low, high = codes[0], codes[0]
    for i in range(codes.size):
        low = codes[i] if codes[i] < low else low
        high = codes[i] if codes[i] > high else high
    return low, high


def _equal(codes, code):  # type: ignore[no-untyped-def]
    count = np.int32(0)
    for i in range(codes.size):
        count += np.int32(codes[i] == code)
    return count


def _carefully(codes, reference, inverse, zero, pivot, columns, out):  # type: ignore[no-untyped-def]
    """A piece with values that are not finite, or too large to be squared: in float64, and the former left out.

    Returns Σd² and Σf². `columns`: both by column.
    """
    d2, f2 = 0.0, 0.0
    for i in range(codes.size):
        f = np.float64(reference[i])
        v = (np.float64(codes[i]) - np.float64(zero)) * np.float64(inverse)
        fine_v, fine_f = np.isfinite(v), np.isfinite(f)
        out[_DEVICE_BAD] += not fine_v
        out[_REFERENCE_BAD] += not fine_f
        if not (fine_v and fine_f):
            continue
        d, g = v - f, f - np.float64(pivot)
        out[_COUNT] += 1
        out[_D] += d
        out[_ABS] += abs(d)
        out[_D2] += d * d
        out[_G] += g
        out[_G2] += g * g
        out[_DG] += d * g
        out[_MAX] = max(out[_MAX], abs(d))
        columns[0, i] += d * d
        columns[1, i] += f * f
        d2 += d * d
        f2 += f * f
    return d2, f2


def loops() -> Callable[..., None]:
    """The sweep over whole lines, made of the loops above.

    A line begins `stride` elements after the one before. `lines`: Σd² and Σf² of each line (its row 0 and 1).
    `columns`: the same by place in a line, float64; of f² only where `planes`. `narrow`: room for four lines of
    float32. `out`: totals, in the order of the places above.
    """
    plain = numba.njit(error_model="numpy", forceinline=True)
    piece = numba.njit(error_model="numpy", forceinline=True, fastmath=_FAST)(_piece)
    squared, extremes, equal, carefully = plain(_squares), plain(_extremes), plain(_equal), plain(_carefully)

    def sweep(codes, reference, stride, inverse, zero, pivot, low, high, planes, lines, columns, narrow, out):  # type: ignore[no-untyped-def]
        count, width = lines.shape[1], columns.shape[1]
        for first in range(0, width, PIECE):
            last = min(width, first + PIECE)
            here, there = 0, 1
            for line in range(count):
                c = codes[line * stride + first : line * stride + last]
                r = reference[line * stride + first : line * stride + last]
                before, after = narrow[here, first:last], narrow[there, first:last]
                d1, a1, d2, g1, g2, dg, top, least, most = piece(c, r, inverse, zero, pivot, before, after)
                out[_LEAST] = min(out[_LEAST], least)
                out[_MOST] = max(out[_MOST], most)
                if low < high:
                    lowest, highest = extremes(c)
                    if lowest == low:
                        out[_LOW] += equal(c, lowest)
                    if highest == high:
                        out[_HIGH] += equal(c, highest)
                if top >= LARGE or not (np.isfinite(g2) and np.isfinite(dg)):
                    for i in range(first, last):
                        narrow[there, i] = narrow[here, i]
                        narrow[2 + there, i] = narrow[2 + here, i]
                    e2, f2 = carefully(c, r, inverse, zero, pivot, columns[:, first:last], out)
                    lines[0, line] += e2
                    lines[1, line] += f2
                else:
                    if planes:
                        squared(r, narrow[2 + here, first:last], narrow[2 + there, first:last])
                    n, p = float(last - first), np.float64(pivot)
                    out[_COUNT] += n
                    out[_D] += d1
                    out[_ABS] += a1
                    out[_D2] += d2
                    out[_G] += g1
                    out[_G2] += g2
                    out[_DG] += dg
                    out[_MAX] = max(out[_MAX], np.float64(_real(top)))
                    lines[0, line] += d2
                    lines[1, line] += g2 + 2 * p * g1 + n * p * p
                here, there = there, here
                if line % LINES == LINES - 1 or line == count - 1:
                    for i in range(first, last):
                        columns[0, i] += narrow[here, i]
                        columns[1, i] += narrow[2 + here, i]
                        narrow[here, i] = narrow[2 + here, i] = 0

    return plain(sweep)  # type: ignore[no-any-return]


def entry(dtype: str) -> Any:
    """The sweep for device tensors of this type, with the arguments of a C function (`machine_code.ARGUMENTS`)."""
    sweep, kind = loops(), numba.from_dtype(np.dtype(dtype))
    single, double, size = types.CPointer(types.float32), types.CPointer(types.float64), types.int64
    signature = types.void(
        types.CPointer(kind), single, size, size, size, size, *[types.float64] * 5, double, double, single, double
    )

    def function(  # type: ignore[no-untyped-def]
        codes, reference, count, width, stride, planes, inverse, zero, pivot, low, high, lines, columns, narrow, out
    ):
        elements = (count - 1) * stride + width
        sweep(
            numba.carray(codes, (elements,)),
            numba.carray(reference, (elements,)),
            stride,
            _F(inverse),
            _F(zero),
            _F(pivot),
            low,
            high,
            planes != 0,
            numba.carray(lines, (2, count)),
            numba.carray(columns, (2, width)),
            numba.carray(narrow, (4, width)),
            numba.carray(out, (14,)),
        )

    return numba.cfunc(signature, error_model="numpy")(function)


if __name__ == "__main__":
    prepare()
    sys.stdout.buffer.write(object_code("sweep", sys.argv[1], entry(sys.argv[1])))
