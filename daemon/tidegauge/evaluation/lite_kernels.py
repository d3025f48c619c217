"""LiteRT's int8 kernels as a device: a network quantised by ai-edge-quantizer, run operator by operator.

One interpreter an operator, so that a fault in one layer's codes reaches everything after it, as on a device.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from tidegauge.evaluation.independent import Part, bench_of
from tidegauge.evaluation.lite_model import LITE_NETWORKS, pack, schema
from tidegauge.evaluation.networks import picture
from tidegauge.evaluation.trial import Bench
from tidegauge.virtualboard.fault_graph import insert
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.network import FLOAT, INT8, Quant

Array = NDArray[Any]
Kernels = Literal["optimised", "reference"]
_RESOLVERS = {"optimised": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "reference": "BUILTIN_REF"}
_FRAMES = 4
_KINDS = {
    "CONV_2D": "TIDL_ConvolutionLayer",
    "DEPTHWISE_CONV_2D": "TIDL_ConvolutionLayer",
    "ADD": "TIDL_EltWiseLayer",
    "MUL": "TIDL_EltWiseLayer",
    "MEAN": "TIDL_PoolingLayer",
}
_CONVERT = "TIDL_DataConvertLayer"


@dataclass
class Step:
    """One operator: its interpreter, what it reads and makes (tensor numbers), and the layer's name."""

    name: str
    op: str
    interpreter: Any
    reads: tuple[int, ...]
    makes: int
    weights: Array | None


@dataclass(frozen=True)
class Device:
    """The operators in order; number, name and quantisation of the input's codes, name and quantisation of the
    output's."""

    steps: tuple[Step, ...]
    number: int
    source: Quant
    output: str
    target: Quant

    def run(self, value: Array, faults: Mapping[str, Any]) -> dict[str, Array]:
        """Every layer's tensor by name, pictures as NCHW. `faults`: sessions from healthy codes to faulty ones."""
        codes = np.clip(np.rint(value.astype(np.float64) * self.source.scale) + self.source.zero_point, -128, 127)
        found = {_INPUT: _faulty(_INPUT, codes.astype(np.int8), faults)}
        held = {self.number: _last(found[_INPUT])}
        for step in self.steps:
            for detail, read in zip(step.interpreter.get_input_details(), step.reads, strict=True):
                step.interpreter.set_tensor(detail["index"], held[read])
            step.interpreter.invoke()
            made = step.interpreter.get_tensor(step.interpreter.get_output_details()[0]["index"])
            found[step.name] = _faulty(step.name, np.ascontiguousarray(_first(made)), faults)
            held[step.makes] = _last(found[step.name])
        last = self.target.values(found[f"{self.output}_original"])
        return found | {self.output: _faulty(self.output, last, faults)}


_INPUT = "input_netFormat"


def _faulty(name: str, codes: Array, faults: Mapping[str, Any]) -> Array:
    if name not in faults:
        return codes
    (changed,) = faults[name].run([name], {"codes": codes})
    return np.asarray(changed)


@dataclass
class LiteBench(Bench):
    """A bench whose device is a list of interpreters."""

    device: Device | None = None

    def run(self, value: Array, faults: Sequence[Fault] = ()) -> dict[str, Array]:
        if self.device is None:
            raise ValueError("the bench has no device")
        return self.device.run(value, {fault.layer: self._session(fault) for fault in faults})

    def _session(self, fault: Fault) -> Any:
        """From a layer's healthy codes to its faulty ones."""
        layer = self.network.layer(fault.layer)
        element = helper.np_dtype_to_tensor_dtype(layer.quant.dtype)
        source = helper.make_tensor_value_info("codes", element, layer.shape)
        nodes = [helper.make_node("Identity", ["codes"], [layer.name])]
        graph = helper.make_graph(nodes, "fault", [source], [helper.make_empty_tensor_value_info(layer.name)])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        insert(model, self.network, [fault])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def build(root: Path, network: str, kernels: Kernels) -> LiteBench:
    """Quantise one of `LITE_NETWORKS` to int8 (activations asymmetric, weights a scale a channel)."""
    root.mkdir(parents=True, exist_ok=True)
    onnx_path, lite_path, shapes = LITE_NETWORKS[network](root)
    shape = shapes["input"]
    data = _quantised(lite_path, [picture(shape, n) for n in range(_FRAMES)])
    device, quants = _device(data, kernels)
    values = device.run(picture(shape, _FRAMES), {})
    by_number = {step.makes: step.name for step in device.steps} | {device.number: _INPUT}
    parts = [Part(_INPUT, _CONVERT, ("input",), device.source, values[_INPUT])]
    for step in device.steps:
        kind, reads = _KINDS.get(step.op, "TIDL_OtherLayer"), tuple(by_number[n] for n in step.reads)
        parts.append(Part(step.name, kind, reads, quants[step.makes], values[step.name], step.weights))
    output = device.output
    parts.append(Part(output, _CONVERT, (f"{output}_original",), FLOAT, values[output]))
    plain = bench_of(root, onnx_path, {"input": shape}, parts, onnx.ModelProto().SerializeToString())
    return LiteBench(**vars(plain), device=device)


def _first(value: Array) -> Array:
    return value.transpose(0, 3, 1, 2) if value.ndim == 4 else value


def _last(value: Array) -> Array:
    return np.ascontiguousarray(value.transpose(0, 2, 3, 1)) if value.ndim == 4 else value


def _quantised(path: Path, pictures: Sequence[Array]) -> bytes:
    quantizer: Any = importlib.import_module("ai_edge_quantizer.quantizer")
    recipe: Any = importlib.import_module("ai_edge_quantizer.recipe")
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):  # it prints what it saved
        warnings.simplefilter("ignore", UserWarning)  # that keeping every tensor takes memory
        worker = quantizer.Quantizer(str(path), recipe.static_wi8_ai8())
        frames = {"serving_default": [{"input": _last(value)} for value in pictures]}
        return bytes(worker.quantize(worker.calibrate(frames)).quantized_model)


def _device(data: bytes, kernels: Kernels) -> tuple[Device, dict[int, Quant]]:
    """The operators in order, and every tensor's quantisation."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    graph = model.subgraphs[0]
    constant = {n for n, t in enumerate(graph.tensors) if _has_data(model, t)}
    words = {value: key for key, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    quants = {n: _quant(tensor) for n, tensor in enumerate(graph.tensors)}
    number, last = int(graph.inputs[0]), int(graph.outputs[0])
    steps = []
    for operator in graph.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        op = words[max(code.builtinCode, code.deprecatedBuiltinCode)]
        reads = tuple(int(n) for n in operator.inputs if n >= 0 and int(n) not in constant)
        makes = int(operator.outputs[0])
        name = _name(graph, makes) + ("_original" if makes == last else "")
        steps.append(Step(name, op, _alone(data, operator, reads, kernels), reads, makes, _scales(graph, operator, op)))
    return Device(tuple(steps), number, quants[number], _name(graph, last), quants[last]), quants


def _name(graph: Any, number: int) -> str:
    return str(graph.tensors[number].name.decode())


def _has_data(model: Any, tensor: Any) -> bool:
    data = model.buffers[tensor.buffer].data
    return data is not None and len(data) > 0


def _quant(tensor: Any) -> Quant:
    found = tensor.quantization
    if tensor.type != schema.TensorType.INT8 or found is None or found.scale is None or len(found.scale) != 1:
        return FLOAT
    return Quant(INT8, 1.0 / float(found.scale[0]), int(found.zeroPoint[0]))


def _scales(graph: Any, operator: Any, op: str) -> Array | None:
    if op not in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
        return None
    return np.asarray(1.0 / np.asarray(graph.tensors[int(operator.inputs[1])].quantization.scale, np.float64))


def _alone(data: bytes, operator: Any, reads: Sequence[int], kernels: Kernels) -> Any:
    """An interpreter of this one operator."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    graph = model.subgraphs[0]
    graph.operators, graph.inputs, graph.outputs = [operator], list(reads), list(operator.outputs)
    model.signatureDefs = []
    litert: Any = importlib.import_module("ai_edge_litert.interpreter")
    resolver = getattr(litert.OpResolverType, _RESOLVERS[kernels])
    made = litert.Interpreter(model_content=pack(model), experimental_op_resolver_type=resolver, num_threads=1)
    made.allocate_tensors()
    return made
