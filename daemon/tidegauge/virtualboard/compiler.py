"""Compiles an ONNX or TFLite model for the virtual board: TIDL's steps, TIDL's files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard import artifacts as files
from tidegauge.virtualboard import bias_calibration, onnx_source, proto_file, tflite_source
from tidegauge.virtualboard.artifacts import Compiled
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.layers import Tensors, choose_quants, make_layers
from tidegauge.virtualboard.lowering import lower
from tidegauge.virtualboard.network import TwinNetwork, encode
from tidegauge.virtualboard.options import CompileOptions, CompileReport
from tidegauge.virtualboard.plan import Plan, Step
from tidegauge.virtualboard.quantise import WeightRules, sqnr_db
from tidegauge.virtualboard.source import Offload, Source
from tidegauge.virtualboard.tflite_model import is_tflite
from tidegauge.virtualboard.twin import Names, build

Array = NDArray[Any]


def compile_model(
    model: Path,
    artifacts: Path,
    calibration: Iterable[Mapping[str, Array]],
    options: CompileOptions,
) -> CompileReport:
    """Compile `model` into the empty or new folder `artifacts` (and `artifacts/tempDir`).

    `calibration`: input tensors by name, float32, shapes of the graph (NHWC in a TFLite model). Raises `TidegaugeError`
    for a folder that isn't empty, an unreadable model, unsupported operators (in a TFLite model: no supported one),
    dynamic shapes, or calibration that isn't finite; then nothing is written.
    """
    _check_folder(artifacts)
    source = (tflite_source if is_tflite(model) else onnx_source).read(model, calibration, options)
    warnings = [*options.warnings(), *source.warnings]
    if len(source.frames) < options.calibration_frames:
        warnings.append(
            f"{len(source.frames)} calibration frames were given, {options.calibration_frames} asked for "
            "(advanced_options:calibration_frames)"
        )
    compiled, unknown = [], [set(_asked(options))]
    for offload in source.subgraphs:
        one, missing = _compile(offload, options, model.name, source.whole)
        compiled.append(one)
        unknown.append(missing)
        warnings += one.warnings
    absent = set.intersection(*unknown)
    warnings += [f"Invalid Layer Name  {name}" for name in _asked(options) if name in absent]
    sqnr = _sqnr(source, compiled)
    files.write(compiled, source.total, tuple(warnings), artifacts, source.kind)
    proto_file.keep(options, compiled)
    return CompileReport(
        layers=tuple(layer for one in compiled for layer in one.layers),
        frames=len(source.frames),
        nodes=source.total,
        sqnr_db=sqnr,
        net_sha256=hashlib.sha256(compiled[0].net).hexdigest(),
        warnings=tuple(warnings),
        subgraphs=tuple(one.subgraph for one in compiled),
        offloaded=sum(len(one.nodes) for one in compiled),
    )


def _check_folder(artifacts: Path) -> None:
    if artifacts.exists() and (not artifacts.is_dir() or any(artifacts.iterdir())):
        raise TidegaugeError(
            f"the artifacts folder {artifacts} is not empty", "name a new folder: a compile mixes with nothing older"
        )


def _asked(options: CompileOptions) -> tuple[str, ...]:
    return (*options.output_feature_16bit_names_list, *options.params_16bit_names_list)


def _compile(offload: Offload, options: CompileOptions, model: str, alone: bool) -> tuple[Compiled, set[str]]:
    """One sub-graph, and the names of the 16-bit lists that it doesn't have."""
    subgraph, part, ranges = offload.name, offload.part, offload.ranges
    lowered = lower(part.model)
    names = Names(lowered)
    tensors = Tensors(lowered, names, ranges)
    quants = choose_quants(tensors, options)
    given, warnings = proto_file.apply(options, tensors, quants, alone)
    rules = WeightRules(options.quantization_scale_type, given)
    twin, weights = build(lowered, quants, frozenset(options.params_16bit_names_list), rules)
    layers = make_layers(tensors, quants, options)
    network = TwinNetwork(
        layers=layers,
        inputs=tuple(lowered.inputs),
        outputs=tuple(lowered.outputs),
        nodes=len(part.nodes),
        twin=twin.SerializeToString(deterministic=True),
        whole=alone,
    )
    if options.accuracy_level == 1 and options.calibration_iterations and options.tensor_bits != 32:
        network = bias_calibration.correct(twin, part.model, network, tensors, options.calibration_iterations)
        weights = bias_calibration.biases(twin, weights)
    net = encode(network)
    missing = {name for name in _asked(options) if name not in tensors.addressable()}
    compiled = Compiled(
        lowered, names, layers, weights, options, net, warnings, model, subgraph, part.nodes, network, alone
    )
    return compiled, missing


def _sqnr(source: Source, compiled: list[Compiled]) -> dict[str, float]:
    ready = iter(compiled)
    plan = Plan(tuple(_twin_step(next(ready).network) if make is None else make() for make in source.order))
    names, outputs = tuple(source.outputs[0]), source.outputs
    got = [plan.run(names, frame) for frame in source.frames]
    return {
        name: sqnr_db(
            np.concatenate([o[name].ravel() for o in outputs]), np.concatenate([g[name].ravel() for g in got])
        )
        for name in names
    }


def _twin_step(network: TwinNetwork) -> Step:
    twin = Twin(network)
    return Step(network.inputs, network.outputs, lambda wanted, feeds: twin.run(feeds, wanted))
