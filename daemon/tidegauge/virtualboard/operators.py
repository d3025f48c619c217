"""Which ONNX operators the virtual board has layers for, and how each is computed in fixed point."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tidegauge.errors import TidegaugeError

Array = NDArray[Any]


class Domain(enum.Enum):
    """MAC: integer codes times integer weights. LINEAR: on integer codes, rescaled. MOVE: codes are only moved.
    REAL: on values in float32, requantised (TIDL: look-up tables and scaled adders)."""

    MAC = "mac"
    LINEAR = "linear"
    MOVE = "move"
    REAL = "real"


@dataclass(frozen=True)
class Activation:
    """`kind`: relu, clip or leaky. Values below `low` and above `high` are clipped; leaky: negative times `slope`."""

    kind: str
    low: float = -inf
    high: float = inf
    slope: float = 0.0


_TABLE: dict[str, tuple[str, Domain]] = {
    "Conv": ("TIDL_ConvolutionLayer", Domain.MAC),
    "Gemm": ("TIDL_InnerProductLayer", Domain.MAC),
    "MatMul": ("TIDL_InnerProductLayer", Domain.MAC),
    "Relu": ("TIDL_BatchNormLayer", Domain.REAL),
    "Clip": ("TIDL_BatchNormLayer", Domain.REAL),
    "LeakyRelu": ("TIDL_BatchNormLayer", Domain.REAL),
    "BatchNormalization": ("TIDL_BatchNormLayer", Domain.REAL),
    "Tanh": ("TIDL_TanhLayer", Domain.REAL),
    "Sigmoid": ("TIDL_SigmoidLayer", Domain.REAL),
    "HardSigmoid": ("TIDL_HardSigmoidLayer", Domain.REAL),
    "Softmax": ("TIDL_SoftMaxLayer", Domain.REAL),
    "LayerNormalization": ("TIDL_LayerNormLayer", Domain.REAL),
    "Add": ("TIDL_EltWiseLayer", Domain.REAL),
    "Sub": ("TIDL_EltWiseLayer", Domain.REAL),
    "Mul": ("TIDL_EltWiseLayer", Domain.REAL),
    "Concat": ("TIDL_ConcatLayer", Domain.REAL),
    "MaxPool": ("TIDL_PoolingLayer", Domain.LINEAR),
    "AveragePool": ("TIDL_PoolingLayer", Domain.LINEAR),
    "GlobalAveragePool": ("TIDL_PoolingLayer", Domain.LINEAR),
    "Resize": ("TIDL_ResizeLayer", Domain.LINEAR),
    "Slice": ("TIDL_SliceLayer", Domain.MOVE),
    "Split": ("TIDL_SliceLayer", Domain.MOVE),
    "Reshape": ("TIDL_ReshapeLayer", Domain.MOVE),
    "Flatten": ("TIDL_FlattenLayer", Domain.MOVE),
    "Squeeze": ("TIDL_SqueezeLayer", Domain.MOVE),
    "Unsqueeze": ("TIDL_UnsqueezeLayer", Domain.MOVE),
    "Transpose": ("TIDL_TransposeLayer", Domain.MOVE),
    "Identity": ("TIDL_ReshapeLayer", Domain.MOVE),
    "Dropout": ("TIDL_ReshapeLayer", Domain.MOVE),
}
SUPPORTED = frozenset(_TABLE)
FOLDED = frozenset({"Identity", "Dropout"})
ACTIVATIONS = frozenset({"Relu", "Clip", "LeakyRelu"})


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """The attribute's value, or `default` where the node leaves it out."""
    for item in node.attribute:
        if item.name == name:
            return onnx.helper.get_attribute_value(item)
    return default


def tidl_kind(node: onnx.NodeProto, consts: dict[str, Array]) -> str:
    """TIDL's layer type. Arithmetic with a constant is a scale-and-bias layer, as in TIDL's import."""
    if node.op_type in ("Add", "Sub", "Mul") and consts:
        return "TIDL_BatchNormLayer"
    return _TABLE[node.op_type][0]


def domain(node: onnx.NodeProto, consts: dict[str, Array]) -> Domain:
    """How the node is computed. Raises `TidegaugeError` for forms of an operator that have no layer."""
    op = node.op_type
    if op == "MatMul" and not consts:
        return Domain.REAL  # a product of two activations, as in attention
    if op in ("Conv", "Gemm", "MatMul"):
        _check_weights(node, consts)
    if op == "Resize" and attribute(node, "mode", b"nearest") == b"cubic":
        raise TidegaugeError(f"Resize {node.output[0]} is cubic", "use nearest or linear")
    if op == "MaxPool" and len(node.output) > 1 and node.output[1]:
        raise TidegaugeError(f"MaxPool {node.output[0]} returns indices", "remove them from the model")
    return _TABLE[op][1]


def keeps_quantisation(node: onnx.NodeProto) -> bool:
    """Whether the output takes the input's scale: operators that only select values."""
    if node.op_type == "Resize":
        return bool(attribute(node, "mode", b"nearest") == b"nearest")
    return node.op_type == "MaxPool" or _TABLE[node.op_type][1] is Domain.MOVE


def _check_weights(node: onnx.NodeProto, consts: dict[str, Array]) -> None:
    name, op = node.output[0], node.op_type
    if node.input[1] not in consts or node.input[0] in consts:
        raise TidegaugeError(f"{op} {name} multiplies two activations", "the virtual board needs constant weights")
    if len(node.input) > 2 and node.input[2] and node.input[2] not in consts:
        raise TidegaugeError(f"{op} {name} has a bias that is not constant", "make it a constant of the model")
    if op == "Gemm":
        plain = attribute(node, "alpha", 1.0) == 1.0 and attribute(node, "beta", 1.0) == 1.0
        if not plain or attribute(node, "transA", 0):
            raise TidegaugeError(f"Gemm {name} has alpha, beta or transA", "fold them into the weights")
    if op == "MatMul" and consts[node.input[1]].ndim != 2:
        raise TidegaugeError(f"MatMul {name} has weights that are no matrix", "reshape the model")


def read_activation(node: onnx.NodeProto, constants: dict[str, Array]) -> Activation:
    """The activation in a Relu, Clip or LeakyRelu node. Raises `TidegaugeError` for bounds that aren't constant."""
    if node.op_type == "Relu":
        return Activation("relu", low=0.0)
    if node.op_type == "LeakyRelu":
        return Activation("leaky", slope=float(attribute(node, "alpha", 0.01)))
    bounds = [-inf, inf]
    for position, name in enumerate(node.input[1:3]):
        if name and name not in constants:
            raise TidegaugeError(f"Clip {node.output[0]} has a bound that is not constant", "make it a constant")
        if name:
            bounds[position] = float(np.asarray(constants[name]).reshape(()))
    return Activation("clip", bounds[0], bounds[1])


def multiply_adds(node: onnx.NodeProto, consts: dict[str, Array], shape: tuple[int, ...]) -> int:
    """Multiply-accumulates of a layer, as netLog counts them: elements where there is no kernel."""
    if node.op_type == "Conv":
        return prod(shape) * prod(consts[node.input[1]].shape[1:])
    if node.op_type in ("Gemm", "MatMul") and node.input[1] in consts:
        return prod(consts[node.input[1]].shape) * prod(shape[:-1])
    return prod(shape)
