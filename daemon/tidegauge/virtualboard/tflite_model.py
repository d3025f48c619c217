"""Reads a TFLite file into tensors and operators, runs it in float, and cuts pieces out of it.

Source: TensorFlow's schema.fbs, through the classes that LiteRT generates from it.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.errors import TidegaugeError

Array = NDArray[Any]
IDENTIFIER = b"TFL3"
_CURE = "convert the model again"


@dataclass(frozen=True)
class Tensor:
    """`shape` as in the file: pictures are NHWC. `constant`: its values, None for an activation."""

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    constant: Array | None


@dataclass(frozen=True)
class Operator:
    """`name`: of TFLite's builtin operator. `inputs`: tensor indices, -1 for one that is left out."""

    index: int
    name: str
    options: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class TfliteModel:
    """The one sub-graph of a file. `folded`: operators that only unpack constants; their outputs are constants here."""

    raw: Any
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    folded: frozenset[int]

    def names(self, indices: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.tensors[index].name for index in indices)


def is_tflite(model: Path) -> bool:
    """Whether the file says that it is TFLite's. Raises `TidegaugeError` where it can't be read."""
    try:
        with model.open("rb") as file:
            return file.read(8)[4:] == IDENTIFIER
    except OSError as error:
        raise TidegaugeError(
            f"the model {model} can't be read ({error.strerror})", "name an ONNX or TFLite file"
        ) from error


def load(path: Path) -> TfliteModel:
    """Raises `TidegaugeError` for a file that LiteRT refuses, several sub-graphs, names that are not unique."""
    from ai_edge_litert import schema_py_generated as schema

    try:
        data = path.read_bytes()
        interpreter(data)  # checks what the generated classes would follow blindly
    except OSError as error:
        raise TidegaugeError(f"the model {path} can't be read ({error.strerror})", "name a TFLite file") from error
    except (ValueError, RuntimeError) as error:
        raise TidegaugeError(f"{path} is no valid TFLite model ({error})", _CURE) from error
    raw = schema.ModelT.InitFromPackedBuf(data, 0)
    if len(raw.subgraphs) != 1:
        raise TidegaugeError(f"{path} has {len(raw.subgraphs)} sub-graphs", f"{_CURE} without control flow")
    graph = raw.subgraphs[0]
    tensors = [_tensor(raw, index, item) for index, item in enumerate(graph.tensors)]
    builtin = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    operators = tuple(_operator(raw, builtin, index, item) for index, item in enumerate(graph.operators or ()))
    folded = frozenset(op.index for op in operators if _unpack(op, tensors))
    used = [tensors[index].name for op in operators for index in op.outputs]
    if len(set(used)) != len(used):
        raise TidegaugeError(f"{path} has tensors of one name", f"{_CURE}: traces are told apart by name")
    ends = (tuple(int(i) for i in graph.inputs), tuple(int(i) for i in graph.outputs))
    return TfliteModel(raw, tuple(tensors), operators, *ends, folded)


def _tensor(raw: Any, index: int, item: Any) -> Tensor:
    from ai_edge_litert import schema_py_generated as schema

    kinds = {value: name.lower() for name, value in vars(schema.TensorType).items() if isinstance(value, int)}
    dtype, shape = kinds[item.type], tuple(int(d) for d in (item.shape if item.shape is not None else ()))
    data = raw.buffers[item.buffer].data
    constant = None
    if data is not None and len(data) and dtype in ("float32", "float16", "int32", "int64"):
        constant = np.frombuffer(bytes(data), np.dtype(dtype).newbyteorder("<")).reshape(shape)
    return Tensor(index, (item.name or b"").decode("utf-8", "replace"), shape, dtype, constant)


def _operator(raw: Any, builtin: dict[int, str], index: int, item: Any) -> Operator:
    code = raw.operatorCodes[item.opcodeIndex]
    number = max(code.builtinCode, code.deprecatedBuiltinCode)
    inputs = tuple(int(i) for i in (item.inputs if item.inputs is not None else ()))
    return Operator(
        index, builtin.get(number, str(number)), item.builtinOptions, inputs, tuple(int(i) for i in item.outputs)
    )


def _unpack(op: Operator, tensors: list[Tensor]) -> bool:
    """Put the values of a dequantised float16 constant into `tensors`; False where the operator does anything else."""
    if op.name != "DEQUANTIZE" or tensors[op.inputs[0]].dtype != "float16":
        return False
    packed = tensors[op.inputs[0]].constant
    if packed is None:
        return False
    target = tensors[op.outputs[0]]
    tensors[target.index] = Tensor(target.index, target.name, target.shape, "float32", packed.astype(np.float32))
    return True


def cut(model: TfliteModel, operators: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
    """A TFLite file with these operators, inputs and outputs only."""
    flatbuffers: Any = importlib.import_module("flatbuffers")  # it has no types
    raw, graph = copy.copy(model.raw), copy.copy(model.raw.subgraphs[0])
    graph.operators = [model.raw.subgraphs[0].operators[index] for index in operators]
    graph.inputs, graph.outputs = list(inputs), list(outputs)
    raw.subgraphs, raw.signatureDefs, raw.metadata = [graph], [], []
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(raw.Pack(builder), IDENTIFIER)
    return bytes(builder.Output())


def interpreter(model: bytes) -> Any:
    """LiteRT's interpreter on one thread, its tensors allocated. Raises ValueError, RuntimeError."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    made = Interpreter(
        model_content=model,
        num_threads=1,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    made.allocate_tensors()
    return made


class FloatRun:
    """A piece of a model, or all of it, on the CPU in float. Not thread-safe."""

    def __init__(self, model: TfliteModel, operators: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]):
        self._interpreter = interpreter(cut(model, operators, inputs, outputs))
        # The interpreter numbers the tensors as the file does.
        self._inputs = dict(zip(model.names(inputs), inputs, strict=True))
        self._outputs = dict(zip(model.names(outputs), outputs, strict=True))

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, as in the file: pictures are NHWC."""
        for name, index in self._inputs.items():
            self._interpreter.set_tensor(index, feeds[name])
        self._interpreter.invoke()
        return {name: np.array(self._interpreter.get_tensor(index)) for name, index in self._outputs.items()}
