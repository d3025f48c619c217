"""Regions of one convolution, with the ReLU or clip behind it: sessions that are fed the weights too.

So one session serves all such regions of a model that are alike but for weights, scales and sizes, whichever weights
they are given. No model is written down, read, and optimised for each of them.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tidegauge.compare.cutgraph import CONTRIB, FAILURES, Coded, Part, open_session, opsets
from tidegauge.compare.direct import alone, bounds
from tidegauge.compare.model import Model
from tidegauge.errors import TidegaugeError

Array = NDArray[Any]


@dataclass(frozen=True)
class Convolution:
    """What it is called in messages, its node, the tensor that it reads, its constants, and what holds its values."""

    name: str
    node: Any
    reads: tuple[str, ...]
    constants: tuple[Array, ...]
    low: float
    high: float


def recognised(model: Model, part: Part, replaced: Mapping[str, Array]) -> Convolution | None:
    """The convolution that a region is; None where it is another. `replaced`: weights in place of the model's."""
    weights = ChainMap(dict(replaced), model.weights)
    nodes = alone(model, part)
    held = bounds(nodes, weights) if nodes else None
    if held is None or nodes[0].op_type != "Conv" or nodes[0].input[0] not in part.reads_cut:
        return None
    names = [name for name in nodes[0].input[1:] if name]
    if any(name not in weights or weights[name].dtype != np.float32 for name in names):
        return None
    constants = tuple(np.ascontiguousarray(weights[name]) for name in names)
    return Convolution(part.outputs[0], nodes[0], (nodes[0].input[0],), constants, *held)


class Convolutions:
    """The sessions of one model's convolutions."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._opened: dict[tuple[Any, ...], Any] = {}

    def filling(self, found: Convolution, coded: Coded, place: Array, threads: int) -> Callable[[], None]:
        """What computes it into `place`, with so many threads. Raises `TidegaugeError` where it can't be opened; so
        does what is returned where it can't be run."""
        codes, encoding = np.ascontiguousarray(coded.codes), coded.encoding
        kind = tuple(sorted(item.SerializeToString() for item in found.node.attribute))
        key = (kind, len(found.constants), found.low, found.high, codes.dtype.name, threads)
        if key not in self._opened:
            self._opened[key] = open_session(self._build(found, codes.dtype), found.name, threads)
        session = self._opened[key]
        scale = np.asarray(1.0 / encoding.scale, np.float32)
        fed = [codes, scale, np.asarray(encoding.zero_point, codes.dtype), *found.constants]

        def fill() -> None:
            bound = session.io_binding()
            for given, value in zip(session.get_inputs(), fed, strict=True):
                bound.bind_cpu_input(given.name, value)
            bound.bind_output("out", "cpu", 0, np.float32, place.shape, place.ctypes.data)
            try:
                session.run_with_iobinding(bound)
            except (*FAILURES, RuntimeError) as error:
                raise TidegaugeError(f"the float model can't be run up to {found.name}: {error}") from error

        return fill

    def _build(self, found: Convolution, dtype: np.dtype[Any]) -> Any:
        element = helper.np_dtype_to_tensor_dtype(dtype)
        constants = [f"constant{number}" for number in range(len(found.constants))]
        single, info = onnx.TensorProto.FLOAT, helper.make_tensor_value_info
        inputs = [info("codes", element, None), info("scale", single, []), info("zero", element, [])]
        inputs += [info(name, single, None) for name in constants]
        convolution = onnx.NodeProto()
        convolution.CopyFrom(found.node)
        del convolution.input[:], convolution.output[:]
        convolution.input.extend(["values", *constants])
        nodes = [helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["values"], domain=CONTRIB)]
        nodes.append(convolution)
        ends: list[Any] = []
        convolution.output.append("out" if (found.low, found.high) == (-math.inf, math.inf) else "made")
        if (found.low, found.high) == (0.0, math.inf):
            nodes.append(helper.make_node("Relu", ["made"], ["out"]))
        elif convolution.output[0] == "made":
            constant = {"low": np.asarray(found.low, np.float32), "high": np.asarray(found.high, np.float32)}
            ends = [numpy_helper.from_array(value, name) for name, value in constant.items()]
            nodes.append(helper.make_node("Clip", ["made", *constant], ["out"]))
        graph = helper.make_graph(nodes, "convolution", inputs, [helper.make_empty_tensor_value_info("out")], ends)
        return helper.make_model(graph, opset_imports=opsets(self._model), ir_version=self._model.ir_version)
