"""Regions that are computed from the device's codes at once: a depthwise convolution of 3 × 3 weights, a convolution of
1 × 1 weights, or a sum of two tensors, with the ReLU or clip behind it.

ONNX Runtime computes these as fast as memory takes it, three times over: codes become values, values become another
layout, results become the layout they began with. These loops read codes and write results.
"""

from __future__ import annotations

import itertools
import math
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from tidegauge.compare.cutgraph import Coded, Part
from tidegauge.compare.machine_code import KINDS, ROWS, pointwise, taps
from tidegauge.compare.model import Model

Array = NDArray[Any]

#: Elements of a line of a sum, if that many divide it.
_LINE = 4096
#: Elements from which the loops are worth their compilation, once a machine.
_SMALLEST = 1 << 17
#: Elements that make a piece worth a thread.
_PIECE = 1 << 20
#: Of a convolution that the loops know, what attributes it must have where it has them.
_PLAIN = {"strides": [1, 1], "dilations": [1, 1], "auto_pad": b"NOTSET"}
#: Channels up to which the loops take 1 × 1 convolutions. Beyond, ONNX Runtime is as fast, and it adds up in blocks,
#: with less rounding.
_CHANNELS = 128
#: Pixels of a tile of one, which stays in the cache with so many channels, and of its blocks, at most.
_TILE, _BLOCK = 512, 32


@dataclass(frozen=True)
class Direct:
    """What the loops do: with one of `reads` a convolution by `weights` and `bias`, depthwise where `weights` are
    channels × 9, dense where they are results × channels (`dense`), with two their sum, the second times
    `weights[0, 0]`; the result is held between `low` and `high`."""

    reads: tuple[str, ...]
    weights: Array
    bias: Array
    low: float = -math.inf
    high: float = math.inf
    dense: bool = False


def recognised(
    model: Model, part: Part, shapes: Callable[[str], tuple[int, ...]], replaced: Mapping[str, Array]
) -> Direct | None:
    """How the loops compute a region of one output; None where they don't. `shapes`: of what it reads and makes;
    `replaced`: weights in place of the model's."""
    nodes, weights = alone(model, part), ChainMap(dict(replaced), model.weights)
    held = bounds(nodes, weights) if nodes else None
    if held is None or math.prod(shapes(part.outputs[0])) < _SMALLEST:
        return None
    first, output = nodes[0], part.outputs[0]
    if first.op_type == "Conv" and first.input[0] in part.reads_cut:
        return _convolution(first, shapes, output, weights, held)
    if (
        first.op_type in ("Add", "Sub")
        and {*first.input} <= {*part.reads_cut}
        and len({shapes(name) for name in (*first.input, output)}) == 1
    ):
        sign = -1.0 if first.op_type == "Sub" else 1.0
        return Direct(tuple(first.input), np.full((1, 9), sign, np.float32), np.zeros(1, np.float32), *held)
    return None


def alone(model: Model, part: Part) -> list[Any]:
    """The nodes of a region that is one node, or one and what is behind it; none where it is another."""
    nodes = [model.nodes[index] for index in part.nodes]
    if len(part.outputs) != 1 or part.reads_inputs or not 1 <= len(nodes) <= 2:
        return []
    return nodes if all(node.domain in ("", "ai.onnx") for node in nodes) else []


def bounds(nodes: Sequence[Any], weights: Mapping[str, Array]) -> tuple[float, float] | None:
    """Between which values a ReLU or a clip by constants behind a node holds what it makes; None where something else
    is behind it."""
    if len(nodes) == 1:
        return -math.inf, math.inf
    node = nodes[1]
    if node.input[0] != nodes[0].output[0]:
        return None
    if node.op_type == "Relu":
        return 0.0, math.inf
    if node.op_type != "Clip" or node.attribute or any(name and name not in weights for name in node.input[1:]):
        return None
    named = [*node.input[1:], "", ""]
    if any(weights[name].size != 1 for name in named[:2] if name):
        return None
    low = weights[named[0]].item() if named[0] else -math.inf
    return float(low), float(weights[named[1]].item() if named[1] else math.inf)


def _convolution(
    node: Any,
    shapes: Callable[[str], tuple[int, ...]],
    output: str,
    weights: Mapping[str, Array],
    held: tuple[float, float],
) -> Direct | None:
    source, rest = node.input[0], [name for name in node.input[1:] if name]
    has = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    if any(name not in weights for name in rest) or any(
        has.get(name, value) != value for name, value in _PLAIN.items()
    ):
        return None
    kernel, shape, made = weights[rest[0]], shapes(source), shapes(output)
    count, side = kernel.shape[0], kernel.shape[-1]
    if len(shape) != 4 or made != (shape[0], count, *shape[2:]) or kernel.dtype != np.float32:
        return None
    if has.get("kernel_shape", [side] * 2) != [side] * 2 or has.get("pads", [0] * 4) != [side // 2] * 4:
        return None
    bias = weights[rest[1]] if len(rest) > 1 else np.zeros(count, np.float32)
    if not (np.isfinite(kernel).all() and np.isfinite(bias).all()):
        return None
    flat = np.ascontiguousarray(kernel.reshape(count, -1))
    if kernel.shape == (count, 1, 3, 3) and has.get("group", 1) == count == shape[1]:
        return Direct((source,), flat, np.ascontiguousarray(bias), *held)
    if kernel.shape == (count, shape[1], 1, 1) and has.get("group", 1) == 1 and shape[1] <= _CHANNELS:
        return Direct((source,), flat, np.ascontiguousarray(bias), *held, dense=True)
    return None


def pieces(found: Direct, sources: Sequence[Coded], out: Array) -> list[Callable[[], None]]:
    """What is to be done to fill `out` (float32, in one piece), in pieces for several threads. The codes are of
    `machine_code.KINDS`."""
    codes = [np.ascontiguousarray(source.codes) for source in sources]
    encodings = [source.encoding for source in sources]
    work: _Rows | _Tiles
    if found.dense:
        channels, size = codes[0].shape[1], math.prod(out.shape[2:])
        parts = out.shape[0] * -(-size // _TILE)
        work = _Tiles(found, codes[0], encodings[0], out, (out.shape[0], channels, size))
    elif len(codes) == 1:
        parts, height, width = out.shape[0] * out.shape[1], *out.shape[2:]
        work = _Rows(found, codes, encodings, out, (parts, height, width))
    else:
        width = math.gcd(out.size, _LINE)
        parts = out.size // width
        work = _Rows(found, codes, encodings, out, (parts, 1, width))
    count = max(1, min(parts, out.size // _PIECE))
    ends = [parts * number // count for number in range(count + 1)]
    return [partial(work, first, last) for first, last in itertools.pairwise(ends)]


@dataclass(frozen=True)
class _Rows:
    found: Direct
    codes: list[Array]
    encodings: list[Any]
    out: Array
    shape: tuple[int, int, int]

    def __call__(self, first: int, last: int) -> None:
        codes, encodings = self.codes, self.encodings
        pad = 2 * (len(codes) == 1)
        rows = np.zeros((len(codes), 1 + pad, self.shape[2] + pad), np.float32)
        kinds = np.array([KINDS.index(each.dtype.name) for each in codes], np.int64)
        inverses = np.array([1.0 / each.scale for each in encodings], np.float32)
        zeros = np.array([each.zero_point for each in encodings], np.float32)
        bounds = np.array([self.found.low, self.found.high], np.float32)
        returned = np.zeros(2, np.uintp)
        arrays = (codes[0], codes[-1], kinds, inverses, zeros, self.found.weights, self.found.bias)
        taps()(
            returned.ctypes.data,
            returned.ctypes.data + returned.itemsize,
            *(array.ctypes.data for array in arrays),
            self.found.bias.size,
            bounds.ctypes.data,
            rows.ctypes.data,
            len(codes),
            *self.shape,
            first,
            last,
            self.out.ctypes.data,
        )


@dataclass(frozen=True)
class _Tiles:
    """`shape`: pictures, channels, pixels of a picture."""

    found: Direct
    codes: Array
    encoding: Any
    out: Array
    shape: tuple[int, int, int]

    def __call__(self, first: int, last: int) -> None:
        pictures, channels, size = self.shape
        made = self.found.bias.size
        groups = -(-made // ROWS)
        weights, bias = np.zeros((groups * ROWS, channels), np.float32), np.zeros(groups * ROWS, np.float32)
        weights[:made], bias[:made] = self.found.weights, self.found.bias
        weights = np.ascontiguousarray(weights.reshape(groups, ROWS, channels).transpose(0, 2, 1))
        tile, rest = np.zeros((channels, _TILE), np.float32), np.zeros((ROWS, _BLOCK), np.float32)
        returned = np.zeros(2, np.uintp)
        pointwise()(
            returned.ctypes.data,
            returned.ctypes.data + returned.itemsize,
            self.codes.ctypes.data,
            KINDS.index(self.codes.dtype.name),
            self.encoding.zero_point,
            1.0 / self.encoding.scale,
            weights.ctypes.data,
            bias.ctypes.data,
            self.found.low,
            self.found.high,
            tile.ctypes.data,
            rest.ctypes.data,
            pictures,
            channels,
            _TILE,
            size,
            made,
            first,
            last,
            self.out.ctypes.data,
        )
