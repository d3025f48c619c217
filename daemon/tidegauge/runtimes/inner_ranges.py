"""Least and most of every inner tensor of the float reference: a session of its own, for the time of the acceptance.

An ONNX model is given the reductions as further nodes, so that no inner tensor has to be kept; the package `onnx` is
not needed. Formats: onnx.proto (ModelProto.graph 7; GraphProto.node 1, output 12; NodeProto.input 1, output 2, name 3,
op_type 4, attribute 5; AttributeProto.name 1, i 3, type 20; ValueInfoProto.name 1), protobuf's wire format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tidegauge.profile import Profile
from tidegauge.runtimes.checks import model_path
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.runtimes.loading import exceptions_of, load_module
from tidegauge.runtimes.session import Array
from tidegauge.runtimes.tflite_cpu import interpreter_module

Ranges = dict[str, tuple[float, float]]
#: Operators whose outputs are layers of numbers. Those that only move elements have their input's range.
COMPUTING = frozenset(
    (
        *("Add", "AveragePool", "BatchNormalization", "Clip", "Conv", "ConvTranspose", "Div", "Elu", "Erf", "Exp"),
        *("Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid", "HardSwish", "InstanceNormalization"),
        *("LayerNormalization", "LeakyRelu", "MatMul", "Max", "MaxPool", "Mish", "Mul", "PRelu", "Pow", "Relu"),
        *("Resize", "Sigmoid", "Softmax", "Softplus", "Sqrt", "Sub", "Tanh", "Upsample"),
    )
)
#: So many layers at most, evenly spread: a message has a bounded length.
MOST = 400
#: Of all inner tensors of a TFLite model, which have to be kept side by side.
MOST_BYTES = 256 << 20
_GRAPH, _NODE, _OUTPUT, _VARINT, _FIXED64, _LEN, _FIXED32 = 7, 1, 12, 0, 1, 2, 5
_PREFIX = "tidegauge_range"


class InnerRanges(Protocol):
    """Not thread-safe."""

    def ranges(self, inputs: Mapping[str, Array]) -> Ranges:
        """Least and most by tensor, for these inputs of the model; one with an element that is not finite is left out.
        Raises RuntimeFault."""
        ...


def open_inner(profile: Profile) -> InnerRanges:
    """Raises RuntimeFault where the runtime takes no such model."""
    return _Onnx(profile) if profile.runtime == "onnx" else _Tflite(profile)


class _Onnx:
    def __init__(self, profile: Profile) -> None:
        ort = load_module("onnxruntime", "install TI's onnxruntime_tidl on a board, `tidegauge[pc]` elsewhere")
        self._faults = exceptions_of(ort)
        refused: tuple[type[Exception], ...] = (*self._faults, OSError)
        path = model_path(profile)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
        try:
            model, self._names = with_reductions(path.read_bytes())
            self._session = ort.InferenceSession(model, sess_options=options, providers=["CPUExecutionProvider"])
        except refused as error:
            raise RuntimeFault(f"{path}: its inner tensors can't be watched ({error})", "") from error

    def ranges(self, inputs: Mapping[str, Array]) -> Ranges:
        wanted = [f"{_PREFIX}_{end}_{index}" for index in range(len(self._names)) for end in ("min", "max")]
        try:
            ends = [float(value) for value in self._session.run(wanted, dict(inputs))]
        except self._faults as error:
            raise RuntimeFault(f"the inner tensors could not be computed: {error}", "") from error
        return _finite(dict(zip(self._names, zip(ends[::2], ends[1::2], strict=True), strict=True)))


class _Tflite:
    def __init__(self, profile: Profile) -> None:
        module = load_module(interpreter_module(), "install tflite_runtime on a board, `tidegauge[pc]` elsewhere")
        self._faults = exceptions_of(module)
        # An older runtime keeps no inner tensors, and does not know the parameter.
        refused: tuple[type[Exception], ...] = (*self._faults, TypeError, AttributeError)
        path: Path = model_path(profile)
        try:
            self._interpreter: Any = module.Interpreter(
                str(path),
                num_threads=1,
                experimental_preserve_all_tensors=True,
                # A delegate, which the default brings, keeps its inner tensors to itself.
                experimental_op_resolver_type=module.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            )
            computed = {int(each) for op in self._interpreter._get_ops_details() for each in op["outputs"]}
            inner = [each for each in self._interpreter.get_tensor_details() if each["index"] in computed]
            size = sum(prod(each["shape"].tolist()) * np.dtype(each["dtype"]).itemsize for each in inner)
            if size > MOST_BYTES:
                raise RuntimeFault(f"{path}: its inner tensors take {size >> 20} MiB together", "")
            self._interpreter.allocate_tensors()
        except refused as error:
            raise RuntimeFault(f"{path}: its inner tensors can't be watched ({error})", "") from error
        kept = set(_bounded([each["name"] for each in inner if each["name"]]))
        self._inner = {each["index"]: each["name"] for each in inner if each["name"] in kept}

    def ranges(self, inputs: Mapping[str, Array]) -> Ranges:
        found: Ranges = {}
        try:
            for detail in self._interpreter.get_input_details():
                self._interpreter.set_tensor(detail["index"], inputs[detail["name"]])
            self._interpreter.invoke()
            for index, name in self._inner.items():
                array = self._interpreter.get_tensor(index)
                if array.size and array.dtype.kind in "fiu":
                    found[name] = (float(array.min()), float(array.max()))
        except self._faults as error:
            raise RuntimeFault(f"the inner tensors could not be computed: {error}", "") from error
        return _finite(found)


def _finite(found: Ranges) -> Ranges:
    return {name: ends for name, ends in found.items() if np.isfinite(ends).all()}


# ---- the model with further nodes ----


def with_reductions(model: bytes) -> tuple[bytes, list[str]]:
    """The model with two scalar outputs for each layer, and the layers' names. Raises RuntimeFault for another file."""
    parts, names = [], None
    for field, start, body, end in _fields(memoryview(model)):
        if field == _GRAPH and names is None:
            names = _layers(model[body:end])
            graph = model[body:end] + b"".join(_reduction(name, index) for index, name in enumerate(names))
            parts.append(_field(_GRAPH, graph))
        else:
            parts.append(model[start:end])
    if names is None:
        raise RuntimeFault("the model has no graph", "use the ONNX file that was compiled")
    return b"".join(parts), names


def _layers(graph: bytes) -> list[str]:
    """The first output of each computing node of the main graph."""
    names = []
    for field, _, body, end in _fields(memoryview(graph)):
        if field != _NODE:
            continue
        node = graph[body:end]
        inside = [(each, node[first:last]) for each, _, first, last in _fields(memoryview(node))]
        kind = next((value for each, value in inside if each == 4), b"").decode(errors="replace")
        output = next((value for each, value in inside if each == 2), b"").decode(errors="replace")
        if kind in COMPUTING and output:
            names.append(output)
    return _bounded(names)


def _bounded(names: list[str]) -> list[str]:
    return names if len(names) <= MOST else [names[len(names) * index // MOST] for index in range(MOST)]


def _reduction(name: str, index: int) -> bytes:
    made = b""
    keep = _field(5, _field(1, b"keepdims") + _varint(3 << 3) + _varint(0) + _varint(20 << 3) + _varint(2))
    for end, operator in (("min", b"ReduceMin"), ("max", b"ReduceMax")):
        output = f"{_PREFIX}_{end}_{index}".encode()
        node = _field(1, name.encode()) + _field(2, output) + _field(3, output) + _field(4, operator) + keep
        made += _field(_NODE, node) + _field(_OUTPUT, _field(1, output))
    return made


def _fields(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Number of each field, where it starts, where its value starts, and where it ends. Raises RuntimeFault."""
    at = 0
    while at < len(data):
        start = at
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            body, (_, at) = at, _read_varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            body, at = at, at + (8 if kind == _FIXED64 else 4)
        elif kind == _LEN:
            size, body = _read_varint(data, at)
            at = body + size
        else:
            raise RuntimeFault("the model is no ONNX file", "use the ONNX file that was compiled")
        if at > len(data):
            raise RuntimeFault("the model file is cut short", "copy the ONNX file again")
        yield key >> 3, start, body, at


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            return value, at
    raise RuntimeFault("the model is no ONNX file", "use the ONNX file that was compiled")


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _LEN) + _varint(len(value)) + value
