"""Compiles an ONNX model for the virtual board: TIDL's steps, TIDL's files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard import artifacts as files
from tidegauge.virtualboard.calibration import Ranges, calibrate
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.lowering import Lowered, lower
from tidegauge.virtualboard.network import FLOAT, Quant, TwinLayer, TwinNetwork, encode, six_dims
from tidegauge.virtualboard.operators import keeps_quantisation
from tidegauge.virtualboard.options import CompileOptions, CompileReport
from tidegauge.virtualboard.quantise import activation_quant, sqnr_db
from tidegauge.virtualboard.twin import Names, build, net_format, original

Array = NDArray[Any]


def compile_model(
    model: Path,
    artifacts: Path,
    calibration: Iterable[Mapping[str, Array]],
    options: CompileOptions,
) -> CompileReport:
    """Compile `model` into the empty or new folder `artifacts` (and `artifacts/tempDir`).

    `calibration`: input tensors by name, float32, shapes of the graph. Raises `TidegaugeError` for a folder that
    isn't empty, an unreadable model, unsupported operators, dynamic shapes, or calibration that isn't finite; then
    nothing is written.
    """
    _check_folder(artifacts)
    proto = _load(model)
    lowered = lower(proto)
    ranges = calibrate(proto, lowered, calibration, options.calibration_frames)
    names = Names(lowered)
    warnings = _unknown_names(lowered, names, options)
    if len(ranges.frames) < options.calibration_frames:
        warnings.append(
            f"{len(ranges.frames)} calibration frames were given, {options.calibration_frames} asked for "
            "(advanced_options:calibration_frames)"
        )
    quants = _quants(lowered, names, ranges, options)
    wide = frozenset(options.params_16bit_names_list)
    twin, weights = build(lowered, quants, wide, options.quantization_scale_type == 4)
    layers = _layers(lowered, names, ranges, quants)
    network = TwinNetwork(
        layers=layers,
        inputs=tuple(lowered.inputs),
        outputs=tuple(lowered.outputs),
        nodes=lowered.nodes,
        twin=twin.SerializeToString(deterministic=True),
    )
    sqnr = _sqnr(network, ranges)
    net = encode(network)
    compiled = files.Compiled(lowered, names, layers, weights, options, net, tuple(warnings), model.name)
    files.write(compiled, artifacts)
    return CompileReport(
        layers=layers,
        frames=len(ranges.frames),
        nodes=lowered.nodes,
        sqnr_db=sqnr,
        net_sha256=hashlib.sha256(net).hexdigest(),
        warnings=tuple(warnings),
    )


def _check_folder(artifacts: Path) -> None:
    if artifacts.exists() and (not artifacts.is_dir() or any(artifacts.iterdir())):
        raise TidegaugeError(
            f"the artifacts folder {artifacts} is not empty", "name a new folder: a compile mixes with nothing older"
        )


def _load(model: Path) -> onnx.ModelProto:
    try:
        proto = onnx.load(model)
        onnx.checker.check_model(proto)
    except OSError as error:
        raise TidegaugeError(f"the model {model} can't be read ({error.strerror})", "name an ONNX file") from error
    except (onnx.checker.ValidationError, ValueError) as error:
        raise TidegaugeError(
            f"{model} is no valid ONNX model ({str(error).splitlines()[0]})", "export it again"
        ) from error
    return proto


def _unknown_names(lowered: Lowered, names: Names, options: CompileOptions) -> list[str]:
    known = _addressable(lowered, names)
    asked = (*options.output_feature_16bit_names_list, *options.params_16bit_names_list)
    return [f"Invalid Layer Name  {name}" for name in asked if name not in known]


def _addressable(lowered: Lowered, names: Names) -> dict[str, str]:
    """From the names a person may put into an option's list to the layer that owns the tensor."""
    table = {name: net_format(name) for name in lowered.inputs} | {net_format(n): net_format(n) for n in lowered.inputs}
    for region in lowered.regions:
        table[region.name] = table[names[region.name]] = names[region.name]
    return table


def _quants(lowered: Lowered, names: Names, ranges: Ranges, options: CompileOptions) -> dict[str, Quant]:
    table = _addressable(lowered, names)
    wide = {table[name] for name in options.output_feature_16bit_names_list if name in table}
    asymmetric = options.quantization_scale_type == 4
    quants: dict[str, Quant] = {}

    def choose(tensor: str, layer: str) -> Quant:
        bits = 16 if layer in wide else options.tensor_bits
        return activation_quant(ranges.low[tensor], ranges.high[tensor], bits, asymmetric)

    for name in lowered.inputs:
        quants[net_format(name)] = choose(name, net_format(name))
    for region in lowered.regions:
        layer = names[region.name]
        inherits = region.activation is None and keeps_quantisation(region.node)
        quants[layer] = quants[names[region.inputs[0]]] if inherits else choose(region.name, layer)
    return quants


def _layers(lowered: Lowered, names: Names, ranges: Ranges, quants: dict[str, Quant]) -> tuple[TwinLayer, ...]:
    layers: list[TwinLayer] = []
    ids: dict[str, int] = {}

    def add(kind: str, name: str, tensor: str, inputs: tuple[str, ...], quant: Quant, macs: int = 0) -> None:
        shape = lowered.shapes[tensor]
        low, high = ranges.low[tensor], ranges.high[tensor]
        ids[name] = len(layers)
        layers.append(
            TwinLayer(
                layer_id=len(layers),
                data_id=len(layers),
                kind=kind,
                name=name,
                inputs=tuple(ids[i] for i in inputs),
                shape=shape,
                dims=six_dims(shape),
                quant=quant,
                low=low,
                high=high,
                macs=macs,
                varies=low < high,
                channels_differ=tensor in ranges.channels_differ,
            )
        )

    for name in lowered.inputs:
        add("TIDL_DataLayer", name, name, (), FLOAT)
    for name, shape in lowered.inputs.items():
        layer = net_format(name)
        add("TIDL_DataConvertLayer", layer, name, (name,), quants[layer], int(np.prod(shape)))
    for region in lowered.regions:
        layer = names[region.name]
        add(region.kind, layer, region.name, tuple(names[i] for i in region.inputs), quants[layer], region.macs)
    for name, shape in lowered.outputs.items():
        add("TIDL_DataConvertLayer", name, name, (original(name),), FLOAT, int(np.prod(shape)))
    none = (0, 0, 0, 0, 0, 0)
    for name in lowered.outputs:
        sink = TwinLayer(len(layers), 0, "TIDL_DataLayer", name, (ids[name],), (), none, FLOAT, 0.0, 0.0, varies=False)
        layers.append(sink)
    return tuple(layers)


def _sqnr(network: TwinNetwork, ranges: Ranges) -> dict[str, float]:
    twin = Twin(network)
    got = [twin.run(frame, network.outputs) for frame in ranges.frames]
    return {
        name: sqnr_db(
            np.concatenate([o[name].ravel() for o in ranges.outputs]), np.concatenate([g[name].ravel() for g in got])
        )
        for name in network.outputs
    }
