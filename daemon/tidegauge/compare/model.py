"""The float model as the device sees it: one node graph with static inputs, TIDL's aliases and folded batch norms.

TIDL adds data-convert layers at both ends, so three device tensors have no name in the ONNX graph. They become
identities here: `X_netFormat` follows the graph input X, `Y_original` is what the graph's output Y was, and Y follows
it. After that every device tensor has a float twin of its own name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tidegauge.errors import TidegaugeError

Array = NDArray[Any]

NET_FORMAT = "_netFormat"
ORIGINAL = "_original"

#: Smallest normal float32; weights below it are flushed, as accelerators do.
_TINY = float(np.finfo(np.float32).tiny)


@dataclass
class Model:
    """A flat list of nodes in topological order. `weights`: initialisers by name. `inputs`, `outputs`: names.

    `input_shapes`, `shapes` (of all tensors whose shape inference tells): 0 for a dimension that is not fixed.
    `nhwc`: shapes of inputs that are recorded so, though held as NCHW here; `codes`: scale and zero point of inputs
    that are recorded as codes (`value = (code - zero_point) · scale`). `subnormal`: how many weights were below the
    smallest normal float32 and are now zero; `flushed`: their signs, 0 elsewhere, by weight.
    """

    nodes: list[Any]
    weights: dict[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opsets: list[Any]
    ir_version: int
    subnormal: int = 0
    flushed: dict[str, Array] = field(default_factory=dict)
    input_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    input_types: dict[str, np.dtype[Any]] = field(default_factory=dict)
    producer: dict[str, int] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    nhwc: dict[str, tuple[int, ...]] = field(default_factory=dict)
    codes: dict[str, tuple[float, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.index()

    def index(self) -> None:
        """Rebuild the maps from a tensor to the node that writes it, and to those that read it."""
        self.producer = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.readers = {}
        for i, node in enumerate(self.nodes):
            for name in dict.fromkeys(node.input):
                self.readers.setdefault(name, []).append(i)

    @property
    def tensors(self) -> list[str]:
        """Every non-constant tensor in topological order, graph inputs first."""
        return [*self.inputs, *(name for node in self.nodes for name in node.output if name)]


def reads(node: Any) -> list[str]:
    """The tensors that a node reads, those captured by its sub-graphs too."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
            made = {o for inner in graph.node for o in inner.output} | {i.name for i in graph.input}
            made |= {i.name for i in graph.initializer}
            names += [name for inner in graph.node for name in reads(inner) if name not in made]
    return names


def rename_reads(node: Any, mapping: Mapping[str, str]) -> None:
    """Make a node read other tensors, in its sub-graphs too."""
    for k, name in enumerate(node.input):
        if name in mapping:
            node.input[k] = mapping[name]
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
            for inner in graph.node:
                rename_reads(inner, mapping)


def load_model(data: bytes, name: str, folder: Path | None = None) -> Model:
    """Read an ONNX model. `folder`: where external weights may be read from; None for a model from a bundle.

    Raises `TidegaugeError` for anything that is not a complete ONNX model.
    """
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise TidegaugeError(
            f"{name} is not an ONNX model ({error})", "give the .onnx file that was compiled"
        ) from error
    if not proto.graph.node or not proto.graph.output:
        raise TidegaugeError(f"{name} is not an ONNX model: it has no nodes", "give the .onnx file that was compiled")
    if any(t.data_location == TensorProto.EXTERNAL for t in proto.graph.initializer):
        if folder is None:
            raise TidegaugeError(
                f"{name} keeps its weights in other files, which the bundle does not hold",
                "give the model with --model, beside its weight files",
            )
        onnx.load_external_data_for_model(proto, str(folder))
    return _from_proto(proto)


def _from_proto(proto: Any) -> Model:
    weights = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    nodes = []
    for source in proto.graph.node:
        if source.op_type == "Constant" and len(source.attribute) == 1 and source.attribute[0].name == "value":
            weights[source.output[0]] = numpy_helper.to_array(source.attribute[0].t)
        else:
            node = onnx.NodeProto()
            node.CopyFrom(source)
            nodes.append(node)
    signs: dict[str, Array] = {}
    for key, value in weights.items():
        if value.dtype == np.float32:
            small = (np.abs(value) < _TINY) & (value != 0)
            if small.any():
                signs[key] = (np.sign(value) * small).astype(np.int8)
                weights[key] = np.where(small, np.float32(0), value)
    return Model(
        nodes=nodes,
        weights=weights,
        inputs=tuple(i.name for i in proto.graph.input if i.name not in weights),
        outputs=tuple(o.name for o in proto.graph.output),
        opsets=list(proto.opset_import),
        ir_version=proto.ir_version,
        subnormal=sum(int(np.count_nonzero(sign)) for sign in signs.values()),
        flushed=signs,
        input_shapes={i.name: tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in proto.graph.input},
        input_types={i.name: helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in proto.graph.input},
        shapes=_shapes(proto),
    )


#: Weights with more elements than this are not needed to infer shapes.
_SMALL = 1024


def _shapes(proto: Any) -> dict[str, tuple[int, ...]]:
    """Shapes by tensor as ONNX infers them; large weights stand there by shape only."""
    light = onnx.ModelProto()
    light.ir_version = proto.ir_version
    light.opset_import.extend(proto.opset_import)
    light.graph.name = proto.graph.name or "g"
    light.graph.node.extend(proto.graph.node)
    light.graph.input.extend(proto.graph.input)
    light.graph.output.extend(proto.graph.output)
    given = {i.name for i in proto.graph.input}
    for weight in proto.graph.initializer:
        if int(np.prod(weight.dims, dtype=np.int64)) <= _SMALL and weight.data_location != TensorProto.EXTERNAL:
            light.graph.initializer.append(weight)
        elif weight.name not in given:
            light.graph.input.append(helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims)))
    try:
        inferred = onnx.shape_inference.infer_shapes(light, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return {}  # shapes only help to match; the run itself will say what is wrong
    values = (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
    return {
        v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim)
        for v in values
        if v.type.tensor_type.HasField("shape")
    }


def add_aliases(model: Model, device_names: Iterable[str]) -> dict[str, str]:
    """Insert the identities for the aliases that the device uses; returns alias → ONNX tensor.

    `X_netFormat` is X after the data-convert layer at the entry of a sub-graph, `X_original` what is X behind the one
    at its exit: at the ends of the model, or where it is cut. A name that the model itself has is never taken for an
    alias.
    """
    names = set(device_names)
    known = set(model.tensors)
    added: dict[str, str] = {}
    for tensor in list(model.tensors):
        alias = tensor + ORIGINAL
        if alias in names and alias not in known and tensor in model.producer:
            _leave(model, tensor, alias)
            added[alias] = tensor
    for tensor in list(model.tensors):
        alias = tensor + NET_FORMAT
        if alias in names and alias not in known:
            _enter(model, tensor, alias)
            added[alias] = tensor
    for alias, tensor in added.items():
        if tensor in model.shapes:
            model.shapes[alias] = model.shapes[tensor]
    return added


def _enter(model: Model, tensor: str, alias: str) -> None:
    for node in model.nodes:
        rename_reads(node, {tensor: alias})
    place = model.producer[tensor] + 1 if tensor in model.producer else 0
    model.nodes.insert(place, helper.make_node("Identity", [tensor], [alias]))
    model.index()


def _leave(model: Model, tensor: str, alias: str) -> None:
    """The tensor itself stays what every other node reads, or the graph gives out, behind an identity."""
    place = model.producer[tensor]
    producer = model.nodes[place]
    for k, name in enumerate(producer.output):
        if name == tensor:
            producer.output[k] = alias
    if tensor in model.outputs:  # what reads it inside goes on from the codes
        for node in model.nodes:
            rename_reads(node, {tensor: alias})
        model.nodes.append(helper.make_node("Identity", [alias], [tensor]))
    else:
        model.nodes.insert(place + 1, helper.make_node("Identity", [alias], [tensor]))
    model.index()


def fold_batch_norms(model: Model, keep: Iterable[str]) -> int:
    """Fold each BatchNormalization into the convolution before it, as the compiler does; returns how many.

    Tensors in `keep` stay: a convolution whose own output is traced is not fused on the device either. Needed
    because the device's weights are the folded ones, rounded.
    """
    kept = set(keep) | set(model.outputs)
    users: dict[str, int] = {}
    for node in model.nodes:
        for name in reads(node):
            users[name] = users.get(name, 0) + 1
    removed: list[int] = []
    for index, node in enumerate(model.nodes):
        if node.op_type != "BatchNormalization" or len([o for o in node.output if o]) != 1:
            continue
        before = model.producer.get(node.input[0])
        if (
            before is None
            or model.nodes[before].op_type != "Conv"
            or node.input[0] in kept
            or users[node.input[0]] != 1
        ):
            continue
        if _fold(model, model.nodes[before], node, users):
            removed.append(index)
    for index in reversed(removed):
        del model.nodes[index]
    model.index()
    return len(removed)


def _fold(model: Model, conv: Any, norm: Any, users: Mapping[str, int]) -> bool:
    names = [*norm.input[1:], *conv.input[1:]]
    if any(name not in model.weights for name in names) or users[conv.input[1]] != 1:
        return False
    gamma, beta, mean, variance = (model.weights[name].astype(np.float64) for name in norm.input[1:5])
    epsilon = next((a.f for a in norm.attribute if a.name == "epsilon"), 1e-5)
    factor = gamma / np.sqrt(variance + epsilon)
    weight = model.weights[conv.input[1]]
    bias = model.weights[conv.input[2]].astype(np.float64) if len(conv.input) > 2 else np.zeros_like(mean)
    folded = weight.astype(np.float64) * factor.reshape(-1, *([1] * (weight.ndim - 1)))
    model.weights[conv.input[1]] = folded.astype(weight.dtype)
    name = f"{conv.output[0]}::bias"
    model.weights[name] = ((bias - mean) * factor + beta).astype(weight.dtype)
    inputs = [conv.input[0], conv.input[1], name]
    del conv.input[:]
    conv.input.extend(inputs)
    conv.output[0] = norm.output[0]
    return True
