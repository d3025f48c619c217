"""1 × 1 convolutions of device tensors as recorded, written for Numba and, in the innermost loop, for LLVM.

ONNX Runtime takes most of its time here for what is around the products: codes become values, and values are read
again. Here a tile of all channels that stays in the cache is held as values, and a block of the result stays in
registers until all channels are added up. `python -m tidegauge.compare.pointwise codes` writes the object code to
standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tidegauge.compare.bits import everywhere
from tidegauge.compare.decode import FAST, INLINE, decoding, views
from tidegauge.compare.emit import object_code, prepare
from tidegauge.compare.machine_code import ROWS

# Typed in part only; the loops below take their types from Numba's signatures, so mypy is told to pass over them.
numba: Any = import_module("numba")
ir: Any = import_module("llvmlite.ir")
types = numba.types

#: Pixels that a block takes at once, and how many values a vector holds: so many that `ROWS` rows of the result, the
#: pixels and a weight fit in the processor's registers.
_WIDE, _NARROW = (32, 16), (8, 8)


def _copy(source, place):  # type: ignore[no-untyped-def]
    for i in range(place.size):
        place[i] = source[i]


def _block(pixels: int, lanes: int) -> Any:
    """An intrinsic function for `ROWS` rows × `pixels` of the result, kept in registers.

    Its arguments: `out`, flat, with the block's `place` in it and the `stride` from row to row; `tile`, flat, with its
    `width` and the block's `first` pixel; `weights`, flat: of each channel `ROWS`; `bias`; the number of channels, at
    least one; and the bounds of the result.
    """
    single, whole = ir.FloatType(), ir.IntType(64)
    vector = ir.VectorType(single, lanes)

    def build(context, builder, signature, given):  # type: ignore[no-untyped-def]
        arrays = (given[0], given[3], given[6], given[7])
        kinds = (signature.args[0], signature.args[3], signature.args[6], signature.args[7])
        out, tile, weights, bias = (
            context.make_array(kind)(context, builder, array).data for kind, array in zip(kinds, arrays, strict=True)
        )
        place, stride, width, first, channels, low, high = (given[n] for n in (1, 2, 4, 5, 8, 9, 10))
        fused = builder.module.declare_intrinsic(f"llvm.fma.v{lanes}f32", (), ir.FunctionType(vector, [vector] * 3))

        def number(value: int) -> Any:
            return ir.Constant(whole, value)

        def at(array: Any, offset: Any) -> Any:
            return builder.bitcast(builder.gep(array, [offset]), vector.as_pointer())

        blocks = [(row, part) for row in range(ROWS) for part in range(pixels // lanes)]
        starts = [everywhere(builder, builder.load(builder.gep(bias, [number(row)])), lanes) for row in range(ROWS)]
        before, loop, after = builder.block, builder.append_basic_block("channel"), builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        channel = builder.phi(whole)
        channel.add_incoming(number(0), before)
        sums = {block: builder.phi(vector) for block in blocks}
        for (row, _), total in sums.items():
            total.add_incoming(starts[row], before)
        line = builder.add(builder.mul(channel, width), first)
        values = [
            builder.load(at(tile, builder.add(line, number(part * lanes))), align=4) for part in range(pixels // lanes)
        ]
        table = builder.mul(channel, number(ROWS))
        factors = [
            everywhere(builder, builder.load(builder.gep(weights, [builder.add(table, number(row))])), lanes)
            for row in range(ROWS)
        ]
        added = {block: builder.call(fused, [factors[block[0]], values[block[1]], sums[block]]) for block in blocks}
        following = builder.add(channel, number(1))
        channel.add_incoming(following, loop)
        for block, total in sums.items():
            total.add_incoming(added[block], loop)
        builder.cbranch(builder.icmp_signed("<", following, channels), loop, after)
        builder.position_at_end(after)
        least, most = everywhere(builder, low, lanes), everywhere(builder, high, lanes)
        for (row, part), value in added.items():
            held = builder.select(builder.fcmp_ordered(">", value, least), value, least)
            held = builder.select(builder.fcmp_ordered("<", held, most), held, most)
            offset = builder.add(builder.mul(stride, number(row)), number(part * lanes))
            builder.store(held, at(out, builder.add(place, offset)), align=4)
        return context.get_dummy_value()

    def block(typing, out, place, stride, tile, width, first, weights, bias, channels, low, high):  # type: ignore[no-untyped-def]
        given = (out, place, stride, tile, width, first, weights, bias, channels, low, high)
        return types.void(*given), build

    return numba.extending.intrinsic(block)


def loops(wide: bool) -> Callable[..., None]:
    """Tiles `first` up to before `last` of `out`, which is pictures × channels × pixels, flat; each picture has
    ⌈pixels / width⌉ tiles.

    `seen`: the codes, as `decode.views`. `weights`, `bias`: groups of `ROWS` rows of the result, each group channels ×
    `ROWS` and `ROWS`, zero beyond the last row. `tile`: room for all channels × `width`, flat, zero at first, `width`
    being a multiple of a block's pixels; `rest`: room for a block that is not whole.
    """
    pixels, lanes = _WIDE if wide else _NARROW
    decode, copy = decoding(), numba.njit(**INLINE, fastmath=FAST)(_copy)
    block = _block(pixels, lanes)

    def tiles(  # type: ignore[no-untyped-def]
        seen, kind, zero, inverse, weights, bias, low, high, tile, rest, channels, width, size, made, first, last, out
    ):  # fmt: skip
        each = (size + width - 1) // width
        for number in range(first, last):
            picture, start = number // each, number % each * width
            count = min(width, size - start)
            for channel in range(channels):
                place = (picture * channels + channel) * size + start
                decode(seen, kind, place, zero, inverse, tile[channel * width : channel * width + count])
            for group in range(weights.shape[0]):
                top = group * ROWS
                rows = min(ROWS, made - top)
                for at in range(0, count, pixels):
                    place = (picture * made + top) * size + start + at
                    if rows == ROWS and at + pixels <= count:
                        block(out, place, size, tile, width, at, weights[group], bias[group], channels, low, high)
                        continue
                    block(rest, 0, pixels, tile, width, at, weights[group], bias[group], channels, low, high)
                    some = min(pixels, count - at)
                    for row in range(rows):
                        begin = place + row * size
                        copy(rest[row * pixels : row * pixels + some], out[begin : begin + some])

    return numba.njit(**INLINE)(tiles)  # type: ignore[no-any-return]


def entry() -> Any:
    """The loops with the arguments of a C function (`machine_code.POINTWISE`)."""
    features = import_module("llvmlite.binding").get_host_cpu_features()
    wide = bool(features.get("avx512f"))
    tiles, seen = loops(wide), numba.njit(**INLINE)(views)
    block = ROWS * (_WIDE if wide else _NARROW)[0]
    single, size = types.CPointer(types.float32), types.int64
    signature = types.void(
        types.voidptr, size, types.float32, types.float32, single, single, types.float32, types.float32, single,
        single, *[size] * 7, single,
    )  # fmt: skip

    def function(  # type: ignore[no-untyped-def]
        codes, kind, zero, inverse, weights, bias, low, high, tile, rest, pictures, channels, width, pixels, made,
        first, last, out,
    ):  # fmt: skip
        groups = (made + ROWS - 1) // ROWS
        tiles(
            seen(codes, pictures * channels * pixels),
            kind,
            zero,
            inverse,
            numba.carray(weights, (groups, channels * ROWS)),
            numba.carray(bias, (groups, ROWS)),
            low,
            high,
            numba.carray(tile, (channels * width,)),
            numba.carray(rest, (block,)),
            channels,
            width,
            pixels,
            made,
            first,
            last,
            numba.carray(out, (pictures * made * pixels,)),
        )

    return numba.cfunc(signature, error_model="numpy")(function)


if __name__ == "__main__":
    prepare()
    sys.stdout.buffer.write(object_code("pointwise", sys.argv[1], entry()))
