"""From a model file to the graph of the rules."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from tidegauge.errors import TidegaugeError
from tidegauge.preflight.lint.graph import Graph, Node
from tidegauge.preflight.operators import REMOVED
from tidegauge.runtimes.loading import exceptions_of
from tidegauge.runtimes.tflite_cpu import interpreter_module

#: TFLite's operators by ONNX's name, where a rule looks at both.
_ONNX_NAMES = {
    "CONV_2D": "Conv",
    "DEPTHWISE_CONV_2D": "Conv",
    "FULLY_CONNECTED": "Gemm",
    "ADD": "Add",
    "SUB": "Sub",
    "MUL": "Mul",
    "DIV": "Div",
    "POW": "Pow",
    "EXP": "Exp",
    "SQUARE": "Square",
    "LOGISTIC": "Sigmoid",
    "HARD_SWISH": "HardSwish",
    "RELU": "Relu",
    "RELU6": "Clip",
    "MEAN": "ReduceMean",
    "STRIDED_SLICE": "Slice",
    "RESHAPE": "Reshape",
    "SQUEEZE": "Squeeze",
    "TRANSPOSE": "Transpose",
    "QUANTIZE": "QuantizeLinear",
    "DEQUANTIZE": "DequantizeLinear",
}


def load(path: Path) -> Graph:
    """Raises TidegaugeError."""
    if not path.is_file():
        raise TidegaugeError(f"{path} does not exist", "give an ONNX (.onnx) or TFLite (.tflite) file")
    if path.suffix == ".onnx":
        return _onnx(path)
    if path.suffix == ".tflite":
        return _tflite(path)
    raise TidegaugeError(f"{path} is neither .onnx nor .tflite", "export the model to one of them")


def _onnx(path: Path) -> Graph:
    import onnx  # on a PC only; the command line names the extra where it is missing
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(path))
        graph = onnx.shape_inference.infer_shapes(model).graph
    except (OSError, ValueError, RuntimeError, DecodeError) as error:
        raise TidegaugeError(f"{path} can't be read as ONNX ({error})", "export it again") from error
    constants = {item.name: onnx.numpy_helper.to_array(item) for item in graph.initializer}
    values = (*graph.input, *graph.output, *graph.value_info)
    shapes = {value.name: _onnx_shape(value.type.tensor_type) for value in values if value.type.HasField("tensor_type")}
    nodes: list[Node] = []
    results = tuple(value.name for value in graph.output)
    folded: set[str] = set()
    same: dict[str, str] = {}
    for node in graph.node:
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        if node.op_type == "Constant" and "value" in attributes:
            constants[node.output[0]] = onnx.numpy_helper.to_array(attributes["value"])
            continue
        ins = tuple(same.get(name, name) for name in node.input)
        fixed_shape = node.op_type == "Shape" and min(shapes.get(ins[0], (-1,)), default=1) > 0
        if fixed_shape or all(not name or name in constants or name in folded for name in ins):
            folded.update(node.output)  # as the runtime does: it depends on nothing that a frame brings
            continue
        if node.op_type in REMOVED and node.output[0] not in results:
            same[node.output[0]] = ins[0]
            continue
        native = f"{node.domain}:{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        nodes.append(Node(node.op_type, native, node.name, ins, tuple(node.output), attributes))
    shapes.update({name: array.shape for name, array in constants.items()})
    inputs = tuple(value.name for value in graph.input if value.name not in constants)
    return Graph("onnx", inputs, results, tuple(nodes), shapes, constants, frozenset(folded))


def _onnx_shape(kind: Any) -> tuple[int, ...]:
    return tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim)


def _tflite(path: Path) -> Graph:
    module = importlib.import_module(interpreter_module())
    try:
        interpreter = module.Interpreter(str(path), num_threads=1)
        operators, tensors = interpreter._get_ops_details(), interpreter.get_tensor_details()
    except exceptions_of(module) as error:
        raise TidegaugeError(f"{path} can't be read as TFLite ({error})", "convert it again") from error
    names = {item["index"]: item["name"] for item in tensors}
    nodes = tuple(
        Node(
            _ONNX_NAMES.get(item["op_name"], item["op_name"]),
            item["op_name"],
            names.get(int(item["outputs"][0]), "") if len(item["outputs"]) else "",
            tuple(names.get(int(index), "") for index in item["inputs"]),
            tuple(names.get(int(index), "") for index in item["outputs"]),
        )
        for item in operators
        if item["op_name"] != "DELEGATE"
    )
    shapes = {item["name"]: _tflite_shape(item) for item in tensors}
    produced = {name for node in nodes for name in node.outputs}
    inputs = tuple(item["name"] for item in interpreter.get_input_details())
    outputs = tuple(item["name"] for item in interpreter.get_output_details())
    constants = {
        item["name"]: array
        for item in tensors
        if item["name"] not in produced and item["name"] not in inputs
        for array in [_content(interpreter, item["index"])]
        if array is not None
    }
    return Graph("tflite", inputs, outputs, nodes, shapes, constants)


def _tflite_shape(item: dict[str, Any]) -> tuple[int, ...]:
    signature = [int(size) for size in item.get("shape_signature", ())]
    return tuple(signature or (int(size) for size in item["shape"]))


def _content(interpreter: Any, index: int) -> np.ndarray[Any, np.dtype[Any]] | None:
    try:
        return np.asarray(interpreter.get_tensor(index))
    except ValueError:  # a tensor without data: an activation that no operator writes
        return None
