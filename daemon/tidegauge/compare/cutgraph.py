"""Parts of the float model as models of their own, cut at chosen tensors.

A cut tensor T is read as the input `dev::T` and, where it is asked for, written as the output `loc::T`. So one
session gives the local result of many regions, each from the device's own inputs, and no error crosses a border;
tensors that are not cut stay inside their region, which is how a fused layer is compared at its last tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tidegauge.compare.model import Model, reads, rename_reads
from tidegauge.errors import TidegaugeError

Array = NDArray[Any]

_DEVICE, _LOCAL = "dev::", "loc::"


@dataclass(frozen=True)
class Rounding:
    """A float32 tensor that the device holds as codes, though no trace tells them: clip(round(value · scale)) / scale.

    `low`, `high`: the ends of the code range, zero point subtracted.
    """

    scale: float
    low: float
    high: float


@dataclass(frozen=True)
class Part:
    """What is needed to compute `outputs`: node indices in order, the cut tensors read, the graph inputs read."""

    outputs: tuple[str, ...]
    nodes: tuple[int, ...]
    reads_cut: tuple[str, ...]
    reads_inputs: tuple[str, ...]


def part_for(model: Model, outputs: Sequence[str], cut: Collection[str]) -> Part:
    """Walk back from each output to the cut tensors and graph inputs. An output may itself be cut."""
    wanted: set[int] = set()
    cut_reads: dict[str, None] = {}
    input_reads: dict[str, None] = {}
    stack = [model.producer[name] for name in outputs]
    while stack:
        index = stack.pop()
        if index in wanted:
            continue
        wanted.add(index)
        for name in reads(model.nodes[index]):
            if name in cut:
                cut_reads[name] = None
            elif name in model.producer:
                stack.append(model.producer[name])
            elif name in model.inputs:
                input_reads[name] = None
    return Part(tuple(outputs), tuple(sorted(wanted)), tuple(cut_reads), tuple(input_reads))


def downstream_of(model: Model, tensor: str) -> set[str]:
    """Every tensor that depends on `tensor`, without itself."""
    tainted = {tensor}
    for node in model.nodes:
        if any(name in tainted for name in reads(node)):
            tainted.update(name for name in node.output if name)
    return tainted - {tensor}


def run_part(
    model: Model,
    part: Part,
    cut: Collection[str],
    feeds: Mapping[str, Array],
    weights: Mapping[str, Array] | None = None,
    rounding: Mapping[str, Rounding] | None = None,
) -> dict[str, Array]:
    """Compute a part's outputs. `feeds`: values of cut tensors and graph inputs, by plain name, in the float model's
    shape and type. `weights` replaces initialisers by name; tensors in `rounding` are rounded as the device does.

    Raises `TidegaugeError` where onnxruntime can't run the part.
    """
    return Runner(model, part, cut, feeds, weights, rounding).run(feeds)


class Runner:
    """One session for one part, to be run several times with other values."""

    def __init__(
        self,
        model: Model,
        part: Part,
        cut: Collection[str],
        feeds: Mapping[str, Array],
        weights: Mapping[str, Array] | None = None,
        rounding: Mapping[str, Rounding] | None = None,
    ) -> None:
        self._part = part
        self._session = _session(_build(model, part, cut, feeds, weights or {}, rounding or {}), part)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Values by plain output name."""
        named = {_DEVICE + name: feeds[name] for name in self._part.reads_cut}
        named |= {name: feeds[name] for name in self._part.reads_inputs}
        try:
            values = self._session.run(None, named)
        except _FAILURES as error:
            raise TidegaugeError(f"the float model can't be run up to {self._part.outputs[-1]}: {error}") from error
        return dict(zip(self._part.outputs, (np.asarray(value) for value in values), strict=True))


_FAILURES = (
    onnxruntime.capi.onnxruntime_pybind11_state.Fail,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph,
    onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented,
    onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException,
)


def _round(name: str, how: Rounding, nodes: list[Any], initialisers: list[Any]) -> None:
    """Append the nodes from `raw::name` to `name`."""
    value = f"raw::{name}"
    for op, constant in (("Mul", how.scale), ("Round", None), ("Max", how.low), ("Min", how.high), ("Div", how.scale)):
        inputs = [value]
        if constant is not None:
            inputs.append(f"{name}::{op}")
            initialisers.append(numpy_helper.from_array(np.asarray(constant, np.float32), inputs[1]))
        value = name if op == "Div" else f"{name}::{op}::out"
        nodes.append(helper.make_node(op, inputs, [value]))


def _session(proto: Any, part: Part) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    # Threads that wait in a loop slow down everything else on a machine that has other work.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except _FAILURES as error:
        raise TidegaugeError(f"the float model can't be opened up to {part.outputs[-1]}: {error}") from error


def _build(
    model: Model,
    part: Part,
    cut: Collection[str],
    feeds: Mapping[str, Array],
    replaced: Mapping[str, Array],
    rounding: Mapping[str, Rounding],
) -> Any:
    names = {name: _DEVICE + name for name in part.reads_cut}
    nodes: list[Any] = []
    used: dict[str, None] = {}
    initialisers: list[Any] = []
    for index in part.nodes:
        node = onnx.NodeProto()
        node.CopyFrom(model.nodes[index])
        used.update(dict.fromkeys(reads(node)))
        rename_reads(node, names)
        for k, name in enumerate(node.output):
            if name in cut:
                node.output[k] = _LOCAL + name
        nodes.append(node)
        for k, name in enumerate(node.output):
            if name in rounding and name not in part.outputs:
                node.output[k] = f"raw::{name}"
                _round(name, rounding[name], nodes, initialisers)
    initialisers += [
        numpy_helper.from_array(np.ascontiguousarray(replaced.get(name, model.weights[name])), name)
        for name in used
        if name in model.weights
    ]
    inputs = [
        helper.make_tensor_value_info(names.get(name, name), helper.np_dtype_to_tensor_dtype(feeds[name].dtype), None)
        for name in (*part.reads_cut, *part.reads_inputs)
    ]
    outputs = [helper.make_empty_tensor_value_info(_LOCAL + n if n in cut else n) for n in part.outputs]
    graph = helper.make_graph(nodes, "part", inputs, outputs, initialisers)
    return helper.make_model(graph, opset_imports=model.opsets, ir_version=model.ir_version)
