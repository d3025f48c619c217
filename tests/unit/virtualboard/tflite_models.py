"""TFLite models made by hand, with LiteRT's generated classes: no converter is needed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

FLOAT, INT32 = schema.TensorType.FLOAT32, schema.TensorType.INT32
SAME, VALID = schema.Padding.SAME, schema.Padding.VALID
NONE, RELU, RELU6 = (getattr(schema.ActivationFunctionType, name) for name in ("NONE", "RELU", "RELU6"))


class Maker:
    """A model of one sub-graph that grows operator by operator. Shapes of pictures are NHWC; tensors are indices."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self._model, self._graph = schema.ModelT(), schema.SubGraphT()
        self._model.version, self._model.operatorCodes, self._model.subgraphs = 3, [], [self._graph]
        empty = schema.BufferT()
        empty.data = []
        self._model.buffers = [empty]
        self._graph.tensors, self._graph.operators, self._graph.name = [], [], "main"
        self.rng = np.random.default_rng(len(shapes))
        self.inputs = [self.tensor(f"input{n or ''}", shape) for n, shape in enumerate(shapes)]

    def tensor(self, name: str, shape: tuple[int, ...], value: Any = None, kind: int = FLOAT) -> int:
        made = schema.TensorT()
        made.name, made.shape, made.type, made.buffer = name.encode(), list(shape), kind, 0
        if value is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
            self._model.buffers.append(buffer)
            made.buffer = len(self._model.buffers) - 1
        self._graph.tensors.append(made)
        return len(self._graph.tensors) - 1

    def const(self, name: str, value: Any) -> int:
        array = np.asarray(value)
        kind = {"float32": FLOAT, "int32": INT32, "float16": schema.TensorType.FLOAT16}[str(array.dtype)]
        return self.tensor(name, array.shape, array, kind)

    def add(
        self, op: str, inputs: list[int], name: str, shape: tuple[int, ...], options: str = "", **values: Any
    ) -> int:
        """An operator by its builtin name, `options` by the name of their class; returns its output."""
        output = self.tensor(name, shape)
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, op)
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
        self._model.operatorCodes.append(code)
        made = schema.OperatorT()
        made.opcodeIndex, made.inputs, made.outputs = len(self._model.operatorCodes) - 1, inputs, [output]
        if options:
            made.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            made.builtinOptions = getattr(schema, f"{options}T")()
            for key, value in values.items():
                assert hasattr(made.builtinOptions, key)
                setattr(made.builtinOptions, key, value)
        self._graph.operators.append(made)
        return output

    def conv(
        self, source: int, name: str, shape: tuple[int, ...], kernel: int, stride: int = 1, fused: int = RELU6,
        padding: int = SAME, depthwise: bool = False,
    ) -> int:  # fmt: skip
        before = self._graph.tensors[source].shape
        form = (1, kernel, kernel, shape[3]) if depthwise else (shape[3], kernel, kernel, before[3])
        spread = (2.0 / (kernel * kernel * (1 if depthwise else before[3]))) ** 0.5
        weights = self.const(f"{name}/w", self.rng.normal(0, spread, form).astype(np.float32))
        bias = self.const(f"{name}/b", self.rng.normal(0, 0.1, shape[3]).astype(np.float32))
        values: dict[str, Any] = {"strideH": stride, "strideW": stride, "dilationHFactor": 1, "dilationWFactor": 1}
        values |= {"padding": padding, "fusedActivationFunction": fused}
        if depthwise:
            values["depthMultiplier"] = shape[3] // before[3]
        op = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
        options = "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions"
        return self.add(op, [source, weights, bias], name, shape, options, **values)

    def dense(self, source: int, name: str, inputs: int, outputs: int, fused: int = NONE) -> int:
        weights = self.const(f"{name}/w", self.rng.normal(0, inputs**-0.5, (outputs, inputs)).astype(np.float32))
        bias = self.const(f"{name}/b", self.rng.normal(0, 0.1, outputs).astype(np.float32))
        values = {"fusedActivationFunction": fused, "weightsFormat": 0, "keepNumDims": False}
        return self.add(
            "FULLY_CONNECTED", [source, weights, bias], name, (1, outputs), "FullyConnectedOptions", **values
        )

    def data(self, *outputs: int) -> bytes:
        flatbuffers: Any = importlib.import_module("flatbuffers")
        self._graph.inputs, self._graph.outputs = self.inputs, list(outputs)
        builder = flatbuffers.Builder(1024)
        builder.Finish(self._model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def save(self, path: Path, *outputs: int) -> Path:
        path.write_bytes(self.data(*outputs))
        return path


def small_enhancer(path: Path, height: int = 24, width: int = 32) -> Path:
    """`input` [1,H,W,3] → convolutions, a depthwise one, a gate of the mean, an addition → `enhanced` [1,H,W,3]."""
    made = Maker((1, height, width, 3))
    [x] = made.inputs
    a = made.conv(x, "stem", (1, height, width, 8), 3)
    b = made.conv(a, "depthwise", (1, height, width, 8), 3, depthwise=True)
    axes = made.const("axes", np.array([1, 2], np.int32))
    pooled = made.add("MEAN", [b, axes], "pooled", (1, 1, 1, 8), "ReducerOptions", keepDims=True)
    gate = made.add("LOGISTIC", [pooled], "gate", (1, 1, 1, 8))
    gated = made.add(
        "MUL", [b, gate], "gated", (1, height, width, 8), "MulOptions", fusedActivationFunction=NONE
    )  # fmt: skip
    total = made.add(
        "ADD", [gated, a], "total", (1, height, width, 8), "AddOptions", fusedActivationFunction=RELU
    )  # fmt: skip
    logits = made.conv(total, "logits", (1, height, width, 3), 3, fused=NONE)
    return made.save(path, made.add("LOGISTIC", [logits], "enhanced", (1, height, width, 3)))
