"""An ONNX model for the compiler: read, divided by the deny list, calibrated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard import partition
from tidegauge.virtualboard.calibration import Ranges, calibrate, float_session
from tidegauge.virtualboard.lowering import lower
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.partition import Part, Partition
from tidegauge.virtualboard.plan import cpu_step
from tidegauge.virtualboard.source import Offload, Source

Array = NDArray[Any]


def read(model: Path, calibration: Iterable[Mapping[str, Array]], options: CompileOptions) -> Source:
    """Raises `TidegaugeError` for an unreadable model, unsupported operators, calibration that can't be used."""
    proto = _load(model)
    divided = _divide(proto, options)
    whole, *ranges = _calibration(proto, divided, calibration, options)
    parts = zip(divided.subgraphs, ranges or [whole], strict=True)
    return Source(
        kind="onnx",
        subgraphs=tuple(Offload(f"subgraph_{index}", part, own) for index, (part, own) in enumerate(parts)),
        order=tuple(None if offloaded else partial(cpu_step, part) for offloaded, part in divided.parts),
        frames=whole.frames,
        outputs=whole.outputs,
        total=divided.total,
        warnings=tuple(_unknown_denied(proto, options)),
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


def _unknown_denied(proto: onnx.ModelProto, options: CompileOptions) -> list[str]:
    known = partition.names_of(proto)
    return [f"Invalid Layer Name  {name}" for name in options.deny_list_layer_name if name not in known]
