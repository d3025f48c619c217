"""Parts of the float model as models of their own, cut at chosen tensors.

A cut tensor T is read as the input `dev::T` and, where it is asked for, written as the output `loc::T`. So one
session gives the local result of many regions, each from the device's own inputs, and no error crosses a border;
tensors that are not cut stay inside their region, which is how a fused layer is compared at its last tensor.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tidegauge.compare.model import Model, reads, rename_reads
from tidegauge.compare.statistics import Encoding
from tidegauge.errors import TidegaugeError

Array = NDArray[Any]

#: The domain of ONNX Runtime's own operators.
CONTRIB = "com.microsoft"
_DEVICE, _LOCAL, _CODES = "dev::", "loc::", "codes::"
#: Outputs begin at multiples of so many float32.
_ALIGNED = 16


@dataclass(frozen=True)
class Rounding:
    """A float32 tensor that the device holds as codes, though no trace tells them: clip(round(value · scale)) / scale.

    `low`, `high`: the ends of the code range, zero point subtracted.
    """

    scale: float
    low: float
    high: float


@dataclass(frozen=True)
class Coded:
    """A cut tensor as recorded: codes in the float model's shape, which the graph itself turns into float32 values."""

    codes: Array
    encoding: Encoding


def possible(encoding: Encoding) -> bool:
    """Whether a graph can turn such codes into values: the zero point has their type."""
    low, high = encoding.code_range if encoding.integer else (1, 0)
    return low <= encoding.zero_point <= high


class Room:
    """Memory that one run after another writes its outputs to: what one has written is gone with the next."""

    def __init__(self) -> None:
        self._space = np.empty(0, np.float32)

    def places(self, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
        """An array for each of these shapes."""
        sizes = [-(-math.prod(shape) // _ALIGNED) * _ALIGNED for shape in shapes]
        if sum(sizes) > self._space.size:
            self._space = np.empty(0, np.float32)  # gone before the larger one is taken
            self._space = np.empty(sum(sizes), np.float32)
        ends = np.cumsum(sizes).tolist()
        return [
            self._space[end - size : end - size + math.prod(shape)].reshape(shape)
            for end, size, shape in zip(ends, sizes, shapes, strict=True)
        ]


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
    feeds: Mapping[str, Feed],
    weights: Mapping[str, Array] | None = None,
    rounding: Mapping[str, Rounding] | None = None,
    places: Sequence[Array] | None = None,
    threads: int = 0,
) -> dict[str, Array]:
    """Compute a part's outputs. `feeds`: values of cut tensors and graph inputs, by plain name, in the float model's
    shape and type. `weights` replaces initialisers by name; tensors in `rounding` are rounded as the device does.
    `places`: where the outputs are to be written, if all are float32. `threads`: of one operator; 0 for all cores.

    Raises `TidegaugeError` where onnxruntime can't run the part.
    """
    return Runner(model, part, cut, feeds, weights, rounding, threads).run(feeds, places)


class Runner:
    """One session for one part, to be run several times with other values."""

    def __init__(
        self,
        model: Model,
        part: Part,
        cut: Collection[str],
        feeds: Mapping[str, Feed],
        weights: Mapping[str, Array] | None = None,
        rounding: Mapping[str, Rounding] | None = None,
        threads: int = 0,
    ) -> None:
        self._part = part
        self._names = [_LOCAL + name if name in cut else name for name in part.outputs]
        proto = _build(model, part, cut, feeds, weights or {}, rounding or {})
        self._session = open_session(proto, part.outputs[-1], threads)

    def run(self, feeds: Mapping[str, Feed], places: Sequence[Array] | None = None) -> dict[str, Array]:
        """Values by plain output name; in `places` where these have the outputs' shapes and all are float32."""
        named: dict[str, Array] = {}
        for name in self._part.reads_cut:
            fed = feeds[name]
            coded = isinstance(fed, Coded)
            named[(_CODES if coded else _DEVICE) + name] = fed.codes if isinstance(fed, Coded) else fed
        for name in self._part.reads_inputs:
            given = feeds[name]
            named[name] = given.codes if isinstance(given, Coded) else given
        floats = all(output.type == "tensor(float)" for output in self._session.get_outputs())
        if places is not None and floats and all(place.size for place in places) and self._into(named, places):
            return dict(zip(self._part.outputs, places, strict=True))
        try:
            values = self._session.run(self._names, named)
        except FAILURES as error:
            raise TidegaugeError(f"the float model can't be run up to {self._part.outputs[-1]}: {error}") from error
        return dict(zip(self._part.outputs, (np.asarray(value) for value in values), strict=True))

    def _into(self, named: Mapping[str, Array], places: Sequence[Array]) -> bool:
        """Run with the outputs in these places; False where they have other shapes, or the part can't run at all."""
        bound = self._session.io_binding()
        for name, value in named.items():
            bound.bind_cpu_input(name, np.ascontiguousarray(value))
        for name, place in zip(self._names, places, strict=True):
            bound.bind_output(name, "cpu", 0, np.float32, place.shape, place.ctypes.data)
        try:
            self._session.run_with_iobinding(bound)
        except (*FAILURES, RuntimeError):
            return False  # the plain run says why
        return True


Feed = Array | Coded
#: What ONNX Runtime raises.
FAILURES = (
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


@cache
def _arena() -> None:
    """Memory that all sessions of this module share. It grows by what is asked for, no more, and stays."""
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    as_requested, default = 1, -1
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg(0, as_requested, default, default))


def open_session(proto: Any, last: str, threads: int) -> Any:
    """A session of this model, whose operators take so many threads; 0 for all cores. `last`: what it computes.

    Raises `TidegaugeError` where onnxruntime refuses.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    # Fused, but in the plain layout: the blocked one of "all" adds up in another order, with up to twice the rounding.
    # It is no faster where each region begins and ends in the plain one.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    # A session lives for one group: an arena of its own would be new memory each time, and plain memory page faults.
    _arena()
    options.add_session_config_entry("session.use_env_allocators", "1")
    # Codes that are read are to become values, no more: else weights might be quantised to match them.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    # Threads that wait in a loop slow down everything else on a machine that has other work.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except FAILURES as error:
        raise TidegaugeError(f"the float model can't be opened up to {last}: {error}") from error


def _build(
    model: Model,
    part: Part,
    cut: Collection[str],
    feeds: Mapping[str, Feed],
    replaced: Mapping[str, Array],
    rounding: Mapping[str, Rounding],
) -> Any:
    names = {name: _DEVICE + name for name in part.reads_cut}
    nodes: list[Any] = []
    used: dict[str, None] = {}
    initialisers: list[Any] = []
    inputs: list[Any] = []
    for name in (*part.reads_cut, *part.reads_inputs):
        fed, label = feeds[name], names.get(name, name)
        if isinstance(fed, Coded):
            label = _CODES + name
            _dequantise(name, fed, nodes, initialisers)
        dtype = fed.codes.dtype if isinstance(fed, Coded) else fed.dtype
        inputs.append(helper.make_tensor_value_info(label, helper.np_dtype_to_tensor_dtype(dtype), None))
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
    outputs = [helper.make_empty_tensor_value_info(_LOCAL + n if n in cut else n) for n in part.outputs]
    graph = helper.make_graph(nodes, "part", inputs, outputs, initialisers)
    return helper.make_model(graph, opset_imports=opsets(model), ir_version=model.ir_version)


def opsets(model: Model) -> list[Any]:
    """The model's, and that of ONNX Runtime's own operators."""
    return [*(opset for opset in model.opsets if opset.domain != CONTRIB), helper.make_opsetid(CONTRIB, 1)]


def _dequantise(name: str, coded: Coded, nodes: list[Any], initialisers: list[Any]) -> None:
    """Append the node from `codes::name` to `dev::name`. ONNX Runtime's own operator has 16 bits in every opset."""
    constants = {
        f"{name}::scale": np.asarray(1.0 / coded.encoding.scale, np.float32),
        f"{name}::zero": np.asarray(coded.encoding.zero_point, coded.codes.dtype),
    }
    initialisers += [numpy_helper.from_array(value, key) for key, value in constants.items()]
    nodes.append(helper.make_node("DequantizeLinear", [_CODES + name, *constants], [_DEVICE + name], domain=CONTRIB))
