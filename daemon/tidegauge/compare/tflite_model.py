"""A TFLite model as the float graph that regions are cut from: NCHW as TIDL's traces are, tensors under their names.

Weights of a quantised model are dequantised, channel by channel where it is quantised so; its activations stay float.
That the graph computes what LiteRT does is checked tensor by tensor on the recorded input (`check`).

Source: TFLite's kernels (SAME padding, pooling that leaves out padded elements, coordinates of the resize operators).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from tidegauge.compare.model import Model
from tidegauge.compare.tflite_file import Operator, Tensor, TfliteFile, read
from tidegauge.errors import TidegaugeError

Array = NDArray[Any]

_OPSET, _IR = 17, 8
TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)
#: Where a dimension of an NHWC tensor is in NCHW.
_AXIS = (0, 2, 3, 1)
_VALID = 1  # schema.fbs: enum Padding
_CLIPS = {"RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0), "RELU_0_TO_1": (0.0, 1.0)}
_BINARY = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div", "MAXIMUM": "Max", "MINIMUM": "Min"}
_PLAIN = {
    "RELU": "Relu",
    "LOGISTIC": "Sigmoid",
    "TANH": "Tanh",
    "EXP": "Exp",
    "SQRT": "Sqrt",
    "ABS": "Abs",
    "NEG": "Neg",
    "ELU": "Elu",
    "HARD_SWISH": "HardSwish",
    "QUANTIZE": "Identity",
    "DEQUANTIZE": "Identity",
    "CAST": "Identity",
}


def nchw(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape inside: a picture's with its channels first, any other as it is."""
    return tuple(shape[i] for i in TO_NCHW) if len(shape) == 4 else tuple(shape)


def to_nchw(value: Array) -> Array:
    return value.transpose(TO_NCHW) if value.ndim == 4 else value


def load_tflite(data: bytes, name: str) -> Model:
    """Raises `TidegaugeError` for what is no TFLite model, and for an operator that has no rule, by its name."""
    file = read(data, name)
    work = _Conversion(file, name)
    for op in file.operators:
        work.convert(op)
    inputs = [file.tensors[i] for i in file.inputs]
    return Model(
        nodes=work.nodes,
        weights=work.weights,
        inputs=tuple(t.name for t in inputs),
        outputs=tuple(file.tensors[i].name for i in file.outputs),
        opsets=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR,
        input_shapes={t.name: nchw(t.shape) for t in inputs},
        input_types={t.name: np.dtype(np.float32) for t in inputs},
        shapes={t.name: nchw(t.shape) for t in file.tensors},
        nhwc={t.name: t.shape for t in inputs if len(t.shape) == 4},
        codes={
            t.name: (t.quantisation.scales[0], (t.quantisation.zero_points or (0,))[0])
            for t in inputs
            if t.quantisation is not None and t.dtype != "float32"
        },
    )


class _Conversion:
    """Nodes and constants so far."""

    def __init__(self, file: TfliteFile, name: str) -> None:
        self.file, self.model = file, name
        self.nodes: list[Any] = []
        self.weights: dict[str, Array] = {}
        self.constants = {t.name: t.values() for t in file.tensors if t.constant is not None}

    def convert(self, op: Operator) -> None:
        out = self.tensor(op.outputs[0])
        if op.name in ("DEQUANTIZE", "CAST") and self.tensor(op.inputs[0]).name in self.constants:
            self.constants[out.name] = self.constants[self.tensor(op.inputs[0]).name]  # unpacks a constant
            return
        rule = _RULES.get(op.name)
        if rule is None:
            raise TidegaugeError(
                f"{self.model} has the operator {op.name} ({out.name}), which the reference has no rule for",
                "convert the model to ONNX and compare with that, or give the sub-graph before it",
            )
        rule(self, op, out)

    def tensor(self, index: int) -> Tensor:
        return self.file.tensors[index]

    def fixed(self, op: Operator, position: int) -> Array:
        """An input that must be constant."""
        found = self.tensor(op.inputs[position])
        if found.name not in self.constants:
            raise TidegaugeError(
                f"{op.name} {self.tensor(op.outputs[0]).name} of {self.model} has an input {found.name} that is not "
                "constant",
                "convert the model to ONNX and compare with that",
            )
        return self.constants[found.name]

    def const(self, name: str, value: Array) -> str:
        self.weights[name] = np.ascontiguousarray(value)
        return name

    def add(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=output, **attributes))
        return output

    def activated(self, op: Operator, out: Tensor, kind: str, inputs: Sequence[str], **attributes: Any) -> None:
        """The node, and the activation that TFLite has fused into it."""
        fused = self.file.activations.get(getattr(op.options, "fusedActivationFunction", 0), "?")
        if fused == "NONE":
            self.add(kind, inputs, out.name, **attributes)
        else:
            self.activation(fused, self.add(kind, inputs, f"{out.name}::linear", **attributes), out.name)

    def activation(self, fused: str, source: str, output: str) -> None:
        if fused in _CLIPS:
            low, high = (np.asarray(bound, np.float32) for bound in _CLIPS[fused])
            self.add("Clip", [source, self.const(f"{output}::low", low), self.const(f"{output}::high", high)], output)
        elif fused in ("RELU", "TANH"):
            self.add({"RELU": "Relu", "TANH": "Tanh"}[fused], [source], output)
        else:
            raise TidegaugeError(f"{output} of {self.model} has the activation {fused}", "convert the model to ONNX")

    def operand(self, op: Operator, position: int, out: Tensor) -> str:
        """An input of an element-wise operator; a constant is laid out to broadcast as it does in NHWC."""
        found = self.tensor(op.inputs[position])
        if found.name not in self.constants:
            if len(found.shape) not in (len(out.shape), 0):
                raise TidegaugeError(
                    f"{op.name} {out.name} of {self.model} broadcasts {found.name} from {len(found.shape)} dimensions",
                    "convert the model to ONNX and compare with that",
                )
            return found.name
        value = self.constants[found.name].astype(np.float32)
        if len(out.shape) == 4 and value.ndim:
            value = value.reshape((1,) * (4 - value.ndim) + value.shape).transpose(TO_NCHW)
        return self.const(f"{out.name}::{position}", value)

    def flat(self, source: Tensor, out: Tensor) -> str:
        """The tensor in TFLite's own order of elements."""
        if len(source.shape) != 4 or source.shape[1:3] == (1, 1):
            return source.name
        return self.add("Transpose", [source.name], f"{out.name}::nhwc", perm=TO_NHWC)

    def shaped(self, source: str, out: Tensor) -> None:
        """`source`, in TFLite's order, in the shape of `out`."""
        target = self.const(f"{out.name}::shape", np.asarray(out.shape, np.int64))
        if len(out.shape) != 4:
            self.add("Reshape", [source, target], out.name)
            return
        self.add("Transpose", [self.add("Reshape", [source, target], f"{out.name}::rows")], out.name, perm=TO_NCHW)


def _window(work: _Conversion, op: Operator, source: Tensor, kernel: Sequence[int]) -> dict[str, Any]:
    options = op.options
    strides = options.strideH, options.strideW
    dilations = getattr(options, "dilationHFactor", 1), getattr(options, "dilationWFactor", 1)
    pads = [0, 0, 0, 0]
    if options.padding != _VALID:
        for axis in (0, 1):
            size, reach = source.shape[1 + axis], (kernel[axis] - 1) * dilations[axis] + 1
            total = max((-(-size // strides[axis]) - 1) * strides[axis] + reach - size, 0)
            pads[axis], pads[axis + 2] = total // 2, total - total // 2
    found: dict[str, Any] = {"kernel_shape": list(kernel), "strides": list(strides), "pads": pads}
    return found if dilations == (1, 1) else {**found, "dilations": list(dilations)}


def _biased(work: _Conversion, op: Operator, out: Tensor, inputs: list[str]) -> list[str]:
    if len(op.inputs) > 2 and op.inputs[2] >= 0:
        inputs.append(work.const(f"{out.name}::bias", work.fixed(op, 2).astype(np.float32)))
    return inputs


def _convolution(work: _Conversion, op: Operator, out: Tensor) -> None:
    source, weights = work.tensor(op.inputs[0]), work.fixed(op, 1)
    depthwise = op.name == "DEPTHWISE_CONV_2D"
    laid = weights.transpose((3, 0, 1, 2) if depthwise else TO_NCHW)
    group = source.shape[3] if depthwise else source.shape[3] // weights.shape[3]
    window = _window(work, op, source, laid.shape[2:])
    inputs = [source.name, work.const(f"{out.name}::weights", laid.astype(np.float32))]
    work.activated(op, out, "Conv", _biased(work, op, out, inputs), group=group, **window)


def _matrix(work: _Conversion, op: Operator, out: Tensor) -> None:
    source, weights = work.tensor(op.inputs[0]), work.fixed(op, 1)
    name = source.name
    if len(source.shape) != 2:
        shape = work.const(f"{out.name}::flat_shape", np.asarray((-1, weights.shape[1]), np.int64))
        name = work.add("Reshape", [work.flat(source, out), shape], f"{out.name}::flat")
    inputs = [name, work.const(f"{out.name}::weights", weights.astype(np.float32))]
    if len(out.shape) == 2:
        work.activated(op, out, "Gemm", _biased(work, op, out, inputs), transB=1)
        return
    plain = Tensor(f"{out.name}::matrix", (-1, weights.shape[0]), out.dtype, None, None)
    work.activated(op, plain, "Gemm", _biased(work, op, plain, inputs), transB=1)
    work.shaped(plain.name, out)


def _binary(work: _Conversion, op: Operator, out: Tensor) -> None:
    work.activated(op, out, _BINARY[op.name], [work.operand(op, 0, out), work.operand(op, 1, out)])


def _pool(work: _Conversion, op: Operator, out: Tensor) -> None:
    source = work.tensor(op.inputs[0])
    window = _window(work, op, source, (op.options.filterHeight, op.options.filterWidth))
    mean = op.name == "AVERAGE_POOL_2D"
    extra = {"count_include_pad": 0} if mean else {}
    work.activated(op, out, "AveragePool" if mean else "MaxPool", [source.name], **window, **extra)


def _mean(work: _Conversion, op: Operator, out: Tensor) -> None:
    source = work.tensor(op.inputs[0])
    rank = len(source.shape)
    axes = sorted(int(a) % rank for a in work.fixed(op, 1).reshape(-1))
    if rank == 4 and axes == [1, 2]:
        kept = len(out.shape) == 4
        name = work.add("GlobalAveragePool", [source.name], out.name if kept else f"{out.name}::pooled")
        if not kept:
            shape = work.const(f"{out.name}::shape", np.asarray(out.shape, np.int64))
            work.add("Reshape", [name, shape], out.name)
        return
    name = work.add("ReduceMean", [work.flat(source, out)], f"{out.name}::mean", axes=axes, keepdims=1)
    work.shaped(name, out)


def _softmax(work: _Conversion, op: Operator, out: Tensor) -> None:
    source, rank = work.tensor(op.inputs[0]), len(out.shape)
    name = source.name
    if op.options.beta != 1.0:
        beta = work.const(f"{out.name}::beta", np.asarray(op.options.beta, np.float32))
        name = work.add("Mul", [name, beta], f"{out.name}::scaled")
    work.add("Softmax", [name], out.name, axis=1 if rank == 4 else rank - 1)


def _concat(work: _Conversion, op: Operator, out: Tensor) -> None:
    rank = len(out.shape)
    axis = op.options.axis % rank
    names = [work.operand(op, position, out) for position in range(len(op.inputs))]
    work.activated(op, out, "Concat", names, axis=_AXIS[axis] if rank == 4 else axis)


def _slice(work: _Conversion, op: Operator, out: Tensor) -> None:
    source = work.tensor(op.inputs[0])
    begin, rank, steps = work.fixed(op, 1).reshape(-1), len(source.shape), np.ones(len(source.shape), np.int64)
    if op.name == "SLICE":
        size = work.fixed(op, 2).reshape(-1)
        ends = np.where(size < 0, source.shape, begin + size)
    else:
        options = op.options
        if options.ellipsisMask or options.newAxisMask or options.shrinkAxisMask:
            raise TidegaugeError(f"STRIDED_SLICE {out.name} of {work.model} changes the rank", "convert it to ONNX")
        masks = [[bool(mask >> i & 1) for i in range(rank)] for mask in (options.beginMask, options.endMask)]
        begin, steps = np.where(masks[0], 0, begin), work.fixed(op, 3).reshape(-1)
        ends = np.where(masks[1], source.shape, work.fixed(op, 2).reshape(-1))
    axes = [_AXIS[axis] if rank == 4 else axis for axis in range(rank)]
    parts = (("starts", begin), ("ends", ends), ("axes", axes), ("steps", steps))
    inputs = [work.const(f"{out.name}::{word}", np.asarray(value, np.int64)) for word, value in parts]
    work.add("Slice", [source.name, *inputs], out.name)


def _split(work: _Conversion, op: Operator, out: Tensor) -> None:
    axis, rank = int(work.fixed(op, 0).reshape(-1)[0]) % len(out.shape), len(out.shape)
    names = [work.tensor(index).name for index in op.outputs]
    place = _AXIS[axis] if rank == 4 else axis
    work.nodes.append(helper.make_node("Split", [work.tensor(op.inputs[1]).name], names, name=names[0], axis=place))


def _resize(work: _Conversion, op: Operator, out: Tensor) -> None:
    nearest = op.name == "RESIZE_NEAREST_NEIGHBOR"
    way = "align_corners" if op.options.alignCorners else "half_pixel" if op.options.halfPixelCenters else "asymmetric"
    sizes = work.const(f"{out.name}::sizes", np.asarray(nchw(out.shape), np.int64))
    rounding = "round_prefer_ceil" if op.options.halfPixelCenters or op.options.alignCorners else "floor"
    extra = {"nearest_mode": rounding} if nearest else {}
    inputs = [work.tensor(op.inputs[0]).name, "", "", sizes]
    mode = "nearest" if nearest else "linear"
    work.add("Resize", inputs, out.name, mode=mode, coordinate_transformation_mode=way, **extra)


def _pad(work: _Conversion, op: Operator, out: Tensor) -> None:
    amounts = work.fixed(op, 1).astype(np.int64)
    order = list(TO_NCHW) if len(out.shape) == 4 else list(range(len(out.shape)))
    pads = work.const(f"{out.name}::pads", np.concatenate([amounts[order, 0], amounts[order, 1]]))
    work.add("Pad", [work.tensor(op.inputs[0]).name, pads], out.name)


def _transpose(work: _Conversion, op: Operator, out: Tensor) -> None:
    order = [int(a) for a in work.fixed(op, 1).reshape(-1)]
    name = work.add("Transpose", [work.flat(work.tensor(op.inputs[0]), out)], f"{out.name}::moved", perm=order)
    work.shaped(name, out)


def _plain(work: _Conversion, op: Operator, out: Tensor) -> None:
    work.add(_PLAIN[op.name], [work.tensor(op.inputs[0]).name], out.name)


def _slope(work: _Conversion, op: Operator, out: Tensor) -> None:
    source = work.tensor(op.inputs[0])
    if op.name == "LEAKY_RELU":
        work.add("LeakyRelu", [source.name], out.name, alpha=op.options.alpha)
    else:
        work.add("PRelu", [source.name, work.operand(op, 1, out)], out.name)


_Rule = Callable[[_Conversion, Operator, Tensor], None]
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D"), _convolution),
    "FULLY_CONNECTED": _matrix,
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D"), _pool),
    "MEAN": _mean,
    "SOFTMAX": _softmax,
    "CONCATENATION": _concat,
    **dict.fromkeys(("SLICE", "STRIDED_SLICE"), _slice),
    "SPLIT": _split,
    **dict.fromkeys(("RESIZE_NEAREST_NEIGHBOR", "RESIZE_BILINEAR"), _resize),
    **dict.fromkeys(("PAD", "PADV2"), _pad),
    "TRANSPOSE": _transpose,
    **dict.fromkeys(_PLAIN, _plain),
    **dict.fromkeys(("LEAKY_RELU", "PRELU"), _slope),
    **dict.fromkeys(_CLIPS, lambda work, op, out: work.activation(op.name, work.tensor(op.inputs[0]).name, out.name)),
    **dict.fromkeys(
        ("RESHAPE", "SQUEEZE", "EXPAND_DIMS"),
        lambda work, op, out: work.shaped(work.flat(work.tensor(op.inputs[0]), out), out),
    ),
}
