"""TFLite models: the reference is LiteRT's, tensor by tensor; per-channel weights; the names of TFLite's traces."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tidegauge.compare import Comparison, compare
from tidegauge.compare.compiled import Subgraph
from tidegauge.compare.load import Source
from tidegauge.compare.model import Model
from tidegauge.compare.reference import Reference
from tidegauge.compare.tflite_check import check_tflite
from tidegauge.compare.tflite_file import read, run_all
from tidegauge.compare.tflite_model import load_tflite, to_nchw
from tidegauge.compare.traces import device_tensors
from tidegauge.compare.types import Subject
from tidegauge.errors import TidegaugeError
from tidegauge.tidl.trace_names import TraceName, format_name
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.network import load_all
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.tracing import content, file_name, kinds
from unit.virtualboard.tflite_models import NONE, SAME, Maker, small_enhancer

schema: Any = importlib.import_module("ai_edge_litert.schema_py_generated")
SHAPE = (1, 24, 32, 3)


def picture(shape: tuple[int, ...] = SHAPE) -> NDArray[np.float32]:
    return np.random.default_rng(5).uniform(0, 1, shape).astype(np.float32)


def traced(root: Path, *faults: Fault) -> Comparison:
    """The small enhancer compiled for the virtual board, run, traced, and compared."""
    model = small_enhancer(root / "m.tflite")
    compile_model(model, root / "a", [{"input": picture()}], CompileOptions(calibration_frames=1))
    ((name, network),) = load_all(root / "a").items()
    assert name.isdecimal()  # TFLite's sub-graphs are called by an output tensor's index
    tensors = Twin(network, faults).run({"input": picture()}, [layer.name for layer in network.tensors()])
    folder = root / "traces"
    folder.mkdir()
    for layer in network.tensors():
        (kind,) = kinds(layer, 1)
        (folder / file_name(layer, name, kind)).write_bytes(content(layer, tensors[layer.name], kind))
    np.save(folder / "input.npy", picture())
    return compare(folder, model=model, tempdir=root / "a")


def test_a_healthy_run_is_fine_and_every_layer_compared(tmp_path: Path) -> None:
    answer = traced(tmp_path)
    assert answer.exit_code == 0 and answer.coverage.share == 1.0 and not answer.unmatched
    layers = {layer.name: layer for layer in answer.layers}
    assert layers["stem"].operators == ("Conv", "Clip") and layers["total"].operators == ("Add", "Relu")
    # The output's data-convert layer gives NHWC, its dims in TIDL's order; documents promise that, so no finding.
    assert layers["enhanced"].status == "ok" and not any(f.kind == "layout" for f in answer.findings)


def test_a_fault_is_named_by_the_tensors_own_name(tmp_path: Path) -> None:
    answer = traced(tmp_path, Fault("gated", "gain", 1.3))
    assert [(c.layer, c.cause) for c in answer.culprits] == [("gated", "gain")] and answer.exit_code == 1


def test_the_reference_is_litert_to_its_rounding_at_every_tensor(tmp_path: Path) -> None:
    path = small_enhancer(tmp_path / "m.tflite")
    data = path.read_bytes()
    theirs = run_all(data, "m", {"input": picture()})
    model = load_tflite(data, "m")
    inputs = {"input": picture().transpose(0, 3, 1, 2)}
    sizes = {name: theirs[name].size for node in model.nodes for name in node.output if name in theirs}
    seen = 0
    for values in Reference(model, inputs, {}, sizes).walk():
        for name, ours in values.items():
            np.testing.assert_allclose(ours, to_nchw(theirs[name]), rtol=1e-4, atol=1e-5)
            seen += 1
    assert seen == 8
    assert check_tflite(data, "m", model, inputs) == []


def test_a_reference_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    data = small_enhancer(tmp_path / "m.tflite").read_bytes()
    model = load_tflite(data, "m")
    model.weights["depthwise::weights"] = model.weights["depthwise::weights"][:, :, ::-1]
    with pytest.raises(TidegaugeError, match=r"tensor depthwise of m comes out .* off LiteRT's"):
        check_tflite(data, "m", model, {"input": picture().transpose(0, 3, 1, 2)})


def operators(m: Maker) -> int:
    """Operators whose layout is a trap: a flattening matrix, a concatenation and a slice over channels, constants."""
    [x] = m.inputs
    channels = m.const("channels", np.array([0.5, 2.0, -1.0], np.float32))
    a = m.add("MUL", [x, channels], "scaled", (1, 4, 6, 3), "MulOptions", fusedActivationFunction=NONE)
    both = m.add(
        "CONCATENATION", [x, a], "both", (1, 4, 6, 6), "ConcatenationOptions", axis=3, fusedActivationFunction=NONE
    )
    begin, size = m.const("begin", np.array([0, 1, 0, 2], np.int32)), m.const("size", np.array([1, 3, -1, 3], np.int32))
    part = m.add("SLICE", [both, begin, size], "part", (1, 3, 6, 3), "SliceOptions")
    values: dict[str, Any] = {"strideH": 2, "strideW": 2, "filterHeight": 3, "filterWidth": 3}
    pooled = m.add(
        "AVERAGE_POOL_2D",
        [part],
        "pool",
        (1, 2, 3, 3),
        "Pool2DOptions",
        padding=SAME,
        fusedActivationFunction=NONE,
        **values,
    )
    flat = m.add("RESHAPE", [pooled, m.const("flat", np.array([1, 18], np.int32))], "flat18", (1, 18), "ReshapeOptions")
    weights = m.const("matrix", np.random.default_rng(1).normal(0, 1, (5, 18)).astype(np.float32))
    return m.add(
        "FULLY_CONNECTED", [flat, weights], "scores", (1, 5), "FullyConnectedOptions", fusedActivationFunction=NONE
    )


def test_operators_whose_layout_is_a_trap(tmp_path: Path) -> None:
    made = Maker((1, 4, 6, 3))
    data = made.save(tmp_path / "o.tflite", operators(made)).read_bytes()
    model = load_tflite(data, "o")
    value = np.random.default_rng(2).normal(0, 1, (1, 4, 6, 3)).astype(np.float32)
    (name,) = model.inputs
    assert check_tflite(data, "o", model, {name: value.transpose(0, 3, 1, 2)}) == []


def test_an_operator_without_a_rule_is_refused_by_its_name(tmp_path: Path) -> None:
    made = Maker((1, 4, 6, 3))
    data = made.save(tmp_path / "s.tflite", made.add("SIN", made.inputs, "wave", (1, 4, 6, 3))).read_bytes()
    with pytest.raises(TidegaugeError, match=r"operator SIN \(wave\)"):
        load_tflite(data, "s.tflite")


def quantised(path: Path) -> bytes:
    """int8 in, one convolution with int8 weights of a scale a channel, int8 out; made by hand."""
    flatbuffers: Any = importlib.import_module("flatbuffers")
    random = np.random.default_rng(3)
    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version, model.subgraphs, model.buffers = 3, [graph], [schema.BufferT()]
    graph.tensors, graph.operators, graph.name = [], [], b"main"

    def tensor(name: str, shape: tuple[int, ...], kind: int, scales: list[float], zero: int, value: Any = None) -> int:
        made = schema.TensorT()
        made.name, made.shape, made.type, made.buffer = name.encode(), list(shape), kind, 0
        made.quantization = schema.QuantizationParametersT()
        made.quantization.scale, made.quantization.zeroPoint = scales, [zero] * len(scales)
        made.quantization.quantizedDimension = 0
        if value is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
            model.buffers.append(buffer)
            made.buffer = len(model.buffers) - 1
        graph.tensors.append(made)
        return len(graph.tensors) - 1

    kinds_ = schema.TensorType
    scales = [0.01, 0.002, 0.03, 0.0005]
    x = tensor("x", (1, 8, 8, 2), kinds_.INT8, [0.02], -3)
    codes = random.integers(-127, 128, (4, 3, 3, 2)).astype(np.int8)
    w = tensor("w", codes.shape, kinds_.INT8, scales, 0, codes)
    bias = tensor(
        "b", (4,), kinds_.INT32, [0.02 * s for s in scales], 0, random.integers(-900, 900, 4).astype(np.int32)
    )
    y = tensor("y", (1, 8, 8, 4), kinds_.INT8, [0.12], 5)
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CONV_2D
    code.version = 3
    op = schema.OperatorT()
    op.opcodeIndex, op.inputs, op.outputs = 0, [x, w, bias], [y]
    op.builtinOptionsType, op.builtinOptions = schema.BuiltinOptions.Conv2DOptions, schema.Conv2DOptionsT()
    for key, value in {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}.items():
        setattr(op.builtinOptions, key, value)
    op.builtinOptions.padding = schema.Padding.SAME
    model.operatorCodes, graph.operators, graph.inputs, graph.outputs = [code], [op], [x], [y]
    builder = flatbuffers.Builder(1 << 12)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    return path.read_bytes()


def quantised_source(data: bytes, codes: NDArray[np.int8], damage: int = 0) -> Source:
    """LiteRT's own integer kernels as the device: their output as a trace under TFLite's name of a sub-graph."""
    values = run_all(data, "q", {"x": codes})["y"].transpose(0, 3, 1, 2).astype(np.int16)
    values[:, 1, 2:5] += damage
    held = np.ascontiguousarray(np.clip(values, -128, 127).astype(np.int8)).tobytes()
    name = format_name(TraceName("C7x_1", "3", 2, (1, 1, 1, 4, 8, 8), "y"))
    assert name.startswith("C7x_1_tidl_trace_3_0002_")
    subgraph = Subgraph("3", names={2: "y"}, kinds={2: "TIDL_ConvolutionLayer"}, expected=(2,))
    tensors, findings = device_tensors({name: len(held)}, {name: lambda: held}, {name: "int8"}, {"3": subgraph})
    tensors[0].scale, tensors[0].zero_point, tensors[0].source = 1 / 0.12, 5, "svg"
    subject = Subject("q", None, None, False, None, "q.tflite", {}, {}, {}, "x")
    return Source(subject, data, "q.tflite", None, {"x": codes}, tensors, {"3": subgraph}, findings=findings)


def test_per_channel_weights_of_a_quantised_model_are_dequantised_channel_by_channel(tmp_path: Path) -> None:
    data = quantised(tmp_path / "q.tflite")
    codes = np.random.default_rng(4).integers(-100, 100, (1, 8, 8, 2)).astype(np.int8)
    weights = next(t for t in read(data, "q").tensors if t.name == "w")
    assert weights.quantisation is not None and len(weights.quantisation.scales) == 4
    assert weights.constant is not None
    np.testing.assert_allclose(weights.values()[3], weights.constant[3] * np.float32(0.0005), rtol=1e-6)
    answer = compare(quantised_source(data, codes))
    assert answer.exit_code == 0 and answer.layers[0].local is not None
    assert (answer.layers[0].local.max_steps or 9) < 1.5
    assert any(f.kind == "quantised_model" for f in answer.findings)
    wrong = compare(quantised_source(data, codes, damage=9))
    assert [c.layer for c in wrong.culprits] == ["y"]


def test_a_model_whose_inputs_are_codes_is_fed_with_what_they_mean(tmp_path: Path) -> None:
    model: Model = load_tflite(quantised(tmp_path / "q.tflite"), "q")
    assert model.codes == {"x": (pytest.approx(0.02), -3)} and model.nhwc == {"x": (1, 8, 8, 2)}


def test_a_cut_file_is_refused_at_any_length(tmp_path: Path) -> None:
    data = small_enhancer(tmp_path / "m.tflite").read_bytes()
    for length in range(8, len(data) - 1, max(1, len(data) // 24)):
        with pytest.raises(TidegaugeError, match=r"m\.tflite"):
            load_tflite(data[:length], "m.tflite")
