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
from tidegauge.virtualboard import bias_calibration, partition, proto_file
from tidegauge.virtualboard.artifacts import Compiled
from tidegauge.virtualboard.calibration import Ranges, calibrate, float_session
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.layers import Tensors, choose_quants, make_layers
from tidegauge.virtualboard.lowering import lower
from tidegauge.virtualboard.network import TwinNetwork, encode
from tidegauge.virtualboard.options import CompileOptions, CompileReport
from tidegauge.virtualboard.partition import Part, Partition
from tidegauge.virtualboard.plan import Plan, Step, cpu_step
from tidegauge.virtualboard.quantise import WeightRules, sqnr_db
from tidegauge.virtualboard.twin import Names, build

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
    divided = _divide(proto, options)
    whole, *ranges = _calibration(proto, divided, calibration, options)
    warnings = [*options.warnings(), *_unknown_denied(proto, options)]
    if len(whole.frames) < options.calibration_frames:
        warnings.append(
            f"{len(whole.frames)} calibration frames were given, {options.calibration_frames} asked for "
            "(advanced_options:calibration_frames)"
        )
    compiled, unknown = [], [set(_asked(options))]
    alone = len(divided.parts) == 1
    for index, (part, measured) in enumerate(zip(divided.subgraphs, ranges or [whole], strict=True)):
        one, missing = _compile(f"subgraph_{index}", part, measured, options, model.name, alone)
        compiled.append(one)
        unknown.append(missing)
        warnings += one.warnings
    absent = set.intersection(*unknown)
    warnings += [f"Invalid Layer Name  {name}" for name in _asked(options) if name in absent]
    sqnr = _sqnr(divided, compiled, whole)
    files.write(compiled, divided.total, tuple(warnings), artifacts)
    proto_file.keep(options, compiled)
    return CompileReport(
        layers=tuple(layer for one in compiled for layer in one.layers),
        frames=len(whole.frames),
        nodes=divided.total,
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


def _divide(proto: onnx.ModelProto, options: CompileOptions) -> Partition:
    """Sub-graphs, and parts for the CPU; the whole model is one sub-graph where nothing is denied."""
    denied = frozenset(options.deny_list_layer_name) & partition.names_of(proto)
    if not denied:
        total = sum(1 for node in proto.graph.node if node.op_type != "Constant")
        constants = {item.name for item in proto.graph.initializer}
        inputs = tuple(item.name for item in proto.graph.input if item.name not in constants)
        outputs = tuple(item.name for item in proto.graph.output)
        return Partition(((True, Part(proto, tuple(range(total)), inputs, outputs)),), total)
    lower(proto)  # refuses what no part could be made of
    divided = partition.by_names(proto, denied)
    if not divided.subgraphs:
        raise TidegaugeError("deny_list:layer_name leaves nothing for the C7x", "deny fewer nodes")
    return divided


def _calibration(
    proto: onnx.ModelProto, divided: Partition, calibration: Iterable[Mapping[str, Array]], options: CompileOptions
) -> tuple[Ranges, ...]:
    """The ranges of the model, then, where it is cut, those of each sub-graph, fed with what the float model gives."""
    whole = calibrate(proto, lower(proto), calibration, options.calibration_frames)
    if len(divided.parts) == 1:
        return (whole,)
    between = sorted({name for part in divided.subgraphs for name in part.inputs} - set(whole.frames[0]))
    session = float_session(proto, between)
    values = [
        frame | dict(zip(between, session.run(between, frame) if between else [], strict=True))
        for frame in whole.frames
    ]
    ranges = [whole]
    for part in divided.subgraphs:
        own = [{name: frame[name] for name in part.inputs} for frame in values]
        ranges.append(calibrate(part.model, lower(part.model), own, len(own)))
    return tuple(ranges)


def _asked(options: CompileOptions) -> tuple[str, ...]:
    return (*options.output_feature_16bit_names_list, *options.params_16bit_names_list)


def _unknown_denied(proto: onnx.ModelProto, options: CompileOptions) -> list[str]:
    known = partition.names_of(proto)
    return [f"Invalid Layer Name  {name}" for name in options.deny_list_layer_name if name not in known]


def _compile(
    subgraph: str, part: Part, ranges: Ranges, options: CompileOptions, model: str, alone: bool
) -> tuple[Compiled, set[str]]:
    """One sub-graph, and the names of the 16-bit lists that it doesn't have."""
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


def _sqnr(divided: Partition, compiled: list[Compiled], ranges: Ranges) -> dict[str, float]:
    ready = iter(compiled)
    steps = [_twin_step(next(ready).network) if offloaded else cpu_step(part) for offloaded, part in divided.parts]
    plan = Plan(tuple(steps))
    names, outputs = tuple(ranges.outputs[0]), ranges.outputs
    got = [plan.run(names, frame) for frame in ranges.frames]
    return {
        name: sqnr_db(
            np.concatenate([o[name].ravel() for o in outputs]), np.concatenate([g[name].ravel() for g in got])
        )
        for name in names
    }


def _twin_step(network: TwinNetwork) -> Step:
    twin = Twin(network)
    return Step(network.inputs, network.outputs, lambda wanted, feeds: twin.run(feeds, wanted))
