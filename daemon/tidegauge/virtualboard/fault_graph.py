"""Builds faults into a twin's graph, each right after its layer's healthy output."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx

from tidegauge.virtualboard.faults import Fault, check
from tidegauge.virtualboard.network import TwinLayer, TwinNetwork
from tidegauge.virtualboard.twin import Graph

BAND = (0.40, 0.55)


def insert(model: onnx.ModelProto, network: TwinNetwork, faults: Iterable[Fault]) -> None:
    """Change the twin in place: after each faulty layer's healthy output comes its fault."""
    faults = tuple(faults)
    check(network, faults)
    for fault in faults:
        _insert(model, network.layer(fault.layer), fault)


def _insert(model: onnx.ModelProto, layer: TwinLayer, fault: Fault) -> None:
    healthy = f"{layer.name}::healthy"
    position = next(i for i, node in enumerate(model.graph.node) if layer.name in node.output)
    producer = model.graph.node[position]
    producer.output[list(producer.output).index(layer.name)] = healthy
    graph = Graph({})
    prefix = f"{layer.name}::fault"
    quant = layer.quant
    value = healthy if quant.is_float else graph.dequantise(healthy, quant, 1.0 / quant.scale, f"{prefix}::in")
    value = _apply(graph, value, layer, fault, prefix)
    if quant.is_float:
        graph.add("Identity", [value], layer.name)
    else:
        graph.quantise(value, quant, np.asarray(1.0 / quant.scale, np.float32), f"{prefix}::out")
        graph.add("Identity", [f"{prefix}::out"], layer.name)
    model.graph.initializer.extend(graph.initializers.values())
    following = list(model.graph.node)[position + 1 :]
    del model.graph.node[position + 1 :]
    model.graph.node.extend([*graph.nodes, *following])


def _apply(graph: Graph, value: str, layer: TwinLayer, fault: Fault, prefix: str) -> str:
    amount, span = fault.strength, _span(layer)
    if fault.kind in ("gain", "zero"):
        factor = amount if fault.kind == "gain" else 0.0
        return graph.add("Mul", [value, graph.const(f"{prefix}::by", np.float32(factor))], prefix)
    if fault.kind == "offset":
        return graph.add("Add", [value, graph.const(f"{prefix}::by", np.float32(amount * span))], prefix)
    if fault.kind == "band":
        return graph.add("Add", [value, graph.const(f"{prefix}::by", _band(layer, amount * span))], prefix)
    if fault.kind == "saturate":
        top = layer.high if layer.quant.is_float else layer.quant.value_range[1]
        bound = graph.const(f"{prefix}::bound", np.float32(min(layer.low, 0.0) + amount * span))
        above = graph.add("Greater", [value, bound], f"{prefix}::above")
        return graph.add("Where", [above, graph.const(f"{prefix}::top", np.float32(top)), value], prefix)
    if fault.kind == "channel_swap":
        axis = len(layer.shape) - 3
        order = np.roll(np.arange(layer.shape[axis]), int(amount)).astype(np.int64)
        return graph.add("Gather", [value, graph.const(f"{prefix}::order", order)], prefix, axis=axis)
    mask = np.zeros(layer.shape, np.bool_)
    mask.ravel()[np.linspace(0, mask.size - 1, min(int(amount), mask.size)).astype(np.int64)] = True
    where = graph.const(f"{prefix}::where", mask)
    return graph.add("Where", [where, graph.const(f"{prefix}::nan", np.float32(np.nan)), value], prefix)


def _span(layer: TwinLayer) -> float:
    span = max(layer.high, 0.0) - min(layer.low, 0.0)
    return span if span > 0 else 1.0


def _band(layer: TwinLayer, by: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    height = layer.dims[4]
    rows = np.zeros((height, 1), np.float32)
    rows[int(BAND[0] * height) : max(int(BAND[1] * height), int(BAND[0] * height) + 1)] = by
    return rows
