"""Operations of single instructions, for loops written for Numba: on integers of 32 bits, which Numba widens to 64 in
every sum and comparison, and on vectors of codes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

# Typed in part only: mypy is told to pass over what takes Numba's types.
numba: Any = import_module("numba")
ir: Any = import_module("llvmlite.ir")
types, intrinsic = numba.types, import_module("numba.extending").intrinsic

#: Codes that `matches` looks at: as many as a register of 512 bits holds, if they have 8.
CODES = 64
_MAGNITUDE = 0x7FFFFFFF
_SIGN = 31
_WORD, _WHOLE = ir.IntType(32), ir.IntType(64)


def everywhere(builder: Any, value: Any, lanes: int) -> Any:
    """A vector of so many times this value, for functions that build LLVM's code."""
    undefined = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    alone = builder.insert_element(undefined, value, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(alone, undefined, ir.Constant(ir.VectorType(_WORD, lanes), [0] * lanes))


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def magnitude(typing: Any, number: Any) -> Any:
    """The bits of a float32 without its sign, as int32, in the order of absolute values; NaN is above all."""

    def build(_: Any, builder: Any, __: Any, given: Any) -> Any:
        return builder.and_(builder.bitcast(given[0], _WORD), ir.Constant(_WORD, _MAGNITUDE))

    return types.int32(types.float32), build


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def order(typing: Any, number: Any) -> Any:
    """An int32 for a float32, in the same order: its bits, with all but the sign turned over below zero."""

    def build(_: Any, builder: Any, __: Any, given: Any) -> Any:
        bits = builder.bitcast(given[0], _WORD)
        below = builder.ashr(bits, ir.Constant(_WORD, _SIGN))
        return builder.xor(bits, builder.and_(below, ir.Constant(_WORD, _MAGNITUDE)))

    return types.int32(types.float32), build


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def real(typing: Any, number: Any) -> Any:
    """The float32 with these bits."""
    return types.float32(types.int32), lambda _, builder, __, given: builder.bitcast(given[0], ir.FloatType())


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def lesser(typing: Any, one: Any, other: Any) -> Any:
    """The smaller of two int32."""
    return types.int32(types.int32, types.int32), _selected("<")


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def larger(typing: Any, one: Any, other: Any) -> Any:
    """The larger of two int32."""
    return types.int32(types.int32, types.int32), _selected(">")


def _selected(relation: str) -> Any:
    def build(_: Any, builder: Any, __: Any, given: Any) -> Any:
        return builder.select(builder.icmp_signed(relation, *given), *given)

    return build


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def matches(typing: Any, codes: Any, first: Any, code: Any) -> Any:
    """How many of the `CODES` elements from `first` on are `code`, of the array's type; they must be there."""

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind = signature.args[0]
        element = context.get_value_type(kind.dtype)
        vector = ir.VectorType(element, CODES)
        place = builder.gep(context.make_array(kind)(context, builder, given[0]).data, [given[1]])
        seen = builder.load(builder.bitcast(place, vector.as_pointer()), align=np.dtype(str(kind.dtype)).itemsize)
        compare = builder.fcmp_ordered if isinstance(element, ir.FloatType) else builder.icmp_signed
        return builder.ctpop(builder.bitcast(compare("==", seen, everywhere(builder, given[2], CODES)), _WHOLE))

    return types.int64(codes, types.int64, codes.dtype), build
