"""The device's weights: the float ones, rounded. Known scales are used; else the usual schemes are tried.

A region whose output one scheme predicts to within rounding is healthy, and its weight-quantisation loss is the
difference between that scheme and the float weights. A fault can't hide behind a scheme: the candidates are few, fixed,
and all close to the float weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.model import Model

Array = NDArray[Any]


@dataclass(frozen=True)
class Scheme:
    """One way to round weights symmetrically: `bits`, and one scale for the tensor or for each output channel."""

    name: str
    bits: int
    per_channel: bool


#: TIDL's schemes: `quantization_scale_type` 0 and 4, 8 bits and `params_16bit_names_list`, most usual first.
SCHEMES = (
    Scheme("int8", 8, False),
    Scheme("int8 per channel", 8, True),
    Scheme("int16", 16, False),
    Scheme("int16 per channel", 16, True),
)


def weight_inputs(model: Model, nodes: Sequence[int]) -> dict[str, int | None]:
    """The constant weights of these nodes, with the axis of their output channels; None for an element-wise constant,
    which has one scale. Biases aren't weights."""
    found: dict[str, int | None] = {}
    for index in nodes:
        node = model.nodes[index]
        if node.op_type in ("Add", "Sub", "Mul", "Div"):
            constants = [name for name in node.input if name in model.weights]
            found.update({n: None for n in constants if model.weights[n].dtype.kind == "f"})
            continue
        if len(node.input) < 2 or node.input[1] not in model.weights:
            continue
        weight = model.weights[node.input[1]]
        if weight.dtype.kind != "f" or weight.ndim < 2:
            continue
        if node.op_type == "Conv":
            found[node.input[1]] = 0
        elif node.op_type == "ConvTranspose":
            found[node.input[1]] = 1
        elif node.op_type == "Gemm":
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            found[node.input[1]] = 0 if transposed else 1
        elif node.op_type == "MatMul":
            found[node.input[1]] = weight.ndim - 1
    return found


def bias_of(model: Model, weight: str) -> tuple[str, str] | None:
    """What the one node with these weights reads, and its bias; None where either is shared or missing."""
    users = [model.nodes[i] for i in model.readers.get(weight, ())]
    if len(users) != 1 or users[0].op_type not in ("Conv", "ConvTranspose", "Gemm") or len(users[0].input) < 3:
        return None
    bias = users[0].input[2]
    if bias not in model.weights or len(model.readers[bias]) != 1:
        return None
    return users[0].input[0], bias


def held_bias(model: Model, bias: str, stated: Sequence[float] = ()) -> Array:
    """A bias before rounding: what the compile's tables state, if that is one for each channel, else the model's."""
    own = model.weights[bias]
    return np.asarray(stated, own.dtype).reshape(own.shape) if len(stated) == own.size else own


def round_bias(bias: Array, scales: Array) -> Array:
    """A bias in whole units of the accumulator: `scales` units in 1, one or one a channel; as it is where neither."""
    if scales.size not in (1, bias.size):
        return bias
    shaped = scales.reshape(()) if scales.size == 1 else scales.reshape(bias.shape)
    return np.asarray(np.rint(bias.astype(np.float64) * shaped) / shaped, bias.dtype)


def scheme_scales(weights: Array, axis: int | None, scheme: Scheme) -> NDArray[np.float64]:
    """Codes in 1, one for the tensor or one a channel: top code / largest magnitude."""
    top = 2 ** (scheme.bits - 1) - 1
    magnitude = np.abs(weights.astype(np.float64))
    if scheme.per_channel and axis is not None:
        peak = magnitude.max(axis=tuple(i for i in range(weights.ndim) if i != axis))
    else:
        peak = magnitude.max(initial=0.0).reshape(1)
    scale: NDArray[np.float64] = (top / np.where(peak > 0, peak, 1.0)).astype(np.float32).astype(np.float64)
    return scale


def round_weights(weights: Array, axis: int | None, scheme: Scheme) -> Array:
    """Weights as the device holds them: `round(w · scale) / scale` with the scheme's own scales."""
    return to_scales(weights, axis, scheme_scales(weights, axis, scheme), scheme.bits)


def to_scales(weights: Array, axis: int | None, scales: Array, bits: int) -> Array:
    """The same with known scales: one, or one for each output channel. Raises `ValueError` for another number."""
    channels = 1 if axis is None else weights.shape[axis]
    if scales.size not in (1, channels):
        raise ValueError(f"{scales.size} weight scales for {channels} channels")
    shape = [-1 if i == axis else 1 for i in range(weights.ndim)] if scales.size > 1 else [1] * weights.ndim
    scale = scales.astype(np.float64).reshape(shape)
    top = 2 ** (bits - 1) - 1
    codes = np.clip(np.rint(weights.astype(np.float64) * scale), -top, top)
    return np.asarray(codes / scale, weights.dtype)


def rounded(model: Model, weights: Mapping[str, int | None], scheme: Scheme) -> dict[str, Array]:
    """All these weights, rounded by one scheme."""
    return {name: round_weights(model.weights[name], axis, scheme) for name, axis in weights.items()}
