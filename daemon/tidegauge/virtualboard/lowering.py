"""From an ONNX graph to TIDL layers: constants folded, activations and batch normalisation fused. No quantisation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard import layouts
from tidegauge.virtualboard.operators import (
    ACTIVATIONS,
    FOLDED,
    SUPPORTED,
    Activation,
    Domain,
    domain,
    multiply_adds,
    read_activation,
    tidl_kind,
)

Array = NDArray[Any]
MAX_FOLDED_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class Region:
    """One TIDL layer before quantisation: a main ONNX node, what was fused into it, and its constants.

    `inputs`: names of the data tensors it reads, in the node's order. `consts`: the node's constant inputs by name.
    `node_names`: ONNX output names of every fused node.
    """

    name: str
    kind: str
    domain: Domain
    node: onnx.NodeProto
    inputs: tuple[str, ...]
    consts: dict[str, Array]
    shape: tuple[int, ...]
    activation: Activation | None = None
    fused: tuple[str, ...] = ()
    macs: int = 0


@dataclass
class Lowered:
    """A model as TIDL layers in execution order. Shapes by tensor name; `nodes`: ONNX nodes without constants.

    `inputs`, `outputs`: as the caller sees them. `inner`: of those that are NHWC there, the float model's NCHW tensor;
    their `shapes` are NCHW too.
    """

    inputs: dict[str, tuple[int, ...]]
    outputs: dict[str, tuple[int, ...]]
    regions: list[Region]
    nodes: int
    opset: int
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    inner: dict[str, str] = field(default_factory=dict)


def lower(model: onnx.ModelProto) -> Lowered:
    """Lower a checked model. Raises `TidegaugeError` for unsupported operators, dynamic shapes, types not float32."""
    opset = _opset(model)
    total = sum(1 for n in model.graph.node if n.op_type != "Constant")
    model, inner = layouts.strip(model)
    model, constants = _folded(model)
    shapes = _shapes(model)
    _refuse_edges(model)
    nodes = list(model.graph.node)
    _refuse_unsupported(nodes)
    outputs = {o.name: shapes[o.name] for o in model.graph.output}
    names = {i.name for i in model.graph.initializer}
    inputs = {i.name: shapes[i.name] for i in model.graph.input if i.name not in names}
    nodes = _without_identities(nodes, outputs)
    builder = _Builder(nodes, constants, shapes, set(outputs))
    regions = builder.regions()
    for ends in (inputs, outputs):
        ends.update({name: layouts.nhwc(shape) for name, shape in ends.items() if name in inner})
    return Lowered(inputs, outputs, regions, total, opset, shapes, inner)


def _opset(model: onnx.ModelProto) -> int:
    for item in model.opset_import:
        if item.domain not in ("", "ai.onnx"):
            raise TidegaugeError(
                f"the model uses operators of the domain {item.domain}", "export it with standard ONNX"
            )
    opset = max(item.version for item in model.opset_import)
    if not 11 <= opset <= 21:
        raise TidegaugeError(f"the model has opset {opset}", "export it with an opset from 11 to 21")
    return int(opset)


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors with a known rank; 0 for a dimension that isn't known."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise TidegaugeError(f"ONNX shape inference fails: {str(error).strip()}", "repair the model") from error
    graph = inferred.graph
    shapes: dict[str, tuple[int, ...]] = {i.name: tuple(i.dims) for i in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            shapes[value.name] = tuple(d.dim_value if d.HasField("dim_value") else 0 for d in tensor.shape.dim)
    return shapes


def _refuse_edges(model: onnx.ModelProto) -> None:
    shapes = _shapes(model)
    constants = {i.name for i in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.output):
        if value.name in constants:
            continue
        if value.type.tensor_type.elem_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.UNDEFINED):
            raise TidegaugeError(f"graph tensor {value.name} is not float32", "keep conversions outside the model")
        if 0 in shapes.get(value.name, (0,)):
            raise TidegaugeError(
                f"graph tensor {value.name} has a dynamic shape", "export the model with fixed dimensions"
            )


def fold_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with everything that depends on no input turned into initializers."""
    return _folded(model)[0]


def _folded(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with constant nodes as initializers, and all constants. Repeated: one shape makes others known."""
    folded = onnx.ModelProto()
    folded.CopyFrom(model)
    while True:
        constants = _fold(folded, _shapes(folded))
        rest = [n for n in folded.graph.node if not all(o in constants for o in n.output if o)]
        if len(rest) == len(folded.graph.node):
            return folded, constants
        known = {i.name for i in folded.graph.initializer}
        made = [numpy_helper.from_array(v, k) for k, v in constants.items() if k and k not in known]
        folded.graph.initializer.extend(made)
        del folded.graph.node[:]
        folded.graph.node.extend(rest)


def _fold(model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    constants: dict[str, Array] = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    constants[""] = np.zeros(0)
    for node in model.graph.node:
        shape_known = node.op_type == "Shape" and 0 not in shapes.get(node.input[0], (0,))
        if shape_known and not node.attribute:
            constants[node.output[0]] = np.asarray(shapes[node.input[0]], np.int64)
        elif node.op_type == "Constant" or (node.input and all(i in constants for i in node.input)):
            feeds = {i: constants[i] for i in node.input if i}
            for name, value in zip(node.output, _evaluate(model, node, feeds), strict=True):
                constants[name] = np.asarray(value)
    return constants


def _evaluate(model: onnx.ModelProto, node: onnx.NodeProto, feeds: dict[str, Array]) -> list[Any]:
    def info(name: str, value: Array) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)

    graph = helper.make_graph(
        [node],
        "constant",
        [info(k, v) for k, v in feeds.items()],
        [helper.make_empty_tensor_value_info(o) for o in node.output],
    )
    single = helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)
    values = list(ReferenceEvaluator(single).run(None, feeds))
    if sum(np.asarray(v).size for v in values) > MAX_FOLDED_ELEMENTS:
        raise TidegaugeError(f"constant {node.output[0]} has too many elements", "store it in the model instead")
    return values


def _refuse_unsupported(nodes: list[onnx.NodeProto]) -> None:
    bad = Counter(n.op_type for n in nodes if n.op_type not in SUPPORTED)
    if bad:
        listed = ", ".join(f"{op} ({count})" for op, count in sorted(bad.items()))
        raise TidegaugeError(
            f"the virtual board has no layer for the operators {listed}",
            f"rewrite the model with {', '.join(sorted(SUPPORTED))}",
        )


def _without_identities(nodes: list[onnx.NodeProto], outputs: dict[str, tuple[int, ...]]) -> list[onnx.NodeProto]:
    alias: dict[str, str] = {}
    kept = []
    for original in nodes:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        for position, name in enumerate(node.input):
            node.input[position] = alias.get(name, name)
        if node.op_type in FOLDED and node.output[0] not in outputs:
            alias[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    return kept


class _Builder:
    def __init__(
        self,
        nodes: list[onnx.NodeProto],
        constants: dict[str, Array],
        shapes: dict[str, tuple[int, ...]],
        outputs: set[str],
    ) -> None:
        self.nodes = nodes
        self.constants = constants
        self.shapes = shapes
        self.outputs = outputs
        self.consumers: dict[str, list[int]] = {}
        for index, node in enumerate(nodes):
            for name in node.input:
                self.consumers.setdefault(name, []).append(index)

    def regions(self) -> list[Region]:
        done: set[int] = set()
        result: list[Region] = []
        for index, node in enumerate(self.nodes):
            if index in done:
                continue
            for region in self._start(node):
                last, fused = self._fuse(region)
                done.update(fused)
                result.append(last)
        return result

    def _start(self, node: onnx.NodeProto) -> list[Region]:
        if node.op_type == "Split":
            return self._split(node)
        data = tuple(name for name in node.input if name not in self.constants)
        consts = {name: self.constants[name] for name in node.input if name in self.constants and name}
        if any(o for o in node.output[1:]):
            raise TidegaugeError(f"{node.op_type} {node.output[0]} has a second output", "remove it from the model")
        out = node.output[0]
        shape = self._shape(out)
        region = Region(
            name=out,
            kind=tidl_kind(node, consts),
            domain=domain(node, consts),
            node=node,
            inputs=data,
            consts=consts,
            shape=shape,
            fused=(out,),
            macs=multiply_adds(node, consts, shape),
        )
        return [self._standalone_activation(region) if node.op_type in ACTIVATIONS else region]

    def _standalone_activation(self, region: Region) -> Region:
        activation = read_activation(region.node, self.constants)
        identity = helper.make_node("Identity", [region.inputs[0]], [region.name])
        return replace(region, node=identity, consts={}, activation=activation)

    def _shape(self, name: str) -> tuple[int, ...]:
        shape = self.shapes.get(name)
        if shape is None or any(d <= 0 for d in shape):
            raise TidegaugeError(f"tensor {name} has a dynamic shape", "export the model with fixed dimensions")
        return shape

    def _fuse(self, region: Region) -> tuple[Region, set[int]]:
        fused: set[int] = set()
        while region.activation is None and region.domain is not Domain.MOVE:
            users = self.consumers.get(region.name, [])
            if len(users) != 1 or region.name in self.outputs:
                break
            node = self.nodes[users[0]]
            if node.op_type in ACTIVATIONS:
                region = replace(region, activation=read_activation(node, self.constants))
            elif node.op_type == "BatchNormalization" and region.node.op_type == "Conv":
                region = replace(region, **_fold_batch_norm(region, node, self.constants))
            else:
                break
            region = replace(region, name=node.output[0], fused=(*region.fused, node.output[0]))
            fused.add(users[0])
        return region, fused

    def _split(self, node: onnx.NodeProto) -> list[Region]:
        rank = len(self._shape(node.input[0]))
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0) % rank
        start, result = 0, []
        for out in node.output:
            shape = self._shape(out)
            consts = {
                f"{out}::starts": np.asarray([start], np.int64),
                f"{out}::ends": np.asarray([start + shape[axis]], np.int64),
                f"{out}::axes": np.asarray([axis], np.int64),
            }
            piece = helper.make_node("Slice", [node.input[0], *consts], [out])
            start += shape[axis]
            result.append(
                Region(
                    out,
                    "TIDL_SliceLayer",
                    Domain.MOVE,
                    piece,
                    (node.input[0],),
                    consts,
                    shape,
                    None,
                    (out,),
                    prod(shape),
                )
            )
        return result


def _fold_batch_norm(region: Region, node: onnx.NodeProto, constants: dict[str, Array]) -> dict[str, Any]:
    gamma, beta, mean, variance = (constants[name].astype(np.float64) for name in node.input[1:5])
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
    factor = gamma / np.sqrt(variance + epsilon)
    weight_name = region.node.input[1]
    weights = region.consts[weight_name].astype(np.float64)
    has_bias = len(region.node.input) > 2 and region.node.input[2]
    bias = region.consts[region.node.input[2]].astype(np.float64) if has_bias else np.zeros(len(factor))
    conv = onnx.NodeProto()
    conv.CopyFrom(region.node)
    del conv.input[2:]
    bias_name = f"{region.name}::bias"
    conv.input.append(bias_name)
    return {
        "node": conv,
        "consts": {
            weight_name: (weights * factor.reshape(-1, *[1] * (weights.ndim - 1))).astype(np.float32),
            bias_name: ((bias - mean) * factor + beta).astype(np.float32),
        },
    }
