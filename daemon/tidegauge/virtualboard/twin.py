"""Builds the quantised twin: an ONNX graph whose tensors between layers are integer codes.

A layer with weights adds up products of integers, held in float32. For 8-bit codes all sums stay below 2**24 in
networks of usual size, so they are exact and the codes are the same on every CPU; for 16-bit codes they are rounded.
Quantisation uses the `com.microsoft` operators, which know 16-bit codes in every opset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tidegauge.virtualboard import layouts
from tidegauge.virtualboard.lowering import Lowered, Region
from tidegauge.virtualboard.network import Quant
from tidegauge.virtualboard.operators import Activation, Domain, attribute
from tidegauge.virtualboard.quantise import WeightRules

Array = NDArray[Any]
Float = NDArray[np.float32]
MS = "com.microsoft"


@dataclass(frozen=True)
class Weights:
    """What the compile wrote down about a layer's weights. Scales: one, or one a channel (codes a unit)."""

    bits: int
    low: float
    high: float
    scale: Float
    bias: Float | None
    bias_scale: Float


def net_format(name: str) -> str:
    return f"{name}_netFormat"


def original(name: str) -> str:
    return f"{name}_original"


class Names:
    """From ONNX tensor names to TIDL's: a graph input is read as X_netFormat, a graph output as X_original."""

    def __init__(self, lowered: Lowered) -> None:
        self._map = {name: net_format(name) for name in lowered.inputs}
        self._map |= {name: original(name) for name in lowered.outputs}

    def __getitem__(self, tensor: str) -> str:
        return self._map.get(tensor, tensor)


class Graph:
    """A growing ONNX graph in which layer tensors are codes."""

    def __init__(self, quants: dict[str, Quant]) -> None:
        self.quants = quants
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self._read: dict[tuple[str, bool], str] = {}

    def const(self, name: str, value: Array | np.floating[Any]) -> str:
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def add(self, op: str, inputs: list[str], output: str, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], domain=domain, **attributes))
        return output

    def dequantise(self, codes: str, quant: Quant, step: float, output: str) -> str:
        """(code - zero point) * step, float32."""
        scale = self.const(f"{output}::step", np.float32(step))
        zero = self.const(f"zero::{quant.dtype}::{quant.zero_point}", np.asarray(quant.zero_point, quant.dtype))
        return self.add("DequantizeLinear", [codes, scale, zero], output, MS)

    def quantise(self, source: str, quant: Quant, step: Float, output: str, axis: int = 1) -> str:
        """round(source / step) + zero point, saturated. One step, or one for each index of `axis`."""
        scale = self.const(f"{output}::step", step.astype(np.float32))
        zero = self.const(f"{output}::zero", np.full(step.shape, quant.zero_point, quant.dtype))
        extra = {"axis": axis} if step.ndim else {}
        return self.add("QuantizeLinear", [source, scale, zero], output, MS, **extra)

    def integers(self, layer: str) -> str:
        """The layer's codes minus its zero point, as float32."""
        return self._reader(layer, False)

    def values(self, layer: str) -> str:
        """The layer's values, float32."""
        return self._reader(layer, True)

    def _reader(self, layer: str, values: bool) -> str:
        key = (layer, values)
        if key not in self._read:
            quant = self.quants[layer]
            step = 1.0 / quant.scale if values else 1.0
            name = f"{layer}::{'values' if values else 'integers'}"
            self._read[key] = self.dequantise(layer, quant, step, name)
        return self._read[key]

    def activate(self, source: str, activation: Activation | None, unit: Float, quant: Quant, layer: str) -> str:
        """Apply an activation to a tensor in units of `unit`; a bound the code range implies costs nothing."""
        if activation is None:
            return source
        if activation.kind == "leaky":
            return self.add("LeakyRelu", [source], f"{layer}::leaky", alpha=activation.slope)
        low, high = quant.value_range
        margin = 0.5 / quant.scale
        if activation.low > low + margin:
            source = self.add("Max", [source, self._bound(f"{layer}::low", activation.low, unit)], f"{layer}::max")
        if activation.high < high - margin:
            source = self.add("Min", [source, self._bound(f"{layer}::high", activation.high, unit)], f"{layer}::min")
        return source

    def _bound(self, name: str, value: float, unit: Float) -> str:
        return self.const(name, (np.float64(value) / unit).astype(np.float32))

    def emit(self, node: onnx.NodeProto, inputs: dict[str, str], consts: dict[str, Array], output: str) -> str:
        """The node again with other names of inputs and output; its constants become initializers."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = output
        for position, name in enumerate(node.input):
            copy.input[position] = self.const(name, consts[name]) if name in consts else inputs.get(name, name)
        del copy.output[:]
        copy.output.append(output)
        self.nodes.append(copy)
        return output


def build(
    lowered: Lowered, quants: dict[str, Quant], wide_params: frozenset[str], rules: WeightRules
) -> tuple[onnx.ModelProto, dict[str, Weights]]:
    """The twin of a lowered model, given each layer tensor's quantisation, and what became of the weights.

    `wide_params`: layers with 16-bit weights although their output has 8 bits.
    """
    graph, names, weights = Graph(quants), Names(lowered), dict[str, Weights]()
    for name in lowered.inputs:
        layer = net_format(name)
        source = name
        if name in lowered.inner:
            source = graph.add("Transpose", [name], f"{layer}::nchw", perm=layouts.TO_NCHW)
        if quants[layer].is_float:
            graph.add("Identity", [source], layer)
            continue
        graph.quantise(source, quants[layer], np.asarray(1.0 / quants[layer].scale, np.float32), layer)
    for region in lowered.regions:
        layer = names[region.name]
        bits = 16 if layer in wide_params else quants[layer].bits
        emit = _float if quants[layer].is_float else _EMIT[region.domain]
        used = emit(graph, region, names, bits, rules)
        if used is not None:
            weights[layer] = used
    for name in lowered.outputs:
        quant = quants[original(name)]
        value = f"{name}::nchw" if name in lowered.inner else name
        if quant.is_float:
            graph.add("Identity", [original(name)], value)
        else:
            integers = graph.dequantise(original(name), quant, 1.0, f"{name}::integers")
            graph.add("Div", [integers, graph.const(f"{name}::scale", np.float32(quant.scale))], value)
        if name in lowered.inner:
            graph.add("Transpose", [value], name, perm=layouts.TO_NHWC)
    return _model(lowered, graph, names), weights


def _mac(graph: Graph, region: Region, names: Names, bits: int, rules: WeightRules) -> Weights:
    layer, node, source = names[region.name], region.node, names[region.inputs[0]]
    float_weights = region.consts[node.input[1]].astype(np.float32)
    axis = 0 if node.op_type == "Conv" or attribute(node, "transB", 0) else 1
    codes, scale = rules.quantise(layer, float_weights, bits, axis)
    input_scale = np.float32(graph.quants[source].scale)
    accumulator_scale = np.asarray(scale * input_scale, np.float32)
    consts: dict[str, Array] = {node.input[1]: codes}
    bias = region.consts[node.input[2]].astype(np.float32) if len(node.input) > 2 and node.input[2] else None
    if bias is not None:
        consts[node.input[2]] = np.rint(bias.astype(np.float64) * accumulator_scale).astype(np.float32)
    local = _localised(node, layer, consts)
    accumulator = graph.emit(local[0], {region.inputs[0]: graph.integers(source)}, local[1], f"{layer}::accumulator")
    quant, channel_axis = graph.quants[layer], 1 if node.op_type == "Conv" else len(region.shape) - 1
    unit = 1.0 / accumulator_scale
    shaped = unit
    if scale.ndim and node.op_type == "Conv":
        shaped = unit.reshape(1, -1, *[1] * (len(region.shape) - 2))
    activated = graph.activate(accumulator, region.activation, shaped, quant, layer)
    graph.quantise(
        activated, quant, np.asarray(accumulator_scale / np.float32(quant.scale), np.float32), layer, channel_axis
    )
    low, high = float(float_weights.min()), float(float_weights.max())
    return Weights(bits, low, high, scale, bias, accumulator_scale)


def _localised(node: onnx.NodeProto, layer: str, consts: dict[str, Array]) -> tuple[onnx.NodeProto, dict[str, Array]]:
    """Constants under names of the layer: two layers may share a float constant but not its quantised form."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for position, name in enumerate(node.input):
        if name in consts:
            copy.input[position] = f"{layer}::{position}"
    return copy, {f"{layer}::{list(node.input).index(name)}": value for name, value in consts.items()}


def _linear(graph: Graph, region: Region, names: Names, bits: int, rules: WeightRules) -> None:
    layer, source = names[region.name], names[region.inputs[0]]
    result = graph.emit(region.node, {region.inputs[0]: graph.integers(source)}, region.consts, f"{layer}::result")
    quant = graph.quants[layer]
    unit = np.asarray(1.0 / graph.quants[source].scale, np.float32)
    activated = graph.activate(result, region.activation, unit, quant, layer)
    graph.quantise(activated, quant, np.asarray(graph.quants[source].scale / quant.scale, np.float32), layer)


def _move(graph: Graph, region: Region, names: Names, bits: int, rules: WeightRules) -> None:
    source = names[region.inputs[0]]
    graph.emit(region.node, {region.inputs[0]: source}, region.consts, names[region.name])


def _real(graph: Graph, region: Region, names: Names, bits: int, rules: WeightRules) -> Weights | None:
    layer = names[region.name]
    consts, used = dict(region.consts), None
    if consts and region.node.op_type in ("Add", "Sub", "Mul"):
        ((name, value),) = consts.items()
        codes, scale = rules.quantise(layer, value.astype(np.float32), bits)
        consts = {name: (codes / scale).astype(np.float32)}
        used = Weights(bits, float(value.min()), float(value.max()), scale, None, scale)
    node, consts = _localised(region.node, layer, consts)
    inputs = {name: graph.values(names[name]) for name in region.inputs}
    result = graph.emit(node, inputs, consts, f"{layer}::result")
    quant = graph.quants[layer]
    activated = graph.activate(result, region.activation, np.asarray(1.0, np.float32), quant, layer)
    graph.quantise(activated, quant, np.asarray(1.0 / quant.scale, np.float32), layer)
    return used


def _float(graph: Graph, region: Region, names: Names, bits: int, rules: WeightRules) -> Weights | None:
    """tensor_bits 32: the float layer itself, with names inside it as in a quantised one."""
    layer, node = names[region.name], region.node
    local, consts = _localised(node, layer, region.consts)
    inputs = {name: names[name] for name in region.inputs}
    accumulator = graph.emit(local, inputs, consts, f"{layer}::accumulator")
    activation, one = region.activation, np.asarray(1.0, np.float32)
    if activation is not None and activation.kind != "leaky":
        for word, op, bound in (("low", "Max", activation.low), ("high", "Min", activation.high)):
            if np.isfinite(bound):
                limit = graph.const(f"{layer}::{word}", np.float32(bound))
                accumulator = graph.add(op, [accumulator, limit], f"{layer}::{op.lower()}")
    elif activation is not None:
        accumulator = graph.activate(accumulator, activation, one, graph.quants[layer], layer)
    graph.add("Identity", [accumulator], layer)
    if region.domain is not Domain.MAC:
        return None
    weights = region.consts[node.input[1]].astype(np.float32)
    bias = region.consts[node.input[2]].astype(np.float32) if len(node.input) > 2 and node.input[2] else None
    return Weights(32, float(weights.min()), float(weights.max()), one, bias, one)


_EMIT = {Domain.MAC: _mac, Domain.LINEAR: _linear, Domain.MOVE: _move, Domain.REAL: _real}


def _model(lowered: Lowered, graph: Graph, names: Names) -> onnx.ModelProto:
    def info(name: str, dtype: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    inputs = [info(name, "float32", shape) for name, shape in lowered.inputs.items()]
    outputs = [info(net_format(n), str(graph.quants[net_format(n)].dtype), lowered.shapes[n]) for n in lowered.inputs]
    for region in lowered.regions:
        layer = names[region.name]
        outputs.append(info(layer, str(graph.quants[layer].dtype), region.shape))
    outputs += [info(name, "float32", shape) for name, shape in lowered.outputs.items()]
    proto = helper.make_graph(graph.nodes, "twin", inputs, outputs, list(graph.initializers.values()))
    opsets = [helper.make_opsetid("", lowered.opset), helper.make_opsetid(MS, 1)]
    return helper.make_model(proto, opset_imports=opsets, ir_version=10, producer_name="tidegauge virtual board")
