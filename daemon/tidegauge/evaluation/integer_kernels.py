"""ONNX Runtime's integer kernels as a device: a network in QOperator form, its tensors under TIDL's names."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from tidegauge.evaluation.independent import Part, bench_of
from tidegauge.evaluation.networks import NETWORKS, picture
from tidegauge.evaluation.trial import Bench
from tidegauge.virtualboard.network import FLOAT, INT8, UINT8, Quant

Array = NDArray[Any]

_SUFFIX, _FRAMES = "_quantized", 4
_KINDS = {
    "QLinearConv": "TIDL_ConvolutionLayer",
    "QGemm": "TIDL_InnerProductLayer",
    "QLinearAdd": "TIDL_EltWiseLayer",
    "QLinearMul": "TIDL_EltWiseLayer",
    "QLinearConcat": "TIDL_ConcatLayer",
    "QLinearGlobalAveragePool": "TIDL_PoolingLayer",
}
#: Fused into what is before them, without a tensor of their own.
_FUSED = ("Relu", "Clip")


class _Frames(CalibrationDataReader):  # type: ignore[misc] # the library has no types
    def __init__(self, shape: Sequence[int]) -> None:
        self._frames: Iterator[dict[str, Array]] = iter([{"input": picture(shape, n)} for n in range(_FRAMES)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._frames, None)


def build(root: Path, network: str, per_channel: bool = False) -> Bench:
    """Quantise one of `NETWORKS` to QOperator form (unsigned activations, signed weights)."""
    root.mkdir(parents=True, exist_ok=True)
    model = NETWORKS[network](root / "net.onnx")
    proto = onnx.load(model)
    shape = tuple(d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim)
    logging.getLogger().setLevel(logging.ERROR)  # it advises a pre-processing step that changes the graph
    quantize_static(
        str(model),
        str(root / "integers.onnx"),
        _Frames(shape),
        quant_format=QuantFormat.QOperator,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=per_channel,
    )
    integers = onnx.load(root / "integers.onnx")
    names = _names(proto, integers)
    _rename(integers, names)
    _from_codes(integers, [i.name for i in proto.graph.input])
    values = _run(integers, list(names.values()), {"input": picture(shape, _FRAMES)})
    parts = [_part(integers, node, values) for node in _makers(integers, set(names.values()))]
    del integers.graph.output[:]
    integers.graph.output.extend(helper.make_empty_tensor_value_info(part.name) for part in parts)
    return bench_of(root, model, {"input": shape}, parts, integers.SerializeToString())


def _names(model: Any, integers: Any) -> dict[str, str]:
    """From the tensors of the quantised model to TIDL's names for them: codes, and the float outputs."""
    outputs, inputs = {o.name for o in model.graph.output}, {i.name for i in model.graph.input}
    made = {name for node in integers.graph.node for name in node.output}
    tensors = inputs | {name for node in model.graph.node for name in node.output}
    found: dict[str, str] = {}
    for name in sorted(tensors):
        if name + _SUFFIX not in made:
            continue
        twin = name
        users = [node for node in model.graph.node if name in node.input]
        if len(users) == 1 and users[0].op_type in _FUSED and users[0].output[0] + _SUFFIX not in made:
            twin = users[0].output[0]
        alias = f"{twin}_netFormat" if twin in inputs else f"{twin}_original" if twin in outputs else twin
        found[name + _SUFFIX] = alias
    return found | {name: name for name in outputs}


def _rename(integers: Any, names: dict[str, str]) -> None:
    del integers.graph.value_info[:]
    inner = {alias for original, alias in names.items() if original != alias}
    for node in integers.graph.node:
        for fields in (node.input, node.output):
            for k, name in enumerate(fields):
                # A float tensor between two quantised ones must not carry the name of its codes.
                fields[k] = names.get(name, f"{name}::float" if name in inner else name)


def _from_codes(integers: Any, inputs: list[str]) -> None:
    """Operators that stay float read the input's codes, as on a device: not the picture that they were made from."""
    for name in inputs:
        codes = f"{name}_netFormat"
        maker = next(node for node in integers.graph.node if codes in node.output)
        readers = [node for node in integers.graph.node if name in node.input and node is not maker]
        for node in readers:
            for k, read in enumerate(node.input):
                if read == name:
                    node.input[k] = f"{name}::float"
        if readers:
            made = helper.make_node("DequantizeLinear", [codes, *maker.input[1:]], [f"{name}::float"])
            integers.graph.node.insert(list(integers.graph.node).index(maker) + 1, made)


def _run(integers: Any, wanted: list[str], feeds: dict[str, Array]) -> dict[str, Array]:
    exposed = onnx.ModelProto()
    exposed.CopyFrom(integers)
    del exposed.graph.output[:]
    exposed.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in wanted)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(exposed.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(wanted, session.run(wanted, feeds), strict=True))


def _makers(integers: Any, names: set[str]) -> list[Any]:
    return [node for node in integers.graph.node if node.output[0] in names]


def _part(integers: Any, node: Any, values: dict[str, Array]) -> Part:
    name = node.output[0]
    codes = values[name]
    if codes.dtype == np.float32:
        return Part(name, "TIDL_DataConvertLayer", _sources(integers, node, values), FLOAT, codes)
    quant = _quant(integers, name, codes.dtype)
    kind = _KINDS.get(node.op_type, "TIDL_DataConvertLayer" if node.op_type == "QuantizeLinear" else "TIDL_OtherLayer")
    weights = None
    if node.op_type in ("QLinearConv", "QGemm", "QLinearMatMul") and _is_constant(integers, node.input[4]):
        weights = 1.0 / _constant(integers, node.input[4]).astype(np.float64)
    return Part(name, kind, _sources(integers, node, values), quant, codes, weights)


def _quant(integers: Any, name: str, dtype: Any) -> Quant:
    """The scale and zero point with which the tensor is made, or else read."""
    element = UINT8 if dtype == np.uint8 else INT8
    for node in integers.graph.node:
        made = name in node.output and node.op_type.startswith(("QLinear", "QGemm", "QuantizeLinear"))
        if made:
            scale, zero = node.input[-2], node.input[-1]
            if node.op_type == "QLinearConv":
                scale, zero = node.input[6], node.input[7]
            elif node.op_type == "QLinearConcat":
                scale, zero = node.input[0], node.input[1]
            return _as_quant(integers, element, scale, zero)
    for node in integers.graph.node:
        for k, read in enumerate(node.input):
            if read == name and k + 2 < len(node.input) and node.op_type.startswith(("QLinear", "QGemm", "Deq")):
                return _as_quant(integers, element, node.input[k + 1], node.input[k + 2])
    return _quant(integers, next(n.input[0] for n in integers.graph.node if name in n.output), dtype)


def _as_quant(integers: Any, element: int, scale: str, zero: str) -> Quant:
    return Quant(element, 1.0 / float(_constant(integers, scale)), int(_constant(integers, zero)))


def _is_constant(integers: Any, name: str) -> bool:
    return any(item.name == name for item in integers.graph.initializer)


def _constant(integers: Any, name: str) -> Array:
    return numpy_helper.to_array(next(item for item in integers.graph.initializer if item.name == name))


def _sources(integers: Any, node: Any, values: dict[str, Array]) -> tuple[str, ...]:
    """The named tensors that a node reads, through float tensors between."""
    producers = {name: made for made in integers.graph.node for name in made.output}
    found: list[str] = []
    stack = list(node.input)
    while stack:
        name = stack.pop(0)
        if name in values or name in {i.name for i in integers.graph.input}:
            found.append(name)
        elif name in producers:
            stack += producers[name].input
    return tuple(dict.fromkeys(found))
