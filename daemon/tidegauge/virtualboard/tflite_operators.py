"""Each TFLite operator that the virtual board has a layer for, as ONNX nodes on NCHW tensors of the same names.

Source: TFLite's kernels (SAME padding, pooling without padded elements, the resize operators' coordinates).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tidegauge.virtualboard.tflite_model import Operator, Tensor, TfliteModel

Array = NDArray[Any]
_TO_NCHW, _TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)
#: Where a dimension of an NHWC tensor is in NCHW.
_AXIS = (0, 2, 3, 1)
_CLIPS = {"RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0), "RELU_0_TO_1": (0.0, 1.0)}


class NotTaken(Exception):
    """The C7x has no layer for this operator, or for this form of it. The text is the reason."""


@dataclass
class Converted:
    """The nodes of one operator, and their constants by name."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)


class Conversion:
    """Converts the operators of one model, one by one."""

    def __init__(self, model: TfliteModel) -> None:
        self._model = model
        self._users: dict[int, list[Operator]] = {}
        for op in model.operators:
            for index in op.inputs:
                self._users.setdefault(index, []).append(op)
        self._producers = {index: op for op in model.operators for index in op.outputs}

    def convert(self, op: Operator) -> Converted:
        """Raises NotTaken."""
        rule = _RULES.get(op.name)
        if rule is None:
            raise NotTaken("there is no layer for it")
        for index in (*op.inputs, *op.outputs):
            if index >= 0 and self._tensor(index).dtype != "float32" and self._tensor(index).constant is None:
                raise NotTaken(f"tensor {self._tensor(index).name} is {self._tensor(index).dtype}, not float32")
        made = _Maker(self, op)
        rule(made)
        return made.result

    def _tensor(self, index: int) -> Tensor:
        return self._model.tensors[index]

    def padding_before(self, index: int) -> tuple[int, tuple[int, ...]] | None:
        """Where the tensor only pads another one with zeros for convolutions: that tensor, and (top, left, bottom,
        right)."""
        op = self._producers.get(index)
        if op is None or op.name != "PAD" or index in self._model.outputs:
            return None
        amounts = self._tensor(op.inputs[1]).constant
        convolutions = all(
            user.name in ("CONV_2D", "DEPTHWISE_CONV_2D") and user.options.padding == _VALID
            for user in self._users[index]
        )
        if amounts is None or amounts.shape != (4, 2) or amounts[0].any() or amounts[3].any() or not convolutions:
            return None
        return op.inputs[0], tuple(int(amounts[axis][side]) for side in (0, 1) for axis in (1, 2))


_VALID = 1  # schema.fbs: enum Padding


class _Maker:
    """One operator under conversion."""

    def __init__(self, conversion: Conversion, op: Operator) -> None:
        self.conversion, self.op, self.options = conversion, op, op.options
        self.result = Converted()
        self.out = conversion._tensor(op.outputs[0])

    def tensor(self, position: int) -> Tensor:
        return self.conversion._tensor(self.op.inputs[position])

    def data(self, position: int = 0) -> Tensor:
        """An input that is an activation."""
        found = self.tensor(position)
        if found.constant is not None:
            raise NotTaken(f"its input {found.name} is constant")
        return found

    def fixed(self, position: int) -> Array:
        """An input that must be constant."""
        value = self.tensor(position).constant
        if value is None:
            raise NotTaken(f"its input {self.tensor(position).name} is not constant")
        return value

    def picture(self, position: int = 0) -> Tensor:
        found = self.data(position)
        if len(found.shape) != 4:
            raise NotTaken(f"its input {found.name} has {len(found.shape)} dimensions, not 4")
        return found

    def const(self, suffix: str, value: Array | np.floating[Any]) -> str:
        name = f"{self.out.name}/{suffix}"
        self.result.constants[name] = np.ascontiguousarray(value)
        return name

    def add(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.result.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def activated(self, kind: str, inputs: list[str], **attributes: Any) -> None:
        """The node, and the activation that TFLite has fused into it."""
        from ai_edge_litert.schema_py_generated import ActivationFunctionType

        number = self.options.fusedActivationFunction
        names = {value: name for name, value in vars(ActivationFunctionType).items() if isinstance(value, int)}
        fused = names.get(number, str(number))
        if fused == "NONE":
            self.add(kind, inputs, self.out.name, **attributes)
            return
        before = self.add(kind, inputs, f"{self.out.name}/before", **attributes)
        self.activation(fused, before)

    def activation(self, fused: str, source: str) -> None:
        if fused == "RELU":
            self.add("Relu", [source], self.out.name)
        elif fused in _CLIPS:
            low, high = (np.float32(bound).reshape(()) for bound in _CLIPS[fused])
            self.add("Clip", [source, self.const("low", low), self.const("high", high)], self.out.name)
        else:
            raise NotTaken(f"there is no layer for its activation {fused}")

    def operand(self, position: int) -> str:
        """An input of an element-wise operator, a constant one laid out to broadcast as in NHWC."""
        found = self.tensor(position)
        if found.constant is None:
            if len(found.shape) != len(self.out.shape):
                raise NotTaken(f"its inputs have {len(found.shape)} and {len(self.out.shape)} dimensions")
            return found.name
        value = found.constant.astype(np.float32)
        if len(self.out.shape) == 4 and value.ndim:
            value = value.reshape((1,) * (4 - value.ndim) + value.shape).transpose(_TO_NCHW)
        return self.const(str(position), value)

    def flat(self, source: Tensor) -> str:
        """The tensor in TFLite's own order of elements."""
        if len(source.shape) != 4 or source.shape[1:3] == (1, 1):
            return source.name
        return self.add("Transpose", [source.name], f"{self.out.name}/nhwc", perm=_TO_NHWC)

    def reshaped(self, source: str) -> None:
        """`source`, in TFLite's order, in the shape of the output, which is NCHW where it is a picture."""
        shape = self.out.shape
        if len(shape) != 4 or shape[1:3] == (1, 1):
            wanted = tuple(shape[i] for i in _TO_NCHW) if len(shape) == 4 else shape
            self.add("Reshape", [source, self.const("shape", np.asarray(wanted, np.int64))], self.out.name)
            return
        target = self.const("shape", np.asarray(shape, np.int64))
        rows = self.add("Reshape", [source, target], f"{self.out.name}/rows")
        self.add("Transpose", [rows], self.out.name, perm=_TO_NCHW)


def _same(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    total = max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    return total // 2, total - total // 2


def _window(at: _Maker, source: Tensor, kernel: tuple[int, int]) -> dict[str, Any]:
    options = at.options
    strides = (options.strideH, options.strideW)
    dilations = (getattr(options, "dilationHFactor", 1), getattr(options, "dilationWFactor", 1))
    pads = [0, 0, 0, 0]
    if options.padding != _VALID:
        for i in (0, 1):
            pads[i], pads[i + 2] = _same(source.shape[1 + i], kernel[i], strides[i], dilations[i])
    found: dict[str, Any] = {"kernel_shape": list(kernel), "strides": list(strides), "pads": pads}
    return found | ({"dilations": list(dilations)} if dilations != (1, 1) else {})


def _convolution(at: _Maker, weights: Array, group: int) -> None:
    source = at.picture()
    where = _window(at, source, (weights.shape[2], weights.shape[3]))
    name, padded = source.name, at.conversion.padding_before(source.index)
    if padded is not None:
        name, where["pads"] = at.conversion._tensor(padded[0]).name, list(padded[1])
    inputs = [name, at.const("weights", weights.astype(np.float32))]
    if len(at.op.inputs) > 2 and at.op.inputs[2] >= 0:
        inputs.append(at.const("bias", at.fixed(2).astype(np.float32)))
    at.activated("Conv", inputs, group=group, **where)


def _conv(at: _Maker) -> None:
    weights, channels = at.fixed(1), at.picture().shape[3]
    _convolution(at, weights.transpose(0, 3, 1, 2), channels // weights.shape[3])


def _depthwise(at: _Maker) -> None:
    weights = at.fixed(1)
    if weights.ndim != 4 or at.picture().shape[3] * at.options.depthMultiplier != weights.shape[3]:
        raise NotTaken("its weights do not fit its input")
    _convolution(at, weights.transpose(3, 0, 1, 2), at.picture().shape[3])


def _fully_connected(at: _Maker) -> None:
    weights, source = at.fixed(1), at.data()
    if len(at.out.shape) != 2:
        raise NotTaken(f"its output has {len(at.out.shape)} dimensions, not 2")
    name = source.name
    if len(source.shape) != 2:
        shape = at.const("flat_shape", np.asarray((-1, weights.shape[1]), np.int64))
        name = at.add("Reshape", [at.flat(source), shape], f"{at.out.name}/flat")
    inputs = [name, at.const("weights", weights.astype(np.float32))]
    if len(at.op.inputs) > 2 and at.op.inputs[2] >= 0:
        inputs.append(at.const("bias", at.fixed(2).astype(np.float32)))
    at.activated("Gemm", inputs, transB=1)


def _element_wise(kind: str) -> Callable[[_Maker], None]:
    def rule(at: _Maker) -> None:
        if all(at.tensor(position).constant is not None for position in (0, 1)):
            raise NotTaken("both its inputs are constant")
        at.activated(kind, [at.operand(0), at.operand(1)])

    return rule


def _pool(kind: str, **attributes: int) -> Callable[[_Maker], None]:
    def rule(at: _Maker) -> None:
        source = at.picture()
        where = _window(at, source, (at.options.filterHeight, at.options.filterWidth))
        at.activated(kind, [source.name], **where, **attributes)

    return rule


def _mean(at: _Maker) -> None:
    axes = sorted(int(axis) % 4 for axis in at.fixed(1).reshape(-1))
    if len(at.data().shape) != 4 or axes != [1, 2]:
        raise NotTaken("it is a mean over other axes than height and width")
    if len(at.out.shape) == 4:
        at.add("GlobalAveragePool", [at.data().name], at.out.name)
        return
    at.reshaped(at.add("GlobalAveragePool", [at.data().name], f"{at.out.name}/pooled"))


def _function(kind: str) -> Callable[[_Maker], None]:
    def rule(at: _Maker) -> None:
        at.add(kind, [at.data().name], at.out.name)

    return rule


def _leaky_relu(at: _Maker) -> None:
    at.add("LeakyRelu", [at.data().name], at.out.name, alpha=at.options.alpha)


def _softmax(at: _Maker) -> None:
    if at.options.beta != 1.0:
        raise NotTaken(f"its beta is {at.options.beta:g}, not 1")
    rank = len(at.data().shape)
    at.add("Softmax", [at.data().name], at.out.name, axis=1 if rank == 4 else rank - 1)


def _concat(at: _Maker) -> None:
    rank = len(at.out.shape)
    axis = at.options.axis % rank
    names = [at.data(position).name for position in range(len(at.op.inputs))]
    at.activated("Concat", names, axis=_AXIS[axis] if rank == 4 else axis)


def _slice(at: _Maker) -> None:
    begin, size, rank = at.fixed(1).reshape(-1), at.fixed(2).reshape(-1), len(at.out.shape)
    ends = np.where(size < 0, at.data().shape, begin + size)
    axes = [_AXIS[axis] if rank == 4 else axis for axis in range(rank)]
    inputs = [
        at.const(word, np.asarray(value, np.int64))
        for word, value in (("starts", begin), ("ends", ends), ("axes", axes))
    ]
    at.add("Slice", [at.data().name, *inputs], at.out.name)


def _resize(mode: str) -> Callable[[_Maker], None]:
    def rule(at: _Maker) -> None:
        corners, half = at.options.alignCorners, at.options.halfPixelCenters
        if corners and mode == "nearest":
            raise NotTaken("it aligns corners")
        sizes = at.const("sizes", np.asarray([at.out.shape[i] for i in _TO_NCHW], np.int64))
        way = "align_corners" if corners else "half_pixel" if half else "asymmetric"
        extra = {"nearest_mode": "round_prefer_ceil" if half else "floor"} if mode == "nearest" else {}
        at.add(
            "Resize", [at.picture().name, "", "", sizes], at.out.name, mode=mode,
            coordinate_transformation_mode=way, **extra,
        )  # fmt: skip

    return rule


def _pad(at: _Maker) -> None:
    if at.conversion.padding_before(at.out.index) is None:
        raise NotTaken("it is no zero padding of height and width before convolutions")
    # The convolutions that read it pad by themselves: as in TIDL, the layer is gone.


_RULES: dict[str, Callable[[_Maker], None]] = {
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _depthwise,
    "FULLY_CONNECTED": _fully_connected,
    "ADD": _element_wise("Add"),
    "SUB": _element_wise("Sub"),
    "MUL": _element_wise("Mul"),
    "AVERAGE_POOL_2D": _pool("AveragePool", count_include_pad=0),
    "MAX_POOL_2D": _pool("MaxPool"),
    "MEAN": _mean,
    "RELU": lambda at: at.activation("RELU", at.data().name),
    "RELU6": lambda at: at.activation("RELU6", at.data().name),
    "RELU_N1_TO_1": lambda at: at.activation("RELU_N1_TO_1", at.data().name),
    "RELU_0_TO_1": lambda at: at.activation("RELU_0_TO_1", at.data().name),
    "LEAKY_RELU": _leaky_relu,
    "LOGISTIC": _function("Sigmoid"),
    "TANH": _function("Tanh"),
    "SOFTMAX": _softmax,
    "CONCATENATION": _concat,
    "RESHAPE": lambda at: at.reshaped(at.flat(at.data())),
    "SQUEEZE": lambda at: at.reshaped(at.flat(at.data())),
    "EXPAND_DIMS": lambda at: at.reshaped(at.flat(at.data())),
    "SLICE": _slice,
    "RESIZE_NEAREST_NEIGHBOR": _resize("nearest"),
    "RESIZE_BILINEAR": _resize("linear"),
    "PAD": _pad,
}
TAKEN = frozenset(_RULES)
