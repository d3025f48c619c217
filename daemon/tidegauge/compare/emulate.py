"""The device as it would be with some regions changed: what a compile option is worth before anybody compiles.

One graph holds the whole network. Every traced tensor is rounded and clipped to its codes as a right device does,
with the weights that explain the device's run; what a wrong region adds beyond that is added as it was recorded.
Unchanged, the graph gives what the device gave. Scales, bounds, weights and recorded errors are inputs with defaults,
so that one session serves every "what if".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tidegauge.compare.compiled import Subgraph
from tidegauge.compare.cutgraph import part_for
from tidegauge.compare.layers import STATED, Evaluation, Layer
from tidegauge.compare.model import reads
from tidegauge.compare.weights import (
    SCHEMES,
    Scheme,
    bias_of,
    held_bias,
    round_bias,
    scheme_scales,
    to_scales,
    weight_inputs,
)
from tidegauge.errors import TidegaugeError

Array = NDArray[Any]

#: What is changed about a region. exact: its float local output, neither rounded nor clipped. wide: 16 bits for output
#: and weights, same range. params: 16-bit weights only. cpu: computed in float, then rounded as the C7x reads it back.
#: range: a code range wide enough for the float values of this input, with a step to match.
Change = Literal["exact", "wide", "params", "cpu", "range"]

#: Finer than any code by this factor is as good as float, and still exact in float32.
_FINE = 4096.0
#: ONNX operators that only select or move values: their output has the codes of what they read.
MOVING = frozenset(
    {"Slice", "Split", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Dropout", "MaxPool"}
)
_FAILURES = (
    onnxruntime.capi.onnxruntime_pybind11_state.Fail,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph,
    onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented,
    onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException,
)


class Emulator:
    """`wrong`: float tensor name → what the device's region adds to its right local output, in the tensor's unit and
    the float model's shape (from `recorded_error`). Raises `TidegaugeError` where onnxruntime can't run the graph."""

    def __init__(self, work: Evaluation, wrong: Mapping[str, Array], subgraphs: Mapping[str, Subgraph]) -> None:
        self._work, self._wrong = work, wrong
        #: Scales of the device's weights, by region and weight; and those weights.
        self._held = {name: _weight_scales(work, layer, subgraphs) for name, layer in work.by_twin.items()}
        self._weights = {name: _held_weights(work, layer, self._held[name]) for name, layer in work.by_twin.items()}
        self._rounded = [name for name in work.by_twin if name in wrong or _rounds(work, work.by_twin[name])]
        proto = _build(work, self._rounded, wrong, self._weights)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        try:
            self._session: Any = onnxruntime.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except _FAILURES as error:
            raise TidegaugeError(f"the network can't be emulated as a whole: {error}") from error
        self._live: dict[str, tuple[float, float]] = {}
        self._takes = {item.name for item in self._session.get_inputs()}
        self._takes |= {item.name for item in self._session.get_overridable_initializers()}

    @property
    def changeable(self) -> list[str]:
        """The regions that round or are wrong, in the order of execution."""
        order = self._work.reference.model.producer
        return sorted(self._rounded, key=lambda name: order.get(name, -1))

    def run(self, changes: Mapping[str, Change]) -> dict[str, Array]:
        """The network's outputs by name, with these regions changed (by float tensor name)."""
        feeds: dict[str, Array] = dict(self._work.reference.inputs)
        scales = {name: scale for name, change in changes.items() if (scale := self._scale(name, change)) is not None}
        feeds |= self._biases(scales)
        for name, change in changes.items():
            feeds |= self._feeds(name, change, scales)
        try:
            values = self._session.run(None, {name: value for name, value in feeds.items() if name in self._takes})
        except _FAILURES as error:
            raise TidegaugeError(f"the network can't be emulated as a whole: {error}") from error
        return dict(zip(self._work.reference.model.outputs, values, strict=True))

    def _scale(self, name: str, change: Change) -> float | None:
        """The scale that a tensor has with its change, where it has another one."""
        layer = self._work.by_twin[name]
        if name not in self._rounded or layer.encoding is None or not layer.encoding.integer:
            return None
        if change == "range":
            return layer.encoding.scale / self._widening(name)
        if change == "wide" and np.dtype(layer.encoding.dtype).itemsize == 1:
            return _wide_codes(layer)[0]
        return None

    def _biases(self, scales: Mapping[str, float]) -> dict[str, Array]:
        """Biases of what reads these tensors: their unit is that of the codes that are read, times the weights'."""
        found: dict[str, Array] = {}
        for name, held in self._held.items():
            for weight, own in held.items() if set(self._work.by_twin[name].reads) & scales.keys() else ():
                found |= _bias(self._work, weight, own, scales)
        return found

    def _feeds(self, name: str, change: Change, scales: Mapping[str, float]) -> dict[str, Array]:
        """`scales`: of all tensors that have another one now."""
        layer = self._work.by_twin[name]
        feeds: dict[str, Array] = {}
        if change in ("exact", "cpu"):
            feeds |= {weight: self._work.reference.model.weights[weight] for weight in self._weights[name]}
        elif change in ("wide", "params") and self._weights[name]:
            feeds |= _wide_weights(self._work, layer, self._held[name], scales)
        if name not in self._rounded or layer.encoding is None:
            return feeds
        if name in self._wrong and change != "params":
            feeds[f"{name}::error"] = np.zeros_like(self._wrong[name])
        if not layer.encoding.integer:
            return feeds
        scale, low, high = _bounds(layer)
        if change == "exact":
            scale, low, high = scale * _FINE, -math.inf, math.inf
        elif change == "wide" and np.dtype(layer.encoding.dtype).itemsize == 1:
            scale, low, high = _wide_codes(layer)
        elif change == "range":
            scale /= self._widening(name)
        return feeds | _constants(name, scale, low, high)

    def _widening(self, name: str) -> float:
        """How much wider the code range of a tensor must be for the float run of this input."""
        if not self._live:
            for values in self._work.reference.walk():
                ends = {key: (float(value.min()), float(value.max())) for key, value in values.items() if value.size}
                self._live.update(ends)
        encoding = self._work.by_twin[name].encoding
        if encoding is None or name not in self._live:
            return 1.0
        low, high = encoding.value_range
        if encoding.zero_point == 0 and low < 0:
            low = -high  # a symmetric scale is made for the top code: the lowest one is left over
        pairs = zip(self._live[name], (low, high), strict=True)
        return max([1.0, *(live / end for live, end in pairs if end != 0)])


def recorded_error(work: Evaluation, layer: Layer, local: Array) -> Array:
    """What the device's tensor holds beyond its right local output, for `Emulator`."""
    return np.asarray(work.reference.feed(layer.twin).astype(np.float32) - local.astype(np.float32))


class _Held(NamedTuple):
    """Codes in 1 of a weight, one or one an output channel; the bits of a code; the bias that the compile states."""

    scales: Array
    bits: int
    bias: tuple[float, ...] = ()


def _weight_scales(work: Evaluation, layer: Layer, subgraphs: Mapping[str, Subgraph]) -> dict[str, _Held]:
    """Scales of a region's weights as the device holds them; empty where the float ones explain it, or it has none."""
    part = work.reference.region(layer.twin)
    if part is None or layer.weights in ("none", "float"):
        return {}
    model, found = work.reference.model, dict[str, _Held]()
    for weight, axis in weight_inputs(model, part.nodes).items():
        if layer.weights == STATED:
            known = subgraphs[layer.tensor.subgraph].weights[layer.tensor.name]
            found[weight] = _Held(np.asarray(known.scales, np.float64), known.bits, known.bias)
        else:
            scheme = next(scheme for scheme in SCHEMES if scheme.name == layer.weights)
            found[weight] = _Held(scheme_scales(model.weights[weight], axis, scheme), scheme.bits)
    return found


def _held_weights(work: Evaluation, layer: Layer, scales: Mapping[str, _Held]) -> dict[str, Array]:
    """The weights of a region in these scales, and its bias in units of the accumulator."""
    part = work.reference.region(layer.twin)
    if part is None or not scales:
        return {}
    model, held = work.reference.model, dict[str, Array]()
    axes = weight_inputs(model, part.nodes)
    for weight, own in scales.items():
        held[weight] = to_scales(model.weights[weight], axes[weight], own.scales, own.bits)
        held |= _bias(work, weight, own, {})
    return held


def _bias(work: Evaluation, weight: str, held: _Held, changed: Mapping[str, float]) -> dict[str, Array]:
    """The bias beside these weights, in units of the accumulator, where they are known. `changed`: scales of tensors
    that have others than the device gave them."""
    model = work.reference.model
    found = bias_of(model, weight)
    layer = work.by_twin.get(found[0]) if found is not None else None
    if found is None or layer is None or layer.encoding is None or not layer.encoding.integer:
        return {}
    scale = changed.get(layer.twin, layer.encoding.scale)
    return {found[1]: round_bias(held_bias(model, found[1], held.bias), held.scales * scale)}


def _wide_weights(
    work: Evaluation, layer: Layer, held: Mapping[str, _Held], changed: Mapping[str, float]
) -> dict[str, Array]:
    """The weights of a region at 16 bits, in as many scales as it has at 8, with its bias to match."""
    part = work.reference.region(layer.twin)
    model, found = work.reference.model, dict[str, Array]()
    axes = weight_inputs(model, part.nodes) if part is not None else {}
    for weight, own in held.items():
        scales = scheme_scales(model.weights[weight], axes[weight], Scheme("int16", 16, own.scales.size > 1))
        found[weight] = to_scales(model.weights[weight], axes[weight], scales, 16)
        found |= _bias(work, weight, _Held(scales, 16, own.bias), changed)
    return found


def _wide_codes(layer: Layer) -> tuple[float, float, float]:
    """Scale, lowest and highest code (zero point subtracted) of an 8-bit tensor that is given 16 bits for its range.

    The top code stands for the same value: 127 becomes 32767, 255 becomes 65535.
    """
    scale, low, high = _bounds(layer)
    if layer.encoding is not None and layer.encoding.zero_point == 0 and low < 0:
        return scale * 32767.0 / 127.0, -32768.0, 32767.0
    return scale * 257.0, low * 257.0, high * 257.0


def _rounds(work: Evaluation, layer: Layer) -> bool:
    """Whether a region makes codes of its own, other than by moving those that it reads."""
    if layer.encoding is None or not layer.encoding.integer or layer.twin not in work.reference.model.producer:
        return False
    if not set(layer.operators) <= MOVING or len(layer.reads) != 1:
        return True
    return work.by_twin[layer.reads[0]].encoding != layer.encoding


def _bounds(layer: Layer) -> tuple[float, float, float]:
    if layer.encoding is None:
        raise ValueError(f"{layer.tensor.name} has no encoding")
    low, high = layer.encoding.code_range
    return layer.encoding.scale, float(low - layer.encoding.zero_point), float(high - layer.encoding.zero_point)


def _constants(name: str, scale: float, low: float, high: float) -> dict[str, Array]:
    values = {"step": 1.0 / scale, "low": low, "high": high}
    return {f"{name}::{word}": np.asarray(value, np.float32) for word, value in values.items()}


def _build(
    work: Evaluation, changed: Sequence[str], wrong: Mapping[str, Array], weights: Mapping[str, Mapping[str, Array]]
) -> Any:
    model = work.reference.model
    part = part_for(model, model.outputs, ())
    names = set(changed)
    hidden = work.reference.rounding
    defaults: dict[str, Array] = {}
    nodes: list[Any] = []
    used: dict[str, None] = {}
    for index in part.nodes:
        node = onnx.NodeProto()
        node.CopyFrom(model.nodes[index])
        used.update(dict.fromkeys(reads(node)))
        nodes.append(node)
        for position, name in enumerate(node.output):
            if name in names:
                node.output[position] = f"{name}::raw"
                nodes += _rounding(work.by_twin[name], name, wrong.get(name), defaults)
            elif name in hidden:
                node.output[position] = f"{name}::raw"
                how = hidden[name]
                defaults |= _constants(name, how.scale, how.low, how.high)
                nodes += _codes(f"{name}::raw", name)
    held = {weight: value for each in weights.values() for weight, value in each.items()}
    constants = {name: held.get(name, model.weights[name]) for name in used if name in model.weights}
    optional = {**defaults, **{name: constants[name] for name in held if name in constants}}
    initialisers = [numpy_helper.from_array(np.asarray(v, order="C"), k) for k, v in (constants | defaults).items()]
    inputs = [_info(name, work.reference.inputs[name]) for name in part.reads_inputs]
    inputs += [_info(name, value) for name, value in optional.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in model.outputs]
    graph = helper.make_graph(nodes, "emulated", inputs, outputs, initialisers)
    return helper.make_model(graph, opset_imports=model.opsets, ir_version=max(4, model.ir_version))


def _rounding(layer: Layer, name: str, error: Array | None, defaults: dict[str, Array]) -> list[Any]:
    """From `name::raw` to `name`: add what is wrong, round, clip to the codes."""
    source, nodes = f"{name}::raw", []
    integer = layer.encoding is not None and layer.encoding.integer
    if integer:
        defaults |= _constants(name, *_bounds(layer))
    if error is not None:
        defaults[f"{name}::error"] = error
        nodes.append(helper.make_node("Add", [source, f"{name}::error"], [f"{name}::wrong" if integer else name]))
        source = f"{name}::wrong"
    return nodes + (_codes(source, name) if integer else [])


def _codes(source: str, name: str) -> list[Any]:
    steps = [
        ("Div", [source, f"{name}::step"]),
        ("Round", []),
        ("Clip", [f"{name}::low", f"{name}::high"]),
        ("Mul", [f"{name}::step"]),
    ]
    nodes, value = [], ""
    for op, inputs in steps:
        output = name if op == "Mul" else f"{name}::{op}"
        nodes.append(helper.make_node(op, [*([value] if value else []), *inputs], [output]))
        value = output
    return nodes


def _info(name: str, value: Array) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
