"""TFLite models on the virtual board: what is compiled, named, computed, left to the CPU, and how it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tidegauge.cli.virtualboard import command
from tidegauge.errors import TidegaugeError
from tidegauge.tidl import io_descriptor, trace_names
from tidegauge.tidl.offload import TIDL_DELEGATE
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.failures import Failure, FailureName
from tidegauge.virtualboard.faults import Fault, eligible_layers
from tidegauge.virtualboard.network import load_all, load_artifacts
from tidegauge.virtualboard.options import CompileOptions, CompileReport
from tidegauge.virtualboard.quantise import sqnr_db
from tidegauge.virtualboard.state import VARIABLE, BoardState, fail, inject
from tidegauge.virtualboard.tflite_model import interpreter
from tidegauge.virtualboard.tflite_runtime_tidl import Interpreter, load_delegate
from unit.virtualboard.tflite_models import NONE, RELU, RELU6, SAME, VALID, Maker, small_enhancer

H, W, C = 6, 8, 4
PICTURE = (1, H, W, C)


def picture(shape: tuple[int, ...] = PICTURE, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.2, 1, shape).astype(np.float32)


def in_float(model: Path, *inputs: np.ndarray) -> np.ndarray:
    made = interpreter(model.read_bytes())
    for detail, value in zip(made.get_input_details(), inputs, strict=True):
        made.set_tensor(detail["index"], value)
    made.invoke()
    answer: np.ndarray = made.get_tensor(made.get_output_details()[0]["index"])
    return answer


def compiled(model: Path, *inputs: np.ndarray, **options: Any) -> CompileReport:
    names = [item["name"] for item in interpreter(model.read_bytes()).get_input_details()]
    frame = dict(zip(names, inputs, strict=True))
    return compile_model(model, model.parent / "a", [frame], CompileOptions(calibration_frames=1, **options))


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "vb"
    BoardState(trace_folder=str(tmp_path)).save(folder)
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


def opened(model: Path) -> Interpreter:
    options = {"artifacts_folder": str(model.parent / "a"), "debug_level": "0"}
    return Interpreter(str(model), experimental_delegates=[load_delegate(TIDL_DELEGATE, options)])


def on_c7x(made: Interpreter, *inputs: np.ndarray) -> np.ndarray:
    for detail, value in zip(made.get_input_details(), inputs, strict=True):
        made.set_tensor(detail["index"], value)
    made.invoke()
    return made.get_tensor(made.get_output_details()[0]["index"])


def pool(m: Maker, op: str) -> int:
    shape = (1, 3, 4, C)
    values: dict[str, Any] = {"strideH": 2, "strideW": 2, "filterHeight": 3, "filterWidth": 3}
    values |= {"padding": SAME, "fusedActivationFunction": NONE}
    return m.add(op, m.inputs, "y", shape, "Pool2DOptions", **values)


def binary(m: Maker, op: str, other: int, options: str) -> int:
    return m.add(op, [m.inputs[0], other], "y", PICTURE, options, fusedActivationFunction=NONE)


def resize(m: Maker, op: str, options: str, half: bool) -> int:
    size = m.const("size", np.array([2 * H, 2 * W], np.int32))
    return m.add(op, [m.inputs[0], size], "y", (1, 2 * H, 2 * W, C), options, alignCorners=False, halfPixelCenters=half)


def mean(m: Maker, keep: bool) -> int:
    axes = m.const("axes", np.array([1, 2], np.int32))
    return m.add("MEAN", [m.inputs[0], axes], "y", (1, 1, 1, C) if keep else (1, C), "ReducerOptions", keepDims=keep)


def concat(m: Maker, axis: int) -> int:
    relu = m.add("RELU", m.inputs, "r", PICTURE)
    shape = tuple(d * 2 if i == axis else d for i, d in enumerate(PICTURE))
    values = {"axis": axis - 4, "fusedActivationFunction": NONE}
    return m.add("CONCATENATION", [m.inputs[0], relu], "y", shape, "ConcatenationOptions", **values)


def padded(m: Maker) -> int:
    amounts = m.const("amounts", np.array([[0, 0], [1, 0], [0, 2], [0, 0]], np.int32))
    pad = m.add("PAD", [m.inputs[0], amounts], "pad", (1, H + 1, W + 2, C))
    return m.conv(pad, "y", (1, H - 1, W, 5), 3, padding=VALID)


def dense(m: Maker) -> int:
    return m.dense(m.add("RELU", m.inputs, "r", PICTURE), "y", H * W * C, 7)


def reshape(m: Maker, shape: tuple[int, ...]) -> int:
    return m.add("RESHAPE", [m.inputs[0], m.const("shape", np.array(shape, np.int32))], "y", shape)


def sliced(m: Maker) -> int:
    begin, size = (m.const(n, np.array(v, np.int32)) for n, v in (("b", [0, 1, 2, 1]), ("s", [1, 4, -1, 2])))
    return m.add("SLICE", [m.inputs[0], begin, size], "y", (1, 4, W - 2, 2))


def half_weights(m: Maker) -> int:
    packed = m.const("packed", np.random.default_rng(9).normal(0, 0.3, (5, 1, 1, C)).astype(np.float16))
    weights = m.add("DEQUANTIZE", [packed], "unpacked", (5, 1, 1, C))
    values: dict[str, Any] = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    values |= {"padding": SAME, "fusedActivationFunction": NONE}
    return m.add(
        "CONV_2D",
        [m.inputs[0], weights, m.const("b", np.zeros(5, np.float32))],
        "y",
        (1, H, W, 5),
        "Conv2DOptions",
        **values,
    )


CASES: dict[str, tuple[Callable[[Maker], int], str]] = {
    "conv": (lambda m: m.conv(m.inputs[0], "y", (1, H, W, 5), 3, fused=RELU), "Convolution"),
    "conv stride": (lambda m: m.conv(m.inputs[0], "y", (1, 3, 4, 5), 3, stride=2, fused=NONE), "Convolution"),
    "conv valid": (lambda m: m.conv(m.inputs[0], "y", (1, 4, 6, 5), 3, fused=RELU6, padding=VALID), "Convolution"),
    "depthwise": (lambda m: m.conv(m.inputs[0], "y", (1, H, W, 2 * C), 3, depthwise=True), "Convolution"),
    "padded": (padded, "Convolution"),
    "half weights": (half_weights, "Convolution"),
    "dense": (dense, "InnerProduct"),
    "add constant": (lambda m: binary(m, "ADD", m.const("k", picture((C,))), "AddOptions"), "BatchNorm"),
    "add itself": (lambda m: binary(m, "ADD", m.inputs[0], "AddOptions"), "EltWise"),
    "sub": (lambda m: binary(m, "SUB", m.const("k", picture((1, 1, 1, C))), "SubOptions"), "BatchNorm"),
    "mul": (lambda m: binary(m, "MUL", m.const("k", np.float32(0.3)), "MulOptions"), "BatchNorm"),
    "average pool": (lambda m: pool(m, "AVERAGE_POOL_2D"), "Pooling"),
    "max pool": (lambda m: pool(m, "MAX_POOL_2D"), "Pooling"),
    "mean": (lambda m: mean(m, True), "Pooling"),
    "mean flat": (lambda m: mean(m, False), "Reshape"),
    "relu": (lambda m: m.add("RELU", m.inputs, "y", PICTURE), "BatchNorm"),
    "relu6": (lambda m: m.add("RELU6", m.inputs, "y", PICTURE), "BatchNorm"),
    "leaky": (lambda m: m.add("LEAKY_RELU", m.inputs, "y", PICTURE, "LeakyReluOptions", alpha=0.1), "BatchNorm"),
    "logistic": (lambda m: m.add("LOGISTIC", m.inputs, "y", PICTURE), "Sigmoid"),
    "tanh": (lambda m: m.add("TANH", m.inputs, "y", PICTURE), "Tanh"),
    "softmax": (lambda m: m.add("SOFTMAX", m.inputs, "y", PICTURE, "SoftmaxOptions", beta=1.0), "SoftMax"),
    "concat channels": (lambda m: concat(m, 3), "Concat"),
    "concat rows": (lambda m: concat(m, 1), "Concat"),
    "reshape flat": (lambda m: reshape(m, (1, H * W * C)), "Reshape"),
    "reshape picture": (lambda m: reshape(m, (1, W, H, C)), "Transpose"),
    "slice": (sliced, "Slice"),
    "nearest": (lambda m: resize(m, "RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions", False), "Resize"),
    "nearest half": (lambda m: resize(m, "RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions", True), "Resize"),
    "bilinear": (lambda m: resize(m, "RESIZE_BILINEAR", "ResizeBilinearOptions", False), "Resize"),
    "bilinear half": (lambda m: resize(m, "RESIZE_BILINEAR", "ResizeBilinearOptions", True), "Resize"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("bits", "scale_type", "least"), [(8, 4, 24.0), (16, 0, 70.0)])
def test_every_operator_is_near_its_float_form(
    tmp_path: Path, board: Path, case: str, bits: int, scale_type: int, least: float
) -> None:
    make, kind = CASES[case]
    made, x = Maker(PICTURE), picture()
    model = made.save(tmp_path / "m.tflite", make(made))
    report = compiled(model, x, tensor_bits=bits, quantization_scale_type=scale_type)
    assert report.offloaded == report.nodes
    device, expected = opened(model), in_float(model, x)
    got = on_c7x(device, x)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    assert sqnr_db(expected, got) > least
    assert {item["op_name"] for item in device._get_ops_details()} == {"DELEGATE"}
    assert load_artifacts(tmp_path / "a").layer("y_original").kind == f"TIDL_{kind}Layer"


def test_files_are_named_by_the_output_tensor_and_have_its_layout(tmp_path: Path) -> None:
    model = small_enhancer(tmp_path / "m.tflite")
    compiled(model, picture((1, 24, 32, 3)))
    number = interpreter(model.read_bytes()).get_output_details()[0]["index"]
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        "allowedNode.txt", "tempDir", f"{number}_tidl_net.bin", f"{number}_tidl_io_1.bin",
    }  # fmt: skip
    temp = {path.name for path in (tmp_path / "a" / "tempDir").iterdir()}
    assert f"{number}_tidl_net.bin.layer_info.txt" in temp
    descriptor = io_descriptor.parse((tmp_path / "a" / f"{number}_tidl_io_1.bin").read_bytes())
    [given], [made] = descriptor.inputs, descriptor.outputs
    assert (given.name, given.dims, given.layout) == ("input", (1, 1, 1, 3, 24, 32), 1)
    assert (made.name, made.dims, made.layout) == ("enhanced", (1, 1, 1, 3, 24, 32), 1)


def test_traces_are_nchw_but_for_the_converted_output(tmp_path: Path) -> None:
    """Of data-convert layers with NHWC layout, the dims in the name are permuted (TIDL's debug trace)."""
    model, x = small_enhancer(tmp_path / "m.tflite"), picture((1, 24, 32, 3))
    compiled(model, x)
    np.save(tmp_path / "x.npy", x)
    for target, cpu in (("device", "C7x_1"), ("host", None)):
        out = tmp_path / target
        arguments = ["run", str(tmp_path / "a"), "--model", str(model), "--input", str(tmp_path / "x.npy")]
        done = CliRunner().invoke(command, [*arguments, "--output", str(out), "--debug-level", "4", "--target", target])
        assert done.exit_code == 0, done.output
        traces = {path: trace_names.parse(path.name) for path in (out / "traces").iterdir()}
        number = interpreter(model.read_bytes()).get_output_details()[0]["index"]
        assert {(t.cpu, t.subgraph) for t in traces.values() if t} == {(cpu, str(number))}
        names = {layer.data_id: layer for layer in load_artifacts(tmp_path / "a").tensors()}
        floats = {names[t.data_id].name: (path, t) for path, t in traces.items() if t and t.kind == "float"}
        path, trace = floats["stem"]
        assert trace.dims == (1, 1, 1, 8, 24, 32)
        path, trace = floats["input_netFormat"]
        codes = np.fromfile(path, "<f4").reshape(trace.dims[3:])
        assert np.abs(codes.transpose(1, 2, 0) - x[0]).max() < 0.05
        path, trace = floats["enhanced"]
        assert trace.dims == (1, 1, 1, 24, 32, 3), "channels are rows, rows are columns, columns are channels"
        assert np.array_equal(np.fromfile(path, "<f4").reshape(1, 24, 32, 3), np.load(out / "enhanced.npy"))


def test_what_the_c7x_has_no_layer_for_is_left_to_the_cpu_and_counted(tmp_path: Path, board: Path) -> None:
    made, x = Maker(PICTURE), picture()
    first = made.conv(made.inputs[0], "first", PICTURE, 3)
    swish = made.add("HARD_SWISH", [first], "swish", PICTURE)
    model = made.save(tmp_path / "m.tflite", made.conv(swish, "last", PICTURE, 3, fused=NONE))
    report = compiled(model, x, tensor_bits=16)
    assert (report.nodes, report.offloaded, report.subgraphs) == (3, 2, (str(first), "7"))
    assert "left to the CPU: 1 HARD_SWISH (there is no layer for it)" in report.warnings
    device = opened(model)
    got = on_c7x(device, x)
    assert sqnr_db(in_float(model, x), got) > 60
    assert [item["op_name"] for item in device._get_ops_details()] == ["HARD_SWISH", "DELEGATE", "DELEGATE"]
    keys = {key for key in device.get_TI_benchmark_data() if key.endswith("proc_start")}
    assert keys == {f"ts:subgraph_{name}_proc_start" for name in report.subgraphs}
    inject(board, [Fault("first", "zero")])
    assert not np.array_equal(on_c7x(device, x), got)


def test_a_denied_layer_splits_the_model(tmp_path: Path, board: Path) -> None:
    model, x = small_enhancer(tmp_path / "m.tflite"), picture((1, 24, 32, 3))
    report = compiled(model, x, deny_list_layer_name=("gate", "nobody"))
    assert (report.nodes, report.offloaded, len(report.subgraphs)) == (8, 7, 2)
    assert "Invalid Layer Name  nobody" in report.warnings
    assert "left to the CPU: 1 LOGISTIC (deny_list:layer_name)" in report.warnings
    assert sqnr_db(in_float(model, x), on_c7x(opened(model), x)) > 25
    assert sum(len(network.tensors()) for network in load_all(tmp_path / "a").values()) > 8


def test_faults_of_rows_and_channels_are_for_the_layer_before_the_converted_output(tmp_path: Path, board: Path) -> None:
    model, x = small_enhancer(tmp_path / "m.tflite"), picture((1, 24, 32, 3))
    compiled(model, x)
    device = opened(model)
    healthy = on_c7x(device, x)
    able = eligible_layers(tmp_path / "a")
    assert "enhanced" not in able["band"]
    with pytest.raises(TidegaugeError, match="its layout is NHWC"):
        inject(board, [Fault("enhanced", "band")], tmp_path / "a")
    inject(board, [Fault("enhanced_original", "band")], tmp_path / "a")
    rows = np.unique(np.nonzero(on_c7x(device, x) - healthy)[1])
    assert rows.tolist() == list(range(rows[0], rows[-1] + 1))
    assert 0 < len(rows) < 6, "of 24"


@pytest.mark.parametrize(
    ("options", "least"),
    [({"tensor_bits": 16}, 60), ({"quantization_scale_type": 1}, 20), ({"calibration_iterations": 3}, 25)],
)
def test_compile_options_work_as_with_onnx(tmp_path: Path, board: Path, options: dict[str, Any], least: float) -> None:
    model, x = small_enhancer(tmp_path / "m.tflite"), picture((1, 24, 32, 3))
    compiled(model, x, **options)
    assert sqnr_db(in_float(model, x), on_c7x(opened(model), x)) > least


def test_a_float_network_runs_on_the_host_and_nowhere_else(tmp_path: Path) -> None:
    model, x = small_enhancer(tmp_path / "m.tflite"), picture((1, 24, 32, 3))
    compiled(model, x, tensor_bits=32)
    np.save(tmp_path / "x.npy", x)
    line = ["run", str(tmp_path / "a"), "--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "out")]
    for more in ([], ["--model", str(model)]):
        refused = CliRunner().invoke(command, [*line, *more])
        assert isinstance(refused.exception, TidegaugeError), refused.output
        assert "can't be opened" in str(refused.exception)
        assert not list((tmp_path / "out").glob("*.npy")), "zeros are no answer"
        done = CliRunner().invoke(command, [*line, *more, "--target", "host", "--debug-level", "3"])
        assert done.exit_code == 0, done.output
        assert sqnr_db(in_float(model, x), np.load(tmp_path / "out" / "enhanced.npy")) > 100
        (tmp_path / "out" / "enhanced.npy").unlink()
    kinds = {name.kind for path in (tmp_path / "out" / "traces").iterdir() if (name := trace_names.parse(path.name))}
    assert kinds == {"float"}


class TestRefusals:
    def refused(self, model: Path, x: np.ndarray, words: str) -> None:
        with pytest.raises(TidegaugeError, match=words):
            compiled(model, x)
        assert not (model.parent / "a").exists()

    def test_nothing_for_the_c7x(self, tmp_path: Path) -> None:
        made = Maker(PICTURE)
        model = made.save(tmp_path / "m.tflite", made.add("HARD_SWISH", made.inputs, "y", PICTURE))
        self.refused(model, picture(), "the C7x takes no operator of .*: 1 HARD_SWISH")

    def test_a_damaged_file(self, tmp_path: Path) -> None:
        data = small_enhancer(tmp_path / "whole.tflite").read_bytes()
        (tmp_path / "m.tflite").write_bytes(data[: len(data) // 2])
        with pytest.raises(TidegaugeError, match="no valid TFLite model"):
            compile_model(tmp_path / "m.tflite", tmp_path / "a", [], CompileOptions())

    def test_frames_of_another_layout(self, tmp_path: Path) -> None:
        model = small_enhancer(tmp_path / "m.tflite")
        self.refused(model, picture((1, 3, 24, 32)), r"the model wants float32 \[1, 24, 32, 3\]")

    def test_artifacts_of_another_model(self, tmp_path: Path, board: Path) -> None:
        model = small_enhancer(tmp_path / "m.tflite")
        compiled(model, picture((1, 24, 32, 3)))
        made = Maker(PICTURE)
        made.save(tmp_path / "m.tflite", made.conv(made.inputs[0], "y", PICTURE, 3))
        with pytest.raises(RuntimeError, match="belong to another model"):
            opened(model)


ZEROS: list[FailureName] = [
    "zeros_after_failed_create",
    "create_fails",
    "size_mismatch",
    "version_mismatch",
    "no_shared_memory",
]


@pytest.mark.parametrize("name", ZEROS)
def test_a_failed_create_is_answered_with_zeros_and_time_stamps(tmp_path: Path, board: Path, name: FailureName) -> None:
    model, x = small_enhancer(tmp_path / "m.tflite"), picture((1, 24, 32, 3))
    compiled(model, x)
    fail(board, [Failure(name)])
    device = opened(model)
    assert not on_c7x(device, x).any()
    assert any(key.startswith("ts:subgraph_") for key in device.get_TI_benchmark_data())


@pytest.mark.parametrize("name", ["no_delegation", "cpu_fallback"])
def test_no_delegation_leaves_all_to_the_cpu(tmp_path: Path, board: Path, name: FailureName) -> None:
    model, x = small_enhancer(tmp_path / "m.tflite"), picture((1, 24, 32, 3))
    compiled(model, x)
    fail(board, [Failure(name)])
    device = opened(model)
    assert np.array_equal(on_c7x(device, x), in_float(model, x))
    assert "DELEGATE" not in {item["op_name"] for item in device._get_ops_details()}


def test_a_run_that_fails_is_a_runtime_error(tmp_path: Path, board: Path) -> None:
    model, x = small_enhancer(tmp_path / "m.tflite"), picture((1, 24, 32, 3))
    compiled(model, x)
    fail(board, [Failure("invoke_fails", 1)])
    device = opened(model)
    on_c7x(device, x)
    with pytest.raises(RuntimeError, match="failed to invoke"):
        on_c7x(device, x)


def test_a_missing_library_is_an_os_error(tmp_path: Path, board: Path) -> None:
    fail(board, [Failure("abort_missing_library")])
    with pytest.raises(OSError, match="cannot open shared object"):
        load_delegate(TIDL_DELEGATE, {"artifacts_folder": str(tmp_path)})


@pytest.mark.parametrize(
    ("folder", "failing", "code"), [("nowhere", (), 255), ("", (Failure("exit_in_create", 3),), 3)]
)
def test_a_bad_folder_ends_the_process(
    tmp_path: Path, board: Path, folder: str, failing: tuple[Failure, ...], code: int
) -> None:
    fail(board, failing)
    script = (
        "import sys; from tidegauge.virtualboard.tflite_runtime_tidl import load_delegate;"
        f"load_delegate({TIDL_DELEGATE!r}, {{'artifacts_folder': sys.argv[1]}})"
    )
    command_line = [sys.executable, "-c", script, str(tmp_path / folder)]
    done = subprocess.run(command_line, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "artifacts_folder not a directory" in done.stdout) == (code, True)
