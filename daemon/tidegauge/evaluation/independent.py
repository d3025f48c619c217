"""Devices whose kernels are not the virtual board's, dressed as one: a table of layers, scales, and traces.

A device is a `TwinNetwork` (layers in execution order, and an ONNX graph or a function that computes them), and a
tempDir that tells the comparison names and scales, written here from the device's own parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.evaluation.trial import Bench
from tidegauge.virtualboard.artifacts import layer_info, net_log
from tidegauge.virtualboard.network import FLOAT, INT8, Quant, TwinLayer, TwinNetwork, six_dims

Array = NDArray[Any]


@dataclass(frozen=True)
class Part:
    """One tensor of the device: `name` as TIDL would call it, what computes it, the names of what it reads.

    `values`: the device's tensor of a healthy run, which tells shape and content. `weights`: codes in 1, one or one an
    output channel; None without weights.
    """

    name: str
    kind: str
    reads: tuple[str, ...]
    quant: Quant
    values: Array
    weights: Array | None = None


def layers_of(inputs: Mapping[str, tuple[int, ...]], parts: Sequence[Part]) -> tuple[TwinLayer, ...]:
    """The table of layers: data layers for the inputs, then the parts."""
    layers: list[TwinLayer] = []
    ids: dict[str, int] = {}
    for name, shape in inputs.items():
        ids[name] = len(layers)
        layers.append(_layer(len(layers), "TIDL_DataLayer", name, (), np.zeros(shape, np.float32), FLOAT))
    for part in parts:
        reads = tuple(ids[name] for name in part.reads)
        ids[part.name] = len(layers)
        layers.append(_layer(len(layers), part.kind, part.name, reads, part.values, part.quant))
    return tuple(layers)


def _layer(number: int, kind: str, name: str, reads: tuple[int, ...], values: Array, quant: Quant) -> TwinLayer:
    low, high = (float(values.min()), float(values.max())) if quant.is_float else quant.value_range
    differ = values.ndim >= 3 and values.shape[-3] > 1 and bool(np.any(values != np.roll(values, 1, axis=-3)))
    return TwinLayer(
        layer_id=number,
        data_id=number,
        kind=kind,
        name=name,
        inputs=reads,
        shape=values.shape,
        dims=six_dims(values.shape),
        quant=quant,
        low=low,
        high=high,
        varies=bool(values.size and values.min() < values.max()),
        channels_differ=differ,
    )


def write_tempdir(folder: Path, layers: Sequence[TwinLayer], parts: Sequence[Part]) -> Path:
    """layer_info, netLog and quantisation proto of the device."""
    temp = folder / "tempDir"
    temp.mkdir(parents=True)
    (temp / "subgraph_0_tidl_net.bin.layer_info.txt").write_text(layer_info(tuple(layers)))
    (temp / "subgraph_0_tidl_net.bin_netLog.txt").write_text(net_log(tuple(layers)))
    weights = {part.name: part.weights for part in parts if part.weights is not None}
    text = [f"num_layers: {len(layers)}", "quant_type: ASYMMETRIC", "calib_type: PERCHANNEL"]
    for layer in layers:
        text += ["layers {", f'  layer_name: "{layer.name}"', f'  layer_type: "{layer.kind}"']
        text += [f"  bit_depth: {layer.quant.dtype.itemsize}"]
        quant = layer.quant
        text += _block("outputs", layer.low, layer.high, quant.element_type, [quant.scale], quant.zero_point)
        if layer.name in weights:
            text += _block("weights", -1.0, 1.0, INT8, [float(scale) for scale in weights[layer.name].reshape(-1)], 0)
        text += ["}"]
    (temp / "model_qparams.prototxt").write_text("\n".join(text) + "\n")
    return folder


def _block(name: str, low: float, high: float, element: int, scales: Sequence[float], zero: int) -> list[str]:
    lines = [f"  {name} {{", f"    min: {low:.9g}", f"    max: {high:.9g}", f"    size: {len(scales)}"]
    lines += [f"    element_type: {element}", *(f"    scale: {scale:.17g}" for scale in scales)]
    return [*lines, *(f"    zero_point: {zero}" for _ in scales), "  }"]


def bench_of(
    root: Path, model: Path, inputs: Mapping[str, tuple[int, ...]], parts: Sequence[Part], graph: bytes
) -> Bench:
    """A bench of a device whose graph gives every part's tensor under the part's name."""
    layers = layers_of(inputs, parts)
    artifacts = write_tempdir(root / "artifacts", layers, parts)
    traces = root / "traces"
    traces.mkdir()
    floats = tuple(part.name for part in parts if part.quant.is_float)
    network = TwinNetwork(layers, tuple(inputs), floats, len(parts), graph)
    return Bench(model, artifacts, traces, network, next(iter(inputs.values())))
