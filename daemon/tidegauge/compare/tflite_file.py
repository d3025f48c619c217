"""A TFLite file as tensors and operators, with the quantisation of each tensor.

Source: TensorFlow's schema.fbs, through the classes that LiteRT generates from it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.errors import TidegaugeError

Array = NDArray[Any]

IDENTIFIER = b"TFL3"
_CURE = "give the .tflite file that was compiled"
_READABLE = ("float32", "float16", "int8", "uint8", "int16", "int32", "int64")


@dataclass(frozen=True)
class Quantisation:
    """`value = (code - zero_points) · scales`: one pair, or one a slice along `axis`."""

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int


@dataclass(frozen=True)
class Tensor:
    """`shape` as in the file: pictures are NHWC. `constant`: values as stored, None for an activation."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    quantisation: Quantisation | None
    constant: Array | None

    def values(self) -> Array:
        """A constant in float32; integers without quantisation (shapes, axes) as they are."""
        if self.constant is None:
            raise TidegaugeError(f"tensor {self.name} is no constant", _CURE)
        if self.quantisation is None:
            return self.constant.astype(np.float32) if self.dtype == "float16" else self.constant
        shape = [1] * self.constant.ndim
        if len(self.quantisation.scales) > 1:
            shape[self.quantisation.axis] = -1
        scales = np.asarray(self.quantisation.scales, np.float64).reshape(shape)
        zeros = np.asarray(self.quantisation.zero_points or (0,), np.float64)
        zeros = zeros.reshape(shape if zeros.size > 1 else [1] * self.constant.ndim)
        return ((self.constant.astype(np.float64) - zeros) * scales).astype(np.float32)


@dataclass(frozen=True)
class Operator:
    """`name`: of TFLite's builtin operator. `inputs`: tensor indices, -1 for one that is left out."""

    name: str
    options: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class TfliteFile:
    """The one sub-graph of a file; `activations`: names of the fused activation functions by number."""

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    activations: Mapping[int, str]


def is_tflite(data: bytes) -> bool:
    return data[4:8] == IDENTIFIER


def read(data: bytes, name: str) -> TfliteFile:
    """Raises `TidegaugeError` for what LiteRT refuses, and for several sub-graphs. The generated classes follow
    offsets blindly, so LiteRT's own check comes first."""
    schema: Any = _module("ai_edge_litert.schema_py_generated")
    interpreter(data, name)
    raw = schema.ModelT.InitFromPackedBuf(data, 0)
    if len(raw.subgraphs) != 1:
        raise TidegaugeError(f"{name} has {len(raw.subgraphs)} sub-graphs", "convert it without control flow")
    graph = raw.subgraphs[0]
    kinds = _names(schema.TensorType)
    operators = _names(schema.BuiltinOperator)
    found = TfliteFile(
        tensors=tuple(_tensor(raw, item, kinds[item.type].lower()) for item in graph.tensors),
        operators=tuple(_operator(raw, item, operators) for item in graph.operators or ()),
        inputs=tuple(int(i) for i in graph.inputs),
        outputs=tuple(int(i) for i in graph.outputs),
        activations=_names(schema.ActivationFunctionType),
    )
    made = [found.tensors[i].name for op in found.operators for i in op.outputs]
    if len(set(made)) != len(made):
        raise TidegaugeError(f"{name} has several tensors of one name", "convert it again: traces are told by name")
    return found


def interpreter(data: bytes, name: str) -> Any:
    """LiteRT's interpreter that keeps every tensor, on one thread, its own kernels, no delegate.

    Without `experimental_preserve_all_tensors` it reuses buffers, and what it gives for an inner tensor is another's.
    Raises `TidegaugeError`.
    """
    module: Any = _module("ai_edge_litert.interpreter")
    try:
        made = module.Interpreter(
            model_content=data,
            num_threads=1,
            experimental_preserve_all_tensors=True,
            experimental_op_resolver_type=module.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        )
        made.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise TidegaugeError(f"{name} is no TFLite model that LiteRT takes ({error})", _CURE) from error
    return made


def run_all(data: bytes, name: str, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every tensor of one run by name, as in the file: pictures are NHWC, codes of a quantised model as they are."""
    made = interpreter(data, name)
    for item in made.get_input_details():
        made.set_tensor(item["index"], feeds[item["name"]].astype(item["dtype"], copy=False))
    made.invoke()
    found = {}
    for item in made.get_tensor_details():
        try:
            found[item["name"]] = np.array(made.get_tensor(item["index"]))
        except ValueError:
            continue  # a tensor without data: a left-out input, or one that the model never makes
    return found


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise TidegaugeError("TFLite models need the package ai-edge-litert", "install tidegauge[pc]") from error


def _names(enum: Any) -> dict[int, str]:
    return {value: name for name, value in vars(enum).items() if isinstance(value, int)}


def _tensor(raw: Any, item: Any, dtype: str) -> Tensor:
    shape = tuple(int(d) for d in (item.shape if item.shape is not None else ()))
    data = raw.buffers[item.buffer].data
    constant = None
    if data is not None and len(data) and dtype in _READABLE:
        constant = np.frombuffer(bytes(data), np.dtype(dtype).newbyteorder("<")).reshape(shape)
    return Tensor((item.name or b"").decode("utf-8", "replace"), shape, dtype, _quantisation(item), constant)


def _quantisation(item: Any) -> Quantisation | None:
    found = item.quantization
    if found is None or found.scale is None or not len(found.scale):
        return None
    zeros = found.zeroPoint if found.zeroPoint is not None else ()
    return Quantisation(
        tuple(float(s) for s in found.scale), tuple(int(z) for z in zeros), int(found.quantizedDimension or 0)
    )


def _operator(raw: Any, item: Any, names: Mapping[int, str]) -> Operator:
    code = raw.operatorCodes[item.opcodeIndex]
    number = max(code.builtinCode, code.deprecatedBuiltinCode)  # old files store only the deprecated one
    inputs = tuple(int(i) for i in (item.inputs if item.inputs is not None else ()))
    return Operator(names.get(number, str(number)), item.builtinOptions, inputs, tuple(int(i) for i in item.outputs))
