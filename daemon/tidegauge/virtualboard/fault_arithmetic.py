"""Faults inside a convolution's or inner product's arithmetic: weights, bias, accumulator, requantisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.network import TwinLayer
from tidegauge.virtualboard.twin import Graph

Array = NDArray[Any]


def insert_inside(model: onnx.ModelProto, layer: TwinLayer, fault: Fault) -> None:
    """Change the twin in place."""
    amount, name = fault.strength, layer.name
    if fault.kind == "weights":
        weights = _constant(model, f"{name}::1")
        top = np.abs(weights).max()
        _replace(model, f"{name}::1", np.clip(_rounded(weights * amount, layer), -top, top))
    elif fault.kind == "bias":
        _replace(model, f"{name}::2", _rounded(_constant(model, f"{name}::2") * amount, layer))
    elif fault.kind == "requantise":
        _replace(model, f"{name}::step", _constant(model, f"{name}::step") / 2.0**amount)
    else:
        _wrap(model, layer, amount)


def _rounded(values: Array, layer: TwinLayer) -> Array:
    return values if layer.quant.is_float else np.rint(values)


def _initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    found: onnx.TensorProto = next(item for item in model.graph.initializer if item.name == name)
    return found


def _constant(model: onnx.ModelProto, name: str) -> Array:
    return numpy_helper.to_array(_initializer(model, name))


def _replace(model: onnx.ModelProto, name: str, value: Array) -> None:
    _initializer(model, name).CopyFrom(numpy_helper.from_array(value.astype(np.float32), name))


def _wrap(model: onnx.ModelProto, layer: TwinLayer, amount: float) -> None:
    """Sums wrap at plus and minus `amount` times the largest calibrated one: x - 2m * floor((x + m) / 2m)."""
    exact, prefix = f"{layer.name}::accumulator::exact", f"{layer.name}::accumulator"
    position = next(i for i, node in enumerate(model.graph.node) if prefix in node.output)
    model.graph.node[position].output[0] = exact
    largest = max(abs(layer.low), abs(layer.high))
    # Sums in units of the accumulator: the output's step is how many of them make one code.
    unit: Array = np.asarray(1.0)
    if not layer.quant.is_float:
        step = _constant(model, f"{layer.name}::step")
        unit = step.reshape([1, -1, *[1] * (len(layer.shape) - 2)]) if step.ndim and len(layer.shape) > 2 else step
        unit = unit * layer.quant.scale
    limit = np.asarray(amount * largest * unit, np.float32)
    graph = Graph({})
    bound = graph.const(f"{prefix}::bound", limit)
    period = graph.const(f"{prefix}::period", 2 * limit)
    raised = graph.add("Add", [exact, bound], f"{prefix}::raised")
    turns = graph.add("Floor", [graph.add("Div", [raised, period], f"{prefix}::ratio")], f"{prefix}::turns")
    graph.add("Sub", [exact, graph.add("Mul", [turns, period], f"{prefix}::excess")], prefix)
    model.graph.initializer.extend(graph.initializers.values())
    following = list(model.graph.node)[position + 1 :]
    del model.graph.node[position + 1 :]
    model.graph.node.extend([*graph.nodes, *following])
