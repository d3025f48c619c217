"""Layouts, padding, widths, scales, ranges: what a trace holds, and what the compile's tables say of it."""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from rich.console import Console

from tidegauge.compare import Comparison, LayerResult, compare
from tidegauge.compare.compiled import Buffer, Subgraph, read_tempdir
from tidegauge.compare.layout import arrange, told_otherwise
from tidegauge.compare.report import print_comparison, render_html
from tidegauge.compare.traces import DeviceTensor, device_tensors
from tidegauge.errors import TidegaugeError
from tidegauge.tidl.trace_names import TraceName, format_name
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import Board, build, picture

Array = NDArray[Any]
LAYER = "/dec/c3/Relu_output_0"


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("board"), "enhancer")


def named(answer: Comparison, name: str) -> LayerResult:
    return next(layer for layer in answer.layers if layer.name == name)


def kinds(answer: Comparison) -> set[str]:
    return {finding.kind for finding in answer.findings}


# --- layout -----------------------------------------------------------------------------------------------------------


def test_dims_that_are_a_permutation_are_read_so_and_told(board: Board) -> None:
    """A trace whose name says height and width swapped, and whose bytes are."""
    folder = board.trace()
    file = board.trace_of(folder, LAYER)
    codes = np.fromfile(file, np.uint8).reshape(12, 48, 64)
    file.unlink()
    name = file.name.replace("00064x00048", "00048x00064")
    (folder / name).write_bytes(np.ascontiguousarray(codes.transpose(0, 2, 1)).tobytes())
    answer = board.compare_folder(folder)
    assert named(answer, LAYER).status == "ok" and answer.culprits == ()
    assert any(f.kind == "layout" and f.layer == LAYER and "swapped" in f.sentence for f in answer.findings)


def test_dims_that_are_a_permutation_without_agreement_stay_a_mismatch(board: Board) -> None:
    folder = board.trace()
    file = board.trace_of(folder, LAYER)
    file.rename(folder / file.name.replace("00064x00048", "00048x00064"))
    answer = board.compare_folder(folder)
    assert named(answer, LAYER).status == "shape_mismatch" and "layout" not in kinds(answer)


def test_bytes_in_another_order_than_the_name_says_are_a_finding_and_no_fix(board: Board) -> None:
    folder = board.trace()
    file = board.trace_of(folder, LAYER)
    codes = np.fromfile(file, np.uint8).reshape(12, 48, 64)
    file.write_bytes(np.ascontiguousarray(codes.transpose(1, 2, 0)).tobytes())
    answer = board.compare_folder(folder)
    assert named(answer, LAYER).verdict == "faulty"
    assert any(f.kind == "layout" and "NHWC" in f.sentence and f.layer == LAYER for f in answer.findings)


def test_a_permutation_needs_a_wide_margin() -> None:
    random = np.random.default_rng(0)
    value = random.normal(0, 1, (1, 4, 6, 8)).astype(np.float32)
    stored = np.ascontiguousarray(value.transpose(0, 2, 3, 1))
    right = tensor_of(stored, (1, 1, 1, 6, 8, 4))
    assert arrange(right, value) == "NHWC" and right.dims == (1, 1, 1, 4, 6, 8)
    np.testing.assert_array_equal(right.codes(), value.reshape(-1))
    noise = tensor_of(random.normal(0, 1, stored.shape).astype(np.float32), (1, 1, 1, 6, 8, 4))
    assert arrange(noise, value) is None and noise.dims == (1, 1, 1, 6, 8, 4)
    half = random.normal(0, 1, (6, 4, 6)).astype(np.float32)
    alike = (half + half.transpose(2, 1, 0))[None]  # the same with channels and width exchanged: two orders fit
    both = tensor_of(np.ascontiguousarray(alike.transpose(0, 2, 3, 1)), (1, 1, 1, 4, 6, 6))
    assert arrange(both, alike) is None
    assert told_otherwise(tensor_of(stored, (1, 1, 1, 4, 6, 8)), value) == "NHWC"
    assert told_otherwise(tensor_of(value, (1, 1, 1, 4, 6, 8)), value) is None


def tensor_of(value: Array, dims: tuple[int, ...]) -> DeviceTensor:
    data = value.tobytes()
    return DeviceTensor("x", "s", 1, "f", dims, len(data), lambda: data, dtype="float32", scale=1.0, zero_point=0)


# --- widths, dims, padding --------------------------------------------------------------------------------------------


def one(dims: tuple[int, ...], data: bytes, table: str, buffer: Buffer | None = None, kind: str = "y") -> DeviceTensor:
    name = format_name(TraceName("C7x_1", "subgraph_0", 7, dims, "padded" if kind == "padded" else "y"))  # type: ignore[arg-type]
    subgraph = Subgraph("subgraph_0", names={7: "x"}, expected=(7,))
    if buffer is not None:
        subgraph.buffers[7] = buffer
    tensors, _ = device_tensors({name: len(data)}, {name: lambda: data}, {name: table}, {"subgraph_0": subgraph})
    return tensors[0]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32"])
@pytest.mark.parametrize("dims", [(1, 1, 1, 2, 3, 4), (2, 3, 4, 2, 3, 5)], ids=["3 dims", "6 dims"])
def test_codes_of_every_width_and_up_to_six_dims(dtype: str, dims: tuple[int, ...]) -> None:
    info = np.iinfo(dtype)
    count = int(np.prod(dims))
    codes = np.random.default_rng(1).integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    tensor = one(dims, codes.astype(np.dtype(dtype).newbyteorder("<")).tobytes(), dtype)
    assert tensor.status == "ok" and tensor.dims == dims
    np.testing.assert_array_equal(tensor.codes(), codes)


@pytest.mark.parametrize("kind", ["padded", "y"])
def test_a_padded_buffer_is_read_at_its_pitch(kind: str) -> None:
    """Two lines above, three elements left and right of each line, and a gap after each channel."""
    dims, pad = (1, 1, 1, 2, 4, 5), (2, 3)
    line, channel = 5 + 6, (4 + 4) * (5 + 6) + 7
    pitch = (2 * channel, 2 * channel, 2 * channel, channel, line)
    random = np.random.default_rng(2)
    memory = random.integers(0, 255, 2 * channel).astype(np.int8)
    codes = random.integers(-128, 127, dims).astype(np.int8)
    for c in range(2):
        for y in range(4):
            start = c * channel + (y + pad[0]) * line + pad[1]
            memory[start : start + 5] = codes[0, 0, 0, c, y]
    tensor = one(dims, memory.tobytes(), "int8", Buffer(pad, pitch), kind)
    assert tensor.status == "ok", tensor.reason
    np.testing.assert_array_equal(tensor.codes(), codes.reshape(-1))
    short = one(dims, memory.tobytes()[:60], "int8", Buffer(pad, pitch), kind)
    assert short.status in ("truncated", "shape_mismatch")


def test_the_pitch_is_read_from_the_picture_of_the_network(board: Board) -> None:
    buffers = read_tempdir(board.artifacts)["subgraph_0"].buffers
    assert buffers[2] == Buffer((0, 0), (36864, 36864, 36864, 3072, 64))


def test_thirty_two_bit_codes_are_compared(board: Board, tmp_path: Path) -> None:
    """One layer's codes as 32 bits of a finer scale, in the traces and in the tables."""
    artifacts = tmp_path / "artifacts"
    shutil.copytree(board.artifacts, artifacts)
    folder = tmp_path / "traces"
    shutil.copytree(board.trace(), folder)
    file = board.trace_of(folder, LAYER)
    codes = np.fromfile(file, np.uint8).astype("<i4") << 12
    file.write_bytes(codes.tobytes())
    for table in artifacts.rglob("*.svg"):  # a node's text stands at its edges too
        node = re.compile(r"(\[5\] numDim[^<]*?elementType=)TIDL_UnsignedChar([^<]*?tensorScale=)(\d+\.\d+)")
        text, times = node.subn(lambda m: f"{m[1]}TIDL_SignedWord{m[2]}{float(m[3]) * 4096:.6f}", table.read_text())
        assert times
        table.write_text(text)
    for table in artifacts.rglob("*.prototxt"):
        table.unlink()
    answer = compare(folder, model=board.model, tempdir=artifacts)
    layer = named(answer, LAYER)
    assert layer.dtype == "int32" and layer.status == "ok" and layer.cumulative is not None
    assert (layer.cumulative.sqnr_db or 0) > 30 and answer.coverage.share == 1.0


# --- scales -----------------------------------------------------------------------------------------------------------


def changed(board: Board, root: Path, pattern: str, old: str, new: str) -> Path:
    """A copy of the compile with one number in one table replaced."""
    artifacts = root / "artifacts"
    shutil.copytree(board.artifacts, artifacts)
    (file,) = artifacts.rglob(pattern)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return artifacts


def scale_of(board: Board) -> str:
    info = read_tempdir(board.artifacts)["subgraph_0"].info(5)
    assert info is not None and info.scale is not None
    return f"{info.scale:.6f}"


@pytest.mark.parametrize("absurd", ["1300000000000000000000000000000000000.000000", "0.000000", "-4.000000", "nan"])
def test_an_absurd_scale_is_refused_by_name_and_the_next_source_taken(
    board: Board, tmp_path: Path, absurd: str
) -> None:
    artifacts = changed(board, tmp_path, "*.svg", f"tensorScale={scale_of(board)}", f"tensorScale={absurd}")
    answer = compare(board.trace(), model=board.model, tempdir=artifacts)
    finding = next(f for f in answer.findings if f.kind == "absurd_scale")
    assert LAYER in finding.sentence and "in the svg" in finding.sentence and absurd[:8] in finding.sentence
    assert named(answer, LAYER).scale_source == "proto" and answer.culprits == ()


def test_sources_that_disagree_are_a_finding(board: Board, tmp_path: Path) -> None:
    number = scale_of(board)
    artifacts = changed(board, tmp_path, "*.prototxt", number.rstrip("0"), f"{float(number) * 1.5:.6f}")
    answer = compare(board.trace(), model=board.model, tempdir=artifacts)
    finding = next(f for f in answer.findings if f.kind == "scales_disagree")
    assert LAYER in finding.sentence and "svg" in finding.sentence and "quantisation proto" in finding.sentence


def test_an_estimate_is_said_wherever_it_is_used(board: Board, tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    shutil.copytree(board.artifacts, artifacts)
    for file in [*artifacts.rglob("*.svg"), *artifacts.rglob("*.prototxt"), *artifacts.rglob("*io_1.bin")]:
        file.unlink()
    answer = compare(board.trace([Fault(LAYER, "band")]), model=board.model, tempdir=artifacts)
    assert named(answer, LAYER).scale_source == "estimate" and answer.culprits[0].layer == LAYER
    assert "is an estimate" in answer.culprits[0].sentence and "estimated_scales" in kinds(answer)
    console = Console(width=200, record=True, file=io.StringIO())
    print_comparison(answer, console)
    assert f"{LAYER} (scale estimated)" in console.export_text() and f"{LAYER} (scale estimated)" in render_html(answer)


# --- ranges -----------------------------------------------------------------------------------------------------------


def test_a_dark_picture_is_told_that_the_calibration_saw_bright_ones(board: Board) -> None:
    dark = board.compare(value=(picture(board.shape, 3) * 0.1).astype(np.float32))
    finding = next(f for f in dark.findings if f.kind == "calibrated_brighter")
    assert finding.layer == "input_netFormat" and "10%" in finding.sentence and "/Mul_0_output_0" in finding.sentence
    use = named(dark, "input_netFormat").range_use
    assert use is not None and use.used == pytest.approx(0.1, abs=0.02) and use.clipped == 0.0
    assert "calibrated_brighter" not in kinds(board.compare())


def test_a_picture_past_the_calibrated_range_is_told_with_its_share(board: Board) -> None:
    answer = board.compare(value=(picture(board.shape, 3) * 2).astype(np.float32))
    finding = next(f for f in answer.findings if f.kind == "calibrated_narrower")
    assert "%" in finding.sentence and "calibrated_narrower" not in kinds(board.compare())
    use = named(answer, "input_netFormat").range_use
    assert use is not None and use.clipped > 0.3 and use.used == 1.0


# --- weights too small to be normal --------------------------------------------------------------------------------


def test_subnormal_weights_are_flushed_counted_and_their_effect_is_told(board: Board, tmp_path: Path) -> None:
    proto = onnx.load(board.model)
    item = next(i for i in proto.graph.initializer if len(i.dims) == 4)
    weights = numpy_helper.to_array(item).copy()
    weights.reshape(-1)[:7] = np.float32(1e-40)
    item.CopyFrom(numpy_helper.from_array(weights, item.name))
    onnx.save(proto, tmp_path / "small.onnx")
    answer = compare(board.trace(), model=tmp_path / "small.onnx", tempdir=board.artifacts)
    finding = next(f for f in answer.findings if f.kind == "subnormal_weights")
    assert finding.sentence.startswith("7 weights") and "no output value changes" in finding.sentence
    outputs = {o.name: o.metrics for o in answer.outputs}
    weights.reshape(-1)[:7] = 0  # what the reference must give
    item.CopyFrom(numpy_helper.from_array(weights, item.name))
    onnx.save(proto, tmp_path / "zero.onnx")
    same = compare(board.trace(), model=tmp_path / "zero.onnx", tempdir=board.artifacts)
    assert {o.name: o.metrics for o in same.outputs} == outputs
    assert not any(f.kind == "subnormal_weights" for f in same.findings)


# --- the input tensor as a file --------------------------------------------------------------------------------------


def _npz(path: Path) -> None:
    np.savez(path.with_suffix(".npz"), a=np.zeros(3))
    path.with_suffix(".npz").rename(path)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_npz, "no NumPy array"),
        (lambda path: np.save(path, np.array(["a", "b"])), "no numbers"),
        (lambda path: np.save(path, np.array([{}], object), allow_pickle=True), "no NumPy array"),
        (lambda path: path.write_bytes(b"\x93NUMPY\x01\x00"), "no NumPy array"),
        (lambda path: path.write_bytes(b""), "no NumPy array"),
        (lambda path: np.save(path, np.zeros((2, 3), np.float32)), "has shape"),
    ],
    ids=["npz", "text", "objects", "header cut", "empty", "another shape"],
)
def test_an_input_that_is_none_is_one_sentence(
    board: Board, tmp_path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    file = tmp_path / "x.npy"
    spoil(file)
    with pytest.raises(TidegaugeError, match=said):
        compare(board.trace(name="fed"), model=board.model, tempdir=board.artifacts, inputs=[str(file)])


def test_a_picture_is_the_input_tensor_of_a_model_of_rgb_from_0_to_1(board: Board, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    pixels = np.round(picture(board.shape, 6) * 255)
    file = tmp_path / "frame.png"
    assert cv2.imwrite(str(file), pixels[0].transpose(1, 2, 0)[:, :, ::-1].astype(np.uint8))
    folder = board.trace(value=(pixels / 255).astype(np.float32), name="png")
    (folder / "input.npy").unlink()
    answer = compare(folder, model=board.model, tempdir=board.artifacts, inputs=[str(file)])
    assert answer.exit_code == 0 and answer.subject.input == "frame.png"
    cv2.imwrite(str(file), pixels[0].transpose(1, 2, 0).astype(np.uint8))
    swapped = compare(folder, model=board.model, tempdir=board.artifacts, inputs=[str(file)])
    assert swapped.culprits[0].cause == "channel_permutation", "the order of colours is looked at"


def test_without_opencv_a_picture_is_refused_with_a_cure(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    (tmp_path / "frame.png").write_bytes(b"")
    with pytest.raises(TidegaugeError, match="OpenCV is needed"):
        compare(board.trace(), model=board.model, tempdir=board.artifacts, inputs=[str(tmp_path / "frame.png")])
