"""Small networks written twice from the same weights: as ONNX, and as TFLite with LiteRT's generated classes."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]

schema: Any = importlib.import_module("ai_edge_litert.schema_py_generated")
_FLOAT, _INT32 = schema.TensorType.FLOAT32, schema.TensorType.INT32
_SIGNATURE = "serving_default"


class Twice:
    """Tensors are names, the same in both files; pictures are NCHW in ONNX and NHWC in TFLite."""

    def __init__(self, seed: int, height: int, width: int) -> None:
        self._random = np.random.default_rng(seed)
        self.shapes: dict[str, tuple[int, ...]] = {"input": (1, 3, height, width)}
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._model, self._graph = schema.ModelT(), schema.SubGraphT()
        self._model.version, self._model.operatorCodes, self._model.subgraphs = 3, [], [self._graph]
        self._model.buffers = [schema.BufferT()]
        self._graph.tensors, self._graph.operators, self._graph.name = [], [], b"main"
        self._indices: dict[str, int] = {}
        self._tensor("input", (1, height, width, 3))

    def _tensor(self, name: str, shape: tuple[int, ...], value: Array | None = None, kind: int = _FLOAT) -> int:
        made = schema.TensorT()
        made.name, made.shape, made.type, made.buffer = name.encode(), list(shape), kind, 0
        if value is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
            self._model.buffers.append(buffer)
            made.buffer = len(self._model.buffers) - 1
        self._graph.tensors.append(made)
        self._indices[name] = len(self._graph.tensors) - 1
        return self._indices[name]

    def _lite(self, op: str, inputs: list[int], name: str, options: str = "", **values: Any) -> None:
        shape = self.shapes[name]
        output = self._tensor(name, (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape)
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
                setattr(made.builtinOptions, key, value)
        self._graph.operators.append(made)

    def _onnx(self, op: str, inputs: list[str], name: str, **attributes: Any) -> None:
        self._nodes.append(helper.make_node(op, inputs, [name], **attributes))

    def _const(self, name: str, value: Array) -> str:
        self._weights.append(numpy_helper.from_array(value, name))
        return name

    def conv(
        self, x: str, out: int, name: str, k: int = 3, stride: int = 1, relu: bool = False, depthwise: bool = False
    ) -> str:
        _, fan, height, width = self.shapes[x]
        group = fan if depthwise else 1
        weight = self._random.normal(0, np.sqrt(2 * group / (k * k * fan)), (out, fan // group, k, k))
        weight, bias = weight.astype(np.float32), self._random.normal(0, 0.05, out).astype(np.float32)
        self.shapes[name] = (1, out, height // stride, width // stride)
        # TFLite's SAME padding: with stride 2 and an even size all of it is at the end.
        before = (k - stride) // 2 if k > stride else 0
        pads = [before, before, max(k - stride, 0) - before, max(k - stride, 0) - before]
        made = f"{name}_conv" if relu else name
        inputs = [x, self._const(f"{name}_w", weight), self._const(f"{name}_b", bias)]
        self._onnx("Conv", inputs, made, kernel_shape=[k, k], pads=pads, strides=[stride, stride], group=group)
        if relu:
            self._onnx("Relu", [made], name)
        form = weight.transpose(1, 2, 3, 0) if depthwise else weight.transpose(0, 2, 3, 1)
        tensors = [self._tensor(f"{name}/w", form.shape, form), self._tensor(f"{name}/b", bias.shape, bias)]
        values: dict[str, Any] = {"strideH": stride, "strideW": stride, "dilationHFactor": 1, "dilationWFactor": 1}
        values |= {"padding": schema.Padding.SAME, "fusedActivationFunction": _fused(relu)}
        if depthwise:
            values["depthMultiplier"] = 1
        op, options = ("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions") if depthwise else ("CONV_2D", "Conv2DOptions")
        self._lite(op, [self._indices[x], *tensors], name, options, **values)
        return name

    def pair(self, kind: str, a: str, b: str, name: str, relu: bool = False) -> str:
        """Add or Mul; `b` may be one value a channel."""
        self.shapes[name] = self.shapes[a]
        made = f"{name}_{kind.lower()}" if relu else name
        self._onnx(kind, [a, b], made)
        if relu:
            self._onnx("Relu", [made], name)
        inputs = [self._indices[a], self._indices[b]]
        self._lite(kind.upper(), inputs, name, f"{kind}Options", fusedActivationFunction=_fused(relu))
        return name

    def mean(self, x: str, name: str) -> str:
        self.shapes[name] = (1, self.shapes[x][1], 1, 1)
        self._onnx("GlobalAveragePool", [x], name)
        axes = self._tensor(f"{name}/axes", (2,), np.asarray([1, 2], np.int32), _INT32)
        self._lite("MEAN", [self._indices[x], axes], name, "ReducerOptions", keepDims=True)
        return name

    def logistic(self, x: str, name: str) -> str:
        self.shapes[name] = self.shapes[x]
        self._onnx("Sigmoid", [x], name)
        self._lite("LOGISTIC", [self._indices[x]], name)
        return name

    def tanh(self, x: str, name: str) -> str:
        self.shapes[name] = self.shapes[x]
        self._onnx("Tanh", [x], name)
        self._lite("TANH", [self._indices[x]], name)
        return name

    def save(self, folder: Path, output: str) -> tuple[Path, Path]:
        """`net.onnx` and `net.tflite`."""
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self._nodes,
            "net",
            [value("input", TensorProto.FLOAT, self.shapes["input"])],
            [value(output, TensorProto.FLOAT, self.shapes[output])],
            self._weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, folder / "net.onnx")
        (folder / "net.tflite").write_bytes(self._packed(output))
        return folder / "net.onnx", folder / "net.tflite"

    def _packed(self, output: str) -> bytes:
        self._graph.inputs, self._graph.outputs = [self._indices["input"]], [self._indices[output]]
        signature = schema.SignatureDefT()
        signature.signatureKey, signature.subgraphIndex = _SIGNATURE, 0
        signature.inputs = [_entry("input", self._indices["input"])]
        signature.outputs = [_entry(output, self._indices[output])]
        self._model.signatureDefs = [signature]
        return pack(self._model)


def _entry(name: str, index: int) -> Any:
    entry = schema.TensorMapT()
    entry.name, entry.tensorIndex = name, index
    return entry


def _fused(relu: bool) -> int:
    kinds = schema.ActivationFunctionType
    return int(kinds.RELU if relu else kinds.NONE)


def pack(model: Any) -> bytes:
    """The bytes of a TFLite file."""
    flatbuffers: Any = importlib.import_module("flatbuffers")
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def residual(folder: Path) -> tuple[Path, Path, dict[str, tuple[int, ...]]]:
    """A stem, two residual blocks (one with a stride), a head."""
    net = Twice(31, 32, 48)
    x = net.conv("input", 16, "stem", stride=2, relu=True)
    x = net.pair("Add", net.conv(net.conv(x, 16, "b1_c1", relu=True), 16, "b1_c2"), x, "b1", relu=True)
    y = net.conv(net.conv(x, 24, "b2_c1", stride=2, relu=True), 24, "b2_c2")
    x = net.pair("Add", y, net.conv(x, 24, "b2_side", k=2, stride=2), "b2", relu=True)
    x = net.conv(net.mean(x, "gap"), 10, "logits", k=1)
    return (*net.save(folder, net.logistic(x, "scores")), net.shapes)


def inverted(folder: Path) -> tuple[Path, Path, dict[str, tuple[int, ...]]]:
    """Inverted residuals with squeeze-and-excite, and a picture as output."""
    net = Twice(32, 32, 48)
    x = net.conv("input", 12, "stem", stride=2, relu=True)
    y = net.conv(net.conv(x, 32, "expand", k=1, relu=True), 32, "depth", relu=True, depthwise=True)
    s = net.conv(net.conv(net.mean(y, "se_gap"), 16, "se_fc1", k=1, relu=True), 32, "se_fc2", k=1)
    y = net.pair("Mul", y, net.logistic(s, "se_gate"), "se")
    x = net.pair("Add", net.conv(y, 12, "shrink", k=1), x, "block")
    return (*net.save(folder, net.tanh(net.conv(x, 6, "curves"), "curve")), net.shapes)


LITE_NETWORKS = {"residual": residual, "inverted": inverted}
