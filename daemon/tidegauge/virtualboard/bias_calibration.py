"""Bias calibration: shifts each bias until its layer's mean over the calibration frames is the float model's.

What TIDL calls advanced calibration (accuracy_level 1, `advanced_options:calibration_iterations`); its own rule isn't
public. Here every iteration runs all frames and corrects all layers at once by the whole difference of their means.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tidegauge.virtualboard.calibration import float_session
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.faults import MATRIX_LAYERS
from tidegauge.virtualboard.layers import Tensors
from tidegauge.virtualboard.network import TwinLayer, TwinNetwork
from tidegauge.virtualboard.twin import Weights

Array = NDArray[Any]


def correct(
    model: onnx.ModelProto, source: onnx.ModelProto, network: TwinNetwork, tensors: Tensors, iterations: int
) -> TwinNetwork:
    """Correct the biases in the twin `model` of the float model `source`, in place. Returns the network with it."""
    constants = {item.name: item for item in model.graph.initializer}
    layers = [x for x in network.tensors() if x.kind in MATRIX_LAYERS and f"{x.name}::2" in constants]
    owners = tensors.owners()
    wanted = {layer.name: owners[layer.name] for layer in layers}
    inner = tensors.lowered.inner
    wanted = {layer: inner.get(tensor, tensor) for layer, tensor in wanted.items()}
    goals = _float_means(source, wanted, tensors)
    for _ in range(iterations):
        means = _twin_means(network, layers, tensors)
        for layer in layers:
            bias, step = constants[f"{layer.name}::2"], constants[f"{layer.name}::step"]
            sums_a_value = numpy_helper.to_array(step) * layer.quant.scale
            moved = numpy_helper.to_array(bias) + (goals[layer.name] - means[layer.name]) * sums_a_value
            bias.CopyFrom(numpy_helper.from_array(np.rint(moved).astype(np.float32), bias.name))
        network = _with(network, model)
    return network


def biases(model: onnx.ModelProto, weights: dict[str, Weights]) -> dict[str, Weights]:
    """The weights with the biases that the twin has now."""
    constants = {item.name: item for item in model.graph.initializer}
    corrected = {}
    for name, weight in weights.items():
        if weight.bias is not None and weight.bits != 32:
            codes = numpy_helper.to_array(constants[f"{name}::2"]).astype(np.float32)
            weight = replace(weight, bias=(codes / weight.bias_scale).astype(np.float32))
        corrected[name] = weight
    return corrected


def _with(network: TwinNetwork, model: onnx.ModelProto) -> TwinNetwork:
    return msgspec.structs.replace(network, twin=model.SerializeToString(deterministic=True))


def _channel_means(value: Array) -> Array:
    axis = 1 if value.ndim > 2 else value.ndim - 1
    means: Array = value.mean(axis=tuple(i for i in range(value.ndim) if i != axis), dtype=np.float64)
    return means


def _float_means(source: onnx.ModelProto, wanted: dict[str, str], tensors: Tensors) -> dict[str, Array]:
    names = list(dict.fromkeys(wanted.values()))
    session = float_session(source, names)
    found: list[list[Array]] = [
        [_channel_means(value) for value in session.run(names, frame)] for frame in tensors.ranges.frames
    ]
    means = dict(zip(names, (np.mean(rows, axis=0) for rows in zip(*found, strict=True)), strict=True))
    return {layer: means[name] for layer, name in wanted.items()}


def _twin_means(network: TwinNetwork, layers: list[TwinLayer], tensors: Tensors) -> dict[str, Array]:
    twin = Twin(network)
    rows: dict[str, list[Array]] = {layer.name: [] for layer in layers}
    for frame in tensors.ranges.frames:
        values = twin.run(frame, rows)
        for layer in layers:
            rows[layer.name].append(_channel_means(layer.quant.values(values[layer.name])))
    return {name: np.mean(found, axis=0) for name, found in rows.items()}
