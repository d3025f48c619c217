"""Builds faults into a twin's graph, each right after its layer's healthy output or inside its arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tidegauge.virtualboard.fault_arithmetic import insert_inside
from tidegauge.virtualboard.faults import INSIDE, Fault, Kind, check, expand
from tidegauge.virtualboard.network import TwinLayer, TwinNetwork
from tidegauge.virtualboard.twin import Graph

BAND = (0.40, 0.55)
Float = NDArray[np.float32]


@dataclass(frozen=True)
class Memory:
    """What a fault remembers from run to run. The graph's input `before` takes what its output `now` gave the last
    time (first run: zeros of `shape`), its input `runs` the number of runs so far, a float32 scalar."""

    before: str
    now: str
    runs: str
    shape: tuple[int, ...]


def insert(model: onnx.ModelProto, network: TwinNetwork, faults: Iterable[Fault]) -> tuple[Memory, ...]:
    """Change the twin in place. Returns what has to be carried from run to run."""
    faults = tuple(faults)
    check(network, faults)
    memories: list[Memory] = []
    for fault in expand(network, faults):
        layer = network.layer(fault.layer)
        if fault.kind in INSIDE:
            insert_inside(model, layer, fault)
        else:
            memories += _insert(model, layer, fault)
    return tuple(memories)


def _insert(model: onnx.ModelProto, layer: TwinLayer, fault: Fault) -> list[Memory]:
    healthy = f"{layer.name}::healthy"
    position = next(i for i, node in enumerate(model.graph.node) if layer.name in node.output)
    producer = model.graph.node[position]
    producer.output[list(producer.output).index(layer.name)] = healthy
    graph = Graph({})
    prefix = f"{layer.name}::fault"
    quant = layer.quant
    value = healthy if quant.is_float else graph.dequantise(healthy, quant, 1.0 / quant.scale, f"{prefix}::in")
    memories = [_remember(model, layer, value)] if fault.kind in ("stale", "first_frame") else []
    value = _APPLY[fault.kind](_Place(graph, value, layer, fault, prefix))
    if quant.is_float:
        graph.add("Identity", [value], layer.name)
    else:
        graph.quantise(value, quant, np.asarray(1.0 / quant.scale, np.float32), f"{prefix}::out")
        graph.add("Identity", [f"{prefix}::out"], layer.name)
    model.graph.initializer.extend(graph.initializers.values())
    following = list(model.graph.node)[position + 1 :]
    del model.graph.node[position + 1 :]
    model.graph.node.extend([*graph.nodes, *following])
    return memories


def _remember(model: onnx.ModelProto, layer: TwinLayer, value: str) -> Memory:
    kind = onnx.TensorProto.FLOAT
    memory = Memory(f"{layer.name}::before", value, f"{layer.name}::runs", layer.shape)
    model.graph.input.append(helper.make_tensor_value_info(memory.before, kind, layer.shape))
    model.graph.input.append(helper.make_tensor_value_info(memory.runs, kind, []))
    model.graph.output.append(helper.make_tensor_value_info(value, kind, layer.shape))
    return memory


@dataclass(frozen=True)
class _Place:
    """Where a fault goes: the healthy float values, and the graph that grows after them."""

    graph: Graph
    value: str
    layer: TwinLayer
    fault: Fault
    prefix: str

    @property
    def amount(self) -> float:
        return self.fault.strength

    @property
    def span(self) -> float:
        span = max(self.layer.high, 0.0) - min(self.layer.low, 0.0)
        return span if span > 0 else 1.0

    @property
    def code(self) -> float:
        """One code in values."""
        return self.span / 255 if self.layer.quant.is_float else 1.0 / self.layer.quant.scale

    def const(self, name: str, value: NDArray[np.generic] | np.generic) -> str:
        return self.graph.const(f"{self.prefix}::{name}", np.asarray(value))

    def add(self, value: Float | np.float32) -> str:
        return self.graph.add("Add", [self.value, self.const("by", value)], self.prefix)

    def random(self) -> np.random.Generator:
        """The same for the same layer, in every process."""
        return np.random.default_rng(crc32(self.layer.name.encode()))


def _gain(at: _Place) -> str:
    factor = at.amount if at.fault.kind == "gain" else 0.0
    return at.graph.add("Mul", [at.value, at.const("by", np.float32(factor))], at.prefix)


def _offset(at: _Place) -> str:
    return at.add(np.float32(at.amount * at.span))


def _band(at: _Place) -> str:
    height = at.layer.dims[4]
    rows = np.zeros((height, 1), np.float32)
    rows[int(BAND[0] * height) : max(int(BAND[1] * height), int(BAND[0] * height) + 1)] = at.amount * at.span
    return at.add(rows)


def _saturate(at: _Place) -> str:
    layer = at.layer
    top = layer.high if layer.quant.is_float else layer.quant.value_range[1]
    bound = at.const("bound", np.float32(min(layer.low, 0.0) + at.amount * at.span))
    above = at.graph.add("Greater", [at.value, bound], f"{at.prefix}::above")
    return at.graph.add("Where", [above, at.const("top", np.float32(top)), at.value], at.prefix)


def _channel_swap(at: _Place) -> str:
    axis = len(at.layer.shape) - 3
    order = np.roll(np.arange(at.layer.shape[axis]), int(at.amount)).astype(np.int64)
    return at.graph.add("Gather", [at.value, at.const("order", order)], at.prefix, axis=axis)


def _spread(shape: tuple[int, ...], count: int) -> NDArray[np.bool_]:
    mask = np.zeros(shape, np.bool_)
    mask.ravel()[np.linspace(0, mask.size - 1, min(count, mask.size)).astype(np.int64)] = True
    return mask


def _nan(at: _Place) -> str:
    where = at.const("where", _spread(at.layer.shape, int(at.amount)))
    return at.graph.add("Where", [where, at.const("nan", np.float32(np.nan)), at.value], at.prefix)


def _boundary_column(at: _Place) -> str:
    columns = np.zeros(at.layer.shape[-1], np.float32)
    columns[-1] = at.amount * at.span
    return at.add(columns)


def _one_channel(at: _Place) -> str:
    channels, height, width = at.layer.shape[-3:]
    codes = np.zeros((channels, height, width), np.float32)
    rows, columns = np.indices((height, width))
    codes[int(at.amount)] = np.where((rows + columns) % 2, -at.code, at.code)
    return at.add(codes)


def _shear(at: _Place) -> str:
    shape = at.layer.shape
    height, width = shape[-2:]
    rows, columns = np.indices((height, width))
    order = (rows * (width + int(at.amount)) + columns) % (height * width)
    flat = at.const("flat", np.asarray([*shape[:-2], height * width], np.int64))
    line = at.graph.add("Reshape", [at.value, flat], f"{at.prefix}::line")
    moved = at.graph.add("Gather", [line, at.const("order", order.ravel())], f"{at.prefix}::moved", axis=len(shape) - 2)
    return at.graph.add("Reshape", [moved, at.const("shape", np.asarray(shape, np.int64))], at.prefix)


def _first(at: _Place) -> str:
    """A boolean scalar: this is the first run."""
    return at.graph.add("Less", [f"{at.layer.name}::runs", at.const("one", np.float32(1))], f"{at.prefix}::first")


def _stale(at: _Place) -> str:
    return at.graph.add("Where", [_first(at), at.value, f"{at.layer.name}::before"], at.prefix)


def _first_frame(at: _Place) -> str:
    low = min(at.layer.low, 0.0)
    garbage = at.random().uniform(low, low + at.span, at.layer.shape).astype(np.float32)
    return at.graph.add("Where", [_first(at), at.const("garbage", garbage), at.value], at.prefix)


def _rounding(at: _Place) -> str:
    draw = at.random().uniform(0, 1, at.layer.shape)
    codes = np.where(draw < at.amount / 2, -at.code, np.where(draw < at.amount, at.code, 0.0))
    if not codes.any():
        codes.ravel()[0] = at.code
    return at.add(codes.astype(np.float32))


def _tiny(at: _Place) -> str:
    # Away from the ends of the code range, where one code more would be cut off.
    middle = at.const("middle", np.float32(min(at.layer.low, 0.0) + at.span / 2))
    above = at.graph.add("Greater", [at.value, middle], f"{at.prefix}::above")
    codes = np.where(_spread(at.layer.shape, int(at.amount)), at.code, 0.0).astype(np.float32)
    up, down = at.const("up", codes), at.const("down", -codes)
    step = at.graph.add("Where", [above, down, up], f"{at.prefix}::step")
    return at.graph.add("Add", [at.value, step], at.prefix)


def _coarse(at: _Place) -> str:
    unit = at.const("unit", np.float32(at.code * 2.0 ** int(at.amount)))
    counted = at.graph.add("Div", [at.value, unit], f"{at.prefix}::counted")
    whole = at.graph.add("Floor", [counted], f"{at.prefix}::whole")
    return at.graph.add("Mul", [whole, unit], at.prefix)


_APPLY: dict[Kind, Callable[[_Place], str]] = {
    "gain": _gain,
    "zero": _gain,
    "offset": _offset,
    "band": _band,
    "saturate": _saturate,
    "channel_swap": _channel_swap,
    "nan": _nan,
    "boundary_column": _boundary_column,
    "one_channel": _one_channel,
    "shear": _shear,
    "stale": _stale,
    "first_frame": _first_frame,
    "rounding": _rounding,
    "tiny": _tiny,
    "coarse": _coarse,
}
