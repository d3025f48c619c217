"""Failures that users of accelerators have reported in public, made small again: each must be called what it is.

The device runs a model that computes what the report describes, or its traces hold what the report found; the link is
the report.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from tidegauge.compare import Comparison, compare, compare_folders, merge_frames, rejudge
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.network import load_artifacts
from tidegauge.virtualboard.options import CompileOptions
from unit.compare.lab import Board, Net, build, picture

Array = NDArray[Any]
SHAPE = (1, 3, 16, 24)


def upscaler(path: Path) -> Path:
    """Convolution, resize by two, hard-swish (as HardSigmoid and Mul), a residual Add, a constant, an output."""
    net = Net(7)
    x = net.conv("input", 3, 8, "stem")
    two = net.const(np.array([1, 1, 2, 2], np.float32))
    x = net.add("Resize", [x, "", two], "up", mode="linear", coordinate_transformation_mode="half_pixel")
    gate = net.add("HardSigmoid", [net.conv(x, 8, 8, "body", relu=False)], "gate", alpha=1 / 6, beta=0.5)
    y = net.add("Mul", ["body", gate], "swish")
    z = net.add("Add", [y, x], "sum")
    shift = np.linspace(0.2, 1.0, 8).astype(np.float32).reshape(1, 8, 1, 1)
    z = net.add("Add", [z, net.const(shift)], "shifted")
    return net.save(path, SHAPE, net.conv(z, 8, 3, "out", relu=False), (1, 3, 32, 48))


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return upscaler(tmp_path_factory.mktemp("right") / "net.onnx")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, right: Path) -> Board:
    return compiled(right, right, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("curves"), "enhancer")


def compiled(model: Path, device: Path, root: Path, scale: float = 1.0) -> Board:
    """What the device runs, to be compared with what it should: the compile's tables are those of the device."""
    frames = [{"input": (picture(SHAPE, seed) * scale).astype(np.float32)} for seed in range(2)]
    compile_model(device, root / "artifacts", frames, CompileOptions(calibration_frames=2))
    return Board(model, root / "artifacts", root, SHAPE)


def device_computes(right: Path, root: Path, edit: Callable[[Any], None]) -> Comparison:
    proto = onnx.load(right)
    edit(proto.graph)
    onnx.save(proto, root / "other.onnx")
    return compiled(right, root / "other.onnx", root).compare(value=picture(SHAPE, 5))


def node(graph: Any, name: str) -> Any:
    return next(n for n in graph.node if n.output[0] == name)


def attribute(graph: Any, name: str, key: str, value: Any) -> None:
    found = node(graph, name)
    kept = [a for a in found.attribute if a.name != key]
    del found.attribute[:]
    found.attribute.extend([*kept, onnx.helper.make_attribute(key, value)])


def weight(graph: Any, name: str, change: Callable[[Array], Array]) -> None:
    """Change the constant of a node."""
    constants = {i.name: i for i in graph.initializer}
    item = next(constants[i] for i in node(graph, name).input if i in constants)
    item.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(item)).astype(np.float32), item.name))


def culprits(answer: Comparison) -> list[str]:
    return [c.layer for c in answer.culprits]


def finding(answer: Comparison, kind: str) -> str:
    return next(f.sentence for f in answer.findings if f.kind == kind)


# --- the input -----------------------------------------------------------------------------------------------------


def fed(board: Board, value: Array) -> Comparison:
    """The device is fed `value`, and that is what was recorded."""
    return board.compare(value=value.astype(np.float32))


def test_black_output_since_255_is_applied_twice(curves: Board) -> None:
    """https://e2e.ti.com: AM62A, Zero-DCE: output black. The calibration saw 0…1, the device is fed 0…255."""
    answer = fed(curves, picture(curves.shape, 3) * 255)
    assert "×255 is applied twice" in finding(answer, "input_factor") and answer.exit_code == 1


def test_double_normalisation(curves: Board) -> None:
    """https://github.com/PINTO0309/onnx2tf/issues/610: divided by 255 twice, on both sides: no layer shows it."""
    answer = fed(curves, picture(curves.shape, 3) / 255)
    assert "the division by 255 is applied twice" in finding(answer, "input_factor")
    assert answer.exit_code == 1 and "the division by 255 is applied twice" in answer.sentence
    again = rejudge(answer, threshold=50.0)
    assert again.exit_code == 1 and "the division by 255 is applied twice" in again.sentence


def test_the_preprocessor_saturates_everything(curves: Board) -> None:
    """https://github.com/espressif/esp-dl/issues/267: all of the input at the top code."""
    answer = fed(curves, 100 + picture(curves.shape, 3))
    layer = next(x for x in answer.layers if x.matched == "input")
    assert layer.high_share == 1.0 and layer.range_use is not None and layer.range_use.clipped == 1.0
    assert "input_range" in {f.kind for f in answer.findings}


def test_blue_green_red_for_red_green_blue(plain: Board) -> None:
    """https://github.com/CondadosAI/modern-yolonas/pull/7: channels of the input swapped between recording and run."""
    folder = plain.trace(value=picture(SHAPE, 5))
    np.save(folder / "input.npy", picture(SHAPE, 5)[:, ::-1])
    answer = plain.compare_folder(folder)
    assert culprits(answer)[0] == "input_netFormat" and answer.culprits[0].cause == "channel_permutation"


# --- operators -----------------------------------------------------------------------------------------------------


def test_nearest_instead_of_bilinear(right: Path, tmp_path: Path) -> None:
    """https://github.com/Tencent/TNN/issues/641"""
    assert culprits(device_computes(right, tmp_path, lambda g: attribute(g, "up", "mode", "nearest"))) == ["up"]


def test_resize_with_other_coordinates(right: Path, tmp_path: Path) -> None:
    """https://github.com/tensorflow/tensorflow/issues/33691: align_corners."""
    edit = "coordinate_transformation_mode"
    answer = device_computes(right, tmp_path, lambda g: attribute(g, "up", edit, "align_corners"))
    assert culprits(answer) == ["up"]


def test_height_and_width_swapped_in_a_resize(plain: Board) -> None:
    """https://github.com/tensorflow/tensorflow/pull/28963: the bytes of a square tensor, or the dims of another."""
    folder = plain.trace(value=picture(SHAPE, 5))
    file = plain.trace_of(folder, "up")
    file.rename(folder / file.name.replace("00048x00032", "00032x00048"))
    answer = plain.compare_folder(folder)
    layer = next(x for x in answer.layers if x.name == "up")
    assert layer.status == "shape_mismatch" and layer.cumulative is None
    assert "shape_mismatch" in {f.kind for f in answer.findings}


def test_hard_swish_mapped_to_hard_sigmoid(right: Path, tmp_path: Path) -> None:
    """https://github.com/onnxruntime/onnxruntime-qnn/pull/392: 0.1 % top-1."""

    def edit(graph: Any) -> None:
        swish = node(graph, "swish")
        del swish.input[:]
        swish.input.extend(["gate", "gate"])

    answer = device_computes(right, tmp_path, edit)
    assert culprits(answer) == ["swish"]
    # A simple cause may be named only for what it explains.
    assert answer.culprits[0].cause == "unknown" or (answer.culprits[0].explained or 0.0) > 0.9


def test_hard_swish_off_by_one(plain: Board) -> None:
    """https://github.com/tensorflow/tensorflow/issues/35847: one code off, in the bit-exact comparison."""
    host, device = plain.trace(name="host"), plain.trace(name="board")
    file = plain.trace_of(device, "swish")
    codes = np.fromfile(file, np.uint8)
    codes[codes < 250] += 1
    file.write_bytes(codes.tobytes())
    answer = compare_folders(host, device, plain.artifacts)
    assert answer.counts.off_by_one == 1 and answer.counts.larger == 0
    assert answer.tensors[answer.first or 0].name == "swish"


def test_a_residual_addition_with_the_scale_of_one_branch(right: Path, tmp_path: Path) -> None:
    """https://github.com/ARM-software/CMSIS-NN/issues/66: one branch is not requantised."""

    def edit(graph: Any) -> None:
        half = numpy_helper.from_array(np.asarray(0.6, np.float32), "half")
        graph.initializer.append(half)
        place = list(graph.node).index(node(graph, "sum"))
        node(graph, "sum").input[1] = "scaled"
        graph.node.insert(place, onnx.helper.make_node("Mul", ["up", "half"], ["scaled"]))

    answer = device_computes(right, tmp_path, edit)
    assert culprits(answer)[0] == "sum" and "scaled" in {u.name for u in answer.unmatched if u.side == "device"}


def test_a_constant_tensor_is_zeroed(right: Path, tmp_path: Path) -> None:
    """https://github.com/harvard-edge/cs249r_book/pull/1444"""
    assert culprits(device_computes(right, tmp_path, lambda g: weight(g, "shifted", np.zeros_like))) == ["shifted"]


def test_bias_of_another_q_factor_on_the_device(curves: Board) -> None:
    """https://e2e.ti.com/support/processors/f/processors-forum/698104: host against device, bias times two."""
    fault = [Fault("/dec/c3/Relu_output_0", "bias", 2.0)]
    assert culprits(curves.compare(fault)) == ["/dec/c3/Relu_output_0"]
    host, device = curves.trace(name="host"), curves.trace(fault, name="board")
    answer = compare_folders(host, device, curves.artifacts)
    assert answer.exit_code == 1 and answer.tensors[answer.first or 0].name == "/dec/c3/Relu_output_0"


def test_wrong_only_in_the_padded_columns(curves: Board) -> None:
    """https://github.com/uxlfoundation/oneDNN/issues/5080"""
    answer = curves.compare([Fault("/dec/c3/Relu_output_0", "boundary_column")])
    assert culprits(answer) == ["/dec/c3/Relu_output_0"]
    assert answer.culprits[0].cause in ("boundary_column", "column_band")


# --- scales and codes ----------------------------------------------------------------------------------------------


def spoiled(board: Board, layer: str, change: Callable[[Array], Array]) -> Comparison:
    """The codes of the last quantised layer, changed: nothing reads them but the output."""
    folder = board.trace(value=picture(board.shape, 5))
    found = load_artifacts(board.artifacts).layer(layer)
    file = board.trace_of(folder, layer)
    codes = np.fromfile(file, found.quant.dtype).reshape(found.shape)
    info = np.iinfo(codes.dtype)
    changed = np.clip(change(codes.astype(np.int64)), info.min, info.max).astype(codes.dtype)
    file.write_bytes(changed.tobytes())
    output = plain_output(board)
    values = found.quant.values(changed)
    board.trace_of(folder, output).write_bytes(values.astype("<f4").tobytes())
    return board.compare_folder(folder)


def plain_output(board: Board) -> str:
    return load_artifacts(board.artifacts).outputs[0]


LAST = "out_original"


def test_too_coarse_an_encoding_of_the_output(plain: Board) -> None:
    """https://github.com/onnxruntime/onnxruntime-qnn/pull/558: a range far wider than the values."""
    answer = spoiled(plain, LAST, lambda codes: (codes // 24) * 24)
    assert culprits(answer)[0] == LAST and answer.culprits[0].cause == "coarse_step"


def test_a_zero_point_that_overflows(plain: Board) -> None:
    """https://github.com/pytorch/executorch/pull/20655: a zero point far off; here by 40 codes."""
    answer = spoiled(plain, LAST, lambda codes: codes + 40)
    assert culprits(answer)[0] == LAST and answer.culprits[0].cause in ("offset", "saturation_high")


def test_a_zero_point_of_127_instead_of_128(curves: Board) -> None:
    """https://github.com/microsoft/onnxruntime/issues/25823: an offset of a single code."""
    answer = spoiled(curves, "enhanced_original", lambda codes: codes + 1)
    named = (*answer.culprits, *answer.recovered)  # one code of the output is at the border of what counts as effect
    assert [c.layer for c in named] == ["enhanced_original"] and named[0].cause in ("offset", "rounding")


def test_the_sign_of_a_zero_point(plain: Board) -> None:
    """https://github.com/ARM-software/ComputeLibrary/issues/1033: all values mirrored."""
    answer = spoiled(plain, LAST, lambda codes: -codes)
    layer = next(x for x in answer.layers if x.name == LAST)
    assert culprits(answer)[0] == LAST and layer.cumulative is not None and (layer.cumulative.gain or 1) < 0


def test_output_only_0_or_255(plain: Board) -> None:
    """https://github.com/cxzhou95/XLSR/issues/5: a scale far too large, both ends full."""
    answer = spoiled(plain, LAST, lambda codes: np.where(codes > codes.mean(), 127, -128))
    layer = next(x for x in answer.layers if x.name == LAST)
    assert culprits(answer)[0] == LAST and (layer.low_share or 0) + (layer.high_share or 0) == 1.0


def test_all_output_is_zero(plain: Board) -> None:
    """https://github.com/Tencent/TNN/issues/1070, https://github.com/onnx/models/issues/538"""
    answer = spoiled(plain, LAST, np.zeros_like)
    layer = next(x for x in answer.layers if x.name == LAST)
    assert layer.status == "all_zero" and answer.culprits[0].cause == "all_zero"


def test_not_a_number_has_its_first_producer(curves: Board) -> None:
    """https://github.com/leejet/stable-diffusion.cpp/issues/1253, https://github.com/airockchip/rknn-toolkit2/issues/504"""
    answer = curves.compare([Fault("enhanced", "nan", 3)])
    assert culprits(answer) == ["enhanced"] and answer.culprits[0].cause == "non_finite"
    assert answer.outputs[0].non_finite == 3


def test_a_scale_of_1e36(curves: Board, tmp_path: Path) -> None:
    """https://github.com/tensorflow/tensorflow/pull/62605: refused by name, never divided by."""
    artifacts = tmp_path / "artifacts"
    shutil.copytree(curves.artifacts, artifacts)
    (svg,) = artifacts.rglob("*.svg")
    text = svg.read_text()
    scale = text[text.index("tensorScale=", text.index("[5] numDim")) :].split("\n", 1)[0]
    svg.write_text(text.replace(scale, "tensorScale=1300000000000000000000000000000000000.000000"))
    for file in [*artifacts.rglob("*.prototxt"), *artifacts.rglob("*io_1.bin")]:
        file.unlink()
    answer = compare(curves.trace(), model=curves.model, tempdir=artifacts)
    assert "is refused" in finding(answer, "absurd_scale")
    assert next(x for x in answer.layers if x.data_id == 5).scale_source == "estimate"


def test_sixteen_bits_hang_and_leave_half_a_trace(tmp_path: Path) -> None:
    """https://github.com/Xilinx/Vitis-AI/issues/712 and the AM62A thread: a cut 16-bit trace is a status."""
    board = build(tmp_path, "enhancer", "16 bit")
    folder = board.trace()
    file = board.trace_of(folder, "/dec/c3/Relu_output_0")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    answer = board.compare_folder(folder)
    layer = next(x for x in answer.layers if x.name == "/dec/c3/Relu_output_0")
    assert layer.status == "truncated" and layer.cumulative is None and answer.culprits == ()


def test_bright_bands(curves: Board) -> None:
    """https://e2e.ti.com: AM62A, Zero-DCE at 16 bits: rows 40 to 55 % wrong."""
    answer = curves.compare([Fault("/dec/c3/Relu_output_0", "band")])
    assert answer.culprits[0].cause == "row_band" and "rows 19 to 25 of 48" in answer.culprits[0].detail


def test_global_average_pools_are_the_outliers(tmp_path: Path) -> None:
    """https://e2e.ti.com: AM62A, face key-points after an SDK upgrade: two pools with too coarse a scale."""
    board = build(tmp_path, "classifier")
    answer = board.compare([Fault("se_gap", "coarse", 5.0), Fault("gap", "coarse", 5.0)])
    assert {"se_gap", "gap"} == {c.layer for c in (*answer.culprits, *answer.recovered)}


# --- frames --------------------------------------------------------------------------------------------------------


def test_the_first_output_is_garbage(curves: Board) -> None:
    """https://github.com/nnstreamer/nnstreamer/pull/4010, https://github.com/vllm-project/vllm-ascend/issues/17009"""
    faults: list[list[Fault]] = [[Fault("enhanced_original", "gain", 0.3)], [], []]
    answers = [curves.compare(given, picture(curves.shape, 60 + i)) for i, given in enumerate(faults)]
    answer = merge_frames(answers)
    assert "the first inference after a start is not to be trusted" in finding(answer, "first_frame_only")


def test_only_the_first_inference_is_right(curves: Board) -> None:
    """https://github.com/google-ai-edge/LiteRT/issues/8065: frame n gives the output of frame n - 1."""
    values = [picture(curves.shape, 70 + i) for i in range(3)]
    first = curves.trace(value=values[0], name="f0")
    answers = [curves.compare_folder(first)]
    for i in (1, 2):
        before, folder = curves.trace(value=values[i - 1], name="before"), curves.trace(value=values[i], name=f"f{i}")
        for layer in ("enhanced_original", "enhanced"):
            curves.trace_of(folder, layer).write_bytes(curves.trace_of(before, layer).read_bytes())
        answers.append(curves.compare_folder(folder))
    answer = merge_frames(answers)
    assert answer.frames is not None and answer.frames.layers["enhanced_original"].flagged == 2
    assert answers[0].exit_code == 0 and not answer.frames.layers["enhanced_original"].first_only
    assert culprits(answer)[0] == "enhanced_original"
