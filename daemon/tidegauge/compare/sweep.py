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

from tidegauge.compare.bits import CODES, larger, lesser, magnitude, matches, order, real
from tidegauge.compare.emit import object_code, prepare

# Typed in part only; the loops below take their types from Numba's signatures, so mypy is told to pass over them.
numba: Any = import_module("numba")
types = numba.types

#: Elements whose sums stay float32, and lines whose sums by column do. Four floats by place in a piece are kept at a
#: time: in a first-level cache of 32 KiB.
PIECE, LINES = 2048, 64
#: Bits of the magnitude from which a square is for float64: 1e16. Infinity and NaN lie above.
LARGE = 0x5A0E1BCA
_F = np.float32
_FAST = {"reassoc", "nsz"}

#: Places in `out`: `one_pass.TOTALS`, then the smallest and largest reference as ordered integers.
_COUNT, _D, _ABS, _D2, _G, _G2, _DG, _MAX, _LOW, _HIGH, _DEVICE_BAD, _REFERENCE_BAD, _LEAST, _MOST = range(14)


def _piece(codes, reference, inverse, zero, pivot, before, after):  # type: ignore[no-untyped-def]
    """Sums of a piece; squares by column: `after` = `before` + d². Plain float32 throughout, so that it can fail."""
    d1, a1, d2, g1, g2, dg = _F(0), _F(0), _F(0), _F(0), _F(0), _F(0)
    top = np.int32(0)
    least, most = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for i in range(codes.size):
        f = reference[i]
        d = (_F(codes[i]) - zero) * inverse - f
        g = f - pivot
        size, key = magnitude(d), order(f)
        top, least, most = larger(top, size), lesser(least, key), larger(most, key)
        d1 += d
        a1 += real(size)
        d2 += d * d
        g1 += g
        g2 += g * g
        dg += d * g
        after[i] = before[i] + d * d
    return d1, a1, d2, g1, g2, dg, top, least, most


def _squares(reference, before, after):  # type: ignore[no-untyped-def]
    for i in range(reference.size):
        after[i] = before[i] + reference[i] * reference[i]


def _equal(codes, code):  # type: ignore[no-untyped-def]
    """How many codes are this one."""
    count, whole = 0, codes.size // CODES * CODES
    for i in range(0, whole, CODES):
        count += matches(codes, i, code)
    for i in range(whole, codes.size):
        count += codes[i] == code
    return count


def _fold(narrow, wide):  # type: ignore[no-untyped-def]
    """Add sums of float32 to those of float64, and begin anew."""
    for i in range(wide.size):
        wide[i] += narrow[i]
        narrow[i] = _F(0)


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
    squared, equal, fold, carefully = plain(_squares), plain(_equal), plain(_fold), plain(_carefully)

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
                    out[_LOW] += equal(c, low)
                    out[_HIGH] += equal(c, high)
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
                    out[_MAX] = max(out[_MAX], np.float64(real(top)))
                    lines[0, line] += d2
                    lines[1, line] += g2 + 2 * p * g1 + n * p * p
                here, there = there, here
                if line % LINES == LINES - 1 or line == count - 1:
                    fold(narrow[here, first:last], columns[0, first:last])
                    fold(narrow[2 + here, first:last], columns[1, first:last])

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
            kind(low),
            kind(high),
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
