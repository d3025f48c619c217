"""A TFLite model for the compiler: divided into what the C7x has layers for and the rest, converted, calibrated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard import layouts
from tidegauge.virtualboard.calibration import Ranges, calibrate
from tidegauge.virtualboard.lowering import lower
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.partition import Part, depths_of
from tidegauge.virtualboard.plan import Step
from tidegauge.virtualboard.source import Offload, Source
from tidegauge.virtualboard.tflite_model import FloatRun, Operator, TfliteModel, load
from tidegauge.virtualboard.tflite_operators import Conversion, Converted, NotTaken

Array = NDArray[Any]
Piece = tuple[bool, tuple[Operator, ...]]
_OPSET, _IR = 17, 8
#: LiteRT's kernels and ONNX Runtime's may add up in another order, but not compute something else.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5


def read(path: Path, calibration: Iterable[Mapping[str, Array]], options: CompileOptions) -> Source:
    """Raises `TidegaugeError` for an unreadable model, one of which the C7x takes nothing, or calibration that can't be
    used."""
    model = load(path)
    frames = _frames(model, calibration, options.calibration_frames)
    converted, left = _convert(model, frozenset(options.deny_list_layer_name))
    if not converted:
        raise TidegaugeError(f"the C7x takes no operator of {path}: {_listed(left)}", "rewrite the model, or deny less")
    pieces = _pieces(model, converted)
    parts = [_part(model, piece, pieces, converted) for offloaded, piece in pieces if offloaded]
    parts[0] = Part(parts[0].model, (*sorted(model.folded), *parts[0].nodes), parts[0].inputs, parts[0].outputs)
    known = {tensor.name: tensor.index for tensor in model.tensors}
    between = sorted({name for part in parts for name in (*part.inputs, *part.outputs)} - set(frames[0]))
    wanted = list(dict.fromkeys([*model.outputs, *(known[name] for name in between)]))
    run = FloatRun(model, [op.index for op in model.operators], model.inputs, wanted)
    values = [frame | run.run(frame) for frame in frames]
    denied = [name for name in options.deny_list_layer_name if name not in known]
    return Source(
        kind="tflite",
        subgraphs=tuple(Offload(str(known[part.outputs[0]]), part, _calibrated(part, values)) for part in parts),
        order=tuple(
            None if offloaded else partial(cpu_step, model, *ends(model, piece)) for offloaded, piece in pieces
        ),
        frames=tuple(frames),
        outputs=tuple({name: value[name] for name in model.names(model.outputs)} for value in values),
        total=len(model.operators),
        warnings=(
            *(f"Invalid Layer Name  {name}" for name in denied),
            *([f"left to the CPU: {_listed(left)}"] if left else ()),
        ),
    )


def by_groups(path: Path, groups: Sequence[Sequence[int]]) -> tuple[TfliteModel, list[Piece]]:
    """The model, and what runs where and when if the C7x has these groups of `allowedNode.txt`. Raises
    `TidegaugeError`."""
    model = load(path)
    allowed = {index for group in groups for index in group}
    offloaded = {op.index: Converted() for op in model.operators if op.index in allowed - model.folded}
    return model, _pieces(model, offloaded)


def cpu_step(model: TfliteModel, operators: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> Step:
    """A part in float on the CPU."""
    run = FloatRun(model, operators, inputs, outputs)
    return Step(model.names(inputs), model.names(outputs), lambda wanted, feeds: run.run(feeds))


def _frames(model: TfliteModel, calibration: Iterable[Mapping[str, Array]], limit: int) -> list[dict[str, Array]]:
    inputs = [model.tensors[index] for index in model.inputs]
    for tensor in inputs:
        if tensor.dtype != "float32":
            raise TidegaugeError(
                f"input {tensor.name} is {tensor.dtype}: the virtual board quantises float models itself",
                "convert the model without quantisation",
            )
    found = []
    for number, frame in enumerate(islice(calibration, limit)):
        if set(frame) != {tensor.name for tensor in inputs}:
            wanted = sorted(tensor.name for tensor in inputs)
            raise TidegaugeError(
                f"calibration frame {number} has the tensors {sorted(frame)}, the model wants {wanted}",
                "name every input of the model once",
            )
        for tensor in inputs:
            value = np.asarray(frame[tensor.name])
            if value.shape != tensor.shape or value.dtype != np.float32:
                raise TidegaugeError(
                    f"calibration frame {number}: {tensor.name} is {value.dtype} {list(value.shape)}, "
                    f"the model wants float32 {list(tensor.shape)}",
                    "pre-process the frame as the model's profile says (TFLite: NHWC)",
                )
        found.append({name: np.ascontiguousarray(value) for name, value in frame.items()})
    if not found:
        raise TidegaugeError("there is no calibration frame", "give at least one input tensor")
    return found


def _convert(model: TfliteModel, denied: frozenset[str]) -> tuple[dict[int, Converted], dict[int, str]]:
    """What the C7x takes, by operator, and why it doesn't take the others."""
    conversion, taken, left = Conversion(model), dict[int, Converted](), dict[int, str]()
    for op in model.operators:
        if op.index in model.folded:
            continue
        try:
            if denied.intersection(model.names(op.outputs)):
                raise NotTaken("deny_list:layer_name")
            taken[op.index] = conversion.convert(op)
        except NotTaken as reason:
            left[op.index] = f"{op.name} ({reason})"
    gone = [op for op in model.operators if op.index in taken and not taken[op.index].nodes]
    for op in gone:  # a padding that the convolutions behind it do by themselves: not for one on the CPU
        if any(user.index in left for user in model.operators if op.outputs[0] in user.inputs):
            del taken[op.index]
            left[op.index] = f"{op.name} (what it pads is left to the CPU)"
    return taken, left


def _listed(left: dict[int, str]) -> str:
    return "; ".join(f"{count} {what}" for what, count in sorted(Counter(left.values()).items()))


def _pieces(model: TfliteModel, converted: Mapping[int, object]) -> list[Piece]:
    """Operators in groups, in order of execution, each with whether it runs on the C7x."""
    operators = [op for op in model.operators if op.index not in model.folded]
    cpu = [op.index not in converted for op in operators]
    depths = depths_of([(op.inputs, op.outputs) for op in operators], cpu)
    pieces: list[Piece] = []
    for depth in range(max(depths, default=0) + 1):
        for offloaded in (False, True):
            group = tuple(
                op
                for op, at, on_cpu in zip(operators, depths, cpu, strict=True)
                if at == depth and on_cpu is not offloaded
            )
            if group:
                pieces.append((offloaded, group))
    return pieces


def ends(model: TfliteModel, piece: tuple[Operator, ...]) -> tuple[list[int], list[int], list[int]]:
    """Operators, inputs and outputs of a part for the CPU; what unpacks its constants comes along."""
    inside = {op.index for op in piece}
    made = {index for op in piece for index in op.outputs}
    read = dict.fromkeys(index for op in piece for index in op.inputs if index >= 0)
    outside = {index for op in model.operators if op.index not in inside for index in op.inputs} | set(model.outputs)
    inputs = [index for index in read if index not in made and model.tensors[index].constant is None]
    return sorted(inside | model.folded), inputs, [index for index in made if index in outside]


def _part(
    model: TfliteModel, piece: tuple[Operator, ...], pieces: Sequence[Piece], converted: Mapping[int, Converted]
) -> Part:
    """A sub-graph in ONNX: NCHW inside, the ends as TFLite has them."""
    nodes = [node for op in piece for node in converted[op.index].nodes]
    constants = {name: value for op in piece for name, value in converted[op.index].constants.items()}
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in node.input if name)
    wanted = set(model.names(model.outputs))
    for offloaded, other in pieces:
        if other is not piece and offloaded:
            wanted |= {name for op in other for node in converted[op.index].nodes for name in node.input}
        elif other is not piece:
            wanted |= {model.tensors[index].name for op in other for index in op.inputs if index >= 0}
    inputs = tuple(name for name in read if name not in made and name not in constants)
    outputs = tuple(name for op in piece for name in model.names(op.outputs) if name in made and name in wanted)
    shapes = {tensor.name: tensor.shape for tensor in model.tensors}
    proto = _with_layouts(nodes, inputs, outputs, shapes)
    graph = helper.make_graph(
        proto,
        "part",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    return Part(made_model, tuple(op.index for op in piece), inputs, outputs)


def _with_layouts(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
) -> list[onnx.NodeProto]:
    """The nodes between Transposes from and to NHWC where an end is a picture."""
    inner = {name: layouts.inner(name) for name in (*inputs, *outputs) if len(shapes[name]) == 4}
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for names in (copy.input, copy.output):
            for position, name in enumerate(names):
                names[position] = inner.get(name, name)
        copies.append(copy)
    before = [helper.make_node("Transpose", [n], [inner[n]], perm=layouts.TO_NCHW) for n in inputs if n in inner]
    after = [helper.make_node("Transpose", [inner[n]], [n], perm=layouts.TO_NHWC) for n in outputs if n in inner]
    return [*before, *copies, *after]


def _calibrated(part: Part, values: list[dict[str, Array]]) -> Ranges:
    """The part's ranges. Raises `TidegaugeError` where the converted part doesn't compute what LiteRT does."""
    own = [{name: value[name] for name in part.inputs} for value in values]
    ranges = calibrate(part.model, lower(part.model), own, len(own))
    for value, outputs in zip(values, ranges.outputs, strict=True):
        for name, output in outputs.items():
            bound = _RELATIVE * float(np.abs(value[name]).max()) + _ABSOLUTE
            off = float(np.abs(output.astype(np.float64) - value[name]).max())
            if off > bound:
                raise TidegaugeError(
                    f"tensor {name} comes out {off:.3g} off LiteRT's: the virtual board misreads an operator before it",
                    f"leave operators to the CPU with deny_list:layer_name, beginning with {name}",
                )
    return ranges
