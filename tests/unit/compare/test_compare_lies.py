"""What must never be told as a number: each row that TI's inspector gets wrong, and what peers say of the same tensors.

TI's tool is not run here: `TI` holds what its function `_get_tensor_diff` and its inspector were seen to say of such
tensors (edgeai-tidlrunner, and layer_trace_inspector.py of edgeai-tidl-tools). Polygraphy and ONNX Runtime's debugger
are run live on the same values; their answers are asserted, so that this table stays true.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tidegauge.compare import Comparison
from tidegauge.compare.types import LayerResult
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.network import load_artifacts
from tidegauge.virtualboard.options import CompileOptions
from unit.compare.lab import Board, Net, picture

Array = NDArray[Any]
SHAPE = (1, 3, 24, 24)

#: What TI's tools say (seen with their own functions, edgeai-tidlrunner and edgeai-tidl-tools).
TI = {
    "a value is not a number": "SNR 100 dB, other metrics NaN, written as 0.0",
    "another shape": "SNR 100 dB, all errors 0.0; the inspector draws a perfect layer",
    "sign flipped, small values": "SNR 100 dB beside a MeanAbsRelDiff of 2.0",
    "device all zero": "0 dB",
    "reference all zero": "SNR 100 dB",
    "truncated file": "another shape: SNR 100 dB, all errors 0.0",
    "names that contain each other": "/f/Conv and /f/Conv_1 are both compared with /f/Conv_10",
}


def network(path: Path) -> Path:
    """Names of which one contains the other, values with a deviation of about 5e-4, and a layer of zeros."""
    net = Net(4)
    x = net.conv("input", 3, 8, "/f/Conv", relu=False, gain=0.5)
    for name, deviation in (("/f/Conv_1", 1e-4), ("/f/Conv_10", 0.1)):
        weight = net.random.normal(0, deviation, (8, 8, 3, 3)).astype(np.float32)
        x = net.add("Conv", [x, net.const(weight)], name, kernel_shape=[3, 3], pads=[1] * 4)
    zero = [x, net.const(np.zeros((8, 8, 1, 1), np.float32)), net.const(np.zeros(8, np.float32))]
    none = net.add("Conv", zero, "/f/Zero", kernel_shape=[1, 1])
    return net.save(path, SHAPE, net.add("Add", [x, none], "out"), (1, 8, 24, 24))


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    root = tmp_path_factory.mktemp("lies")
    model = network(root / "net.onnx")
    frames = [{"input": picture(SHAPE, seed)} for seed in range(4)]
    compile_model(model, root / "artifacts", frames, CompileOptions(calibration_frames=4))
    return Board(model, root / "artifacts", root, SHAPE)


def told(board: Board, tmp_path: Path, layer: str, change: Callable[[bytes], bytes]) -> tuple[Comparison, LayerResult]:
    """The answer where the bytes of one layer's trace were changed, and that layer's row."""
    shutil.copytree(board.trace(), tmp_path / "traces")
    trace = board.trace_of(tmp_path / "traces", layer)
    trace.write_bytes(change(trace.read_bytes()))
    answer = board.compare_folder(tmp_path / "traces")
    (row,) = [row for row in answer.layers if row.name == layer]
    return answer, row


def polygraphy(device: Array, reference: Array, device_name: str = "t", reference_name: str = "t") -> Any:
    """Its default comparison: passed or not, and its largest difference."""
    comparator = pytest.importorskip("polygraphy.comparator")
    logger = pytest.importorskip("polygraphy.logger").G_LOGGER
    result = comparator.IterationResult
    with logger.verbosity(logger.CRITICAL):
        (found,) = comparator.SimpleCompareFunc()(
            result(outputs={device_name: device}, runner_name="device"),
            result(outputs={reference_name: reference}, runner_name="reference"),
        ).values()
    return found


def ort_decibels(device: Array, reference: Array) -> float:
    """ONNX Runtime's debugger."""
    from onnxruntime.quantization.qdq_loss_debug import compute_signal_to_quantization_noice_ratio

    return float(compute_signal_to_quantization_noice_ratio(reference, device))


def small() -> Array:
    return np.random.default_rng(0).normal(0, 5e-4, 1000).astype(np.float32)


def test_every_row_of_the_table_has_a_test() -> None:
    names = {name for name in globals() if name.startswith("test_lie_")}
    assert {f"test_lie_{row.replace(',', '').replace(' ', '_')}" for row in TI} == names


def test_the_network_is_healthy_as_it_is(board: Board) -> None:
    answer = board.compare()
    assert answer.exit_code == 0 and answer.recovered == ()
    deviation = np.std(onnx_values(board, "/f/Conv_1"))
    assert 2e-4 < deviation < 1e-3


def onnx_values(board: Board, name: str) -> Array:
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(board.model)
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    return np.asarray(ReferenceEvaluator(model).run([name], {"input": picture(SHAPE, 3)})[0])


def test_lie_a_value_is_not_a_number(board: Board, tmp_path: Path) -> None:
    def change(data: bytes) -> bytes:
        values = np.frombuffer(data, np.float32).copy()
        values[3] = np.nan
        return values.tobytes()

    answer, row = told(board, tmp_path, "out", change)
    assert row.status == "non_finite" and row.local is None and row.cumulative is None
    assert answer.culprits[0].layer == "out" and answer.culprits[0].cause == "non_finite"
    assert answer.exit_code == 1 and "1 of" in answer.culprits[0].detail
    broken = small()
    broken[3] = np.nan
    assert not polygraphy(broken, small()) and math.isnan(polygraphy(broken, small()).max_absdiff)
    assert math.isnan(ort_decibels(broken, small()))  # neither says where, nor who was first


def test_lie_another_shape(board: Board, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    shutil.copytree(board.trace(), folder)
    trace = board.trace_of(folder, "/f/Conv_1")
    trace.with_name(trace.name.replace("00024x00024", "00024x00020")).write_bytes(trace.read_bytes()[: 8 * 24 * 20])
    trace.unlink()
    answer = board.compare_folder(folder)
    (row,) = [row for row in answer.layers if row.name == "/f/Conv_1"]
    assert row.status == "shape_mismatch" and row.local is None and row.verdict == "undecided"
    assert any(finding.kind == "shape_mismatch" for finding in answer.findings)
    assert not polygraphy(small()[:900], small())
    with pytest.raises(ValueError, match="broadcast"):
        ort_decibels(small()[:900], small())


def test_lie_sign_flipped_small_values(board: Board, tmp_path: Path) -> None:
    def change(data: bytes) -> bytes:
        return (-np.frombuffer(data, np.int8).astype(np.int16)).clip(-128, 127).astype(np.int8).tobytes()

    answer, row = told(board, tmp_path, "/f/Conv_1", change)
    (culprit,) = [c for c in (*answer.culprits, *answer.recovered) if c.layer == "/f/Conv_1"]
    assert culprit.cause == "gain" and "the sign is flipped" in culprit.detail
    assert row.local is not None and row.local.sqnr_db is not None and row.local.sqnr_db < -5.9
    assert row.local.cosine is not None and row.local.cosine < -0.99
    assert not polygraphy(-small(), small())
    assert ort_decibels(-small(), small()) == pytest.approx(-6.02, abs=0.01)


def test_lie_device_all_zero(board: Board, tmp_path: Path) -> None:
    answer, row = told(board, tmp_path, "/f/Conv_1", lambda data: bytes(len(data)))
    assert row.status == "all_zero" and row.verdict in ("faulty", "recovers")
    assert {c.cause for c in (*answer.culprits, *answer.recovered) if c.layer == "/f/Conv_1"} == {"all_zero"}
    assert not polygraphy(0 * small(), small())
    # The debugger's figure of a dead layer is the one that it gives for two equal layers of zeros.
    assert ort_decibels(0 * small(), small()) == ort_decibels(0 * small(), 0 * small()) == 0.0


def test_lie_reference_all_zero(board: Board, tmp_path: Path) -> None:
    answer, row = told(board, tmp_path, "/f/Zero", lambda data: bytes([5]) * len(data))
    assert row.status == "below_resolution"
    assert row.cumulative is not None and row.cumulative.sqnr_db is None and row.cumulative.cosine is None
    assert row.cumulative.max_steps == pytest.approx(5, abs=1e-3) and row.verdict in ("faulty", "recovers")
    assert not polygraphy(small(), 0 * small())
    assert ort_decibels(small(), 0 * small()) < -200  # of an epsilon, not of the tensor
    assert answer.exit_code == 1


def test_lie_truncated_file(board: Board, tmp_path: Path) -> None:
    answer, row = told(board, tmp_path, "/f/Conv_1", lambda data: data[: len(data) // 2])
    assert row.status == "truncated" and row.local is None and row.cumulative is None
    assert any(finding.kind == "truncated" for finding in answer.findings)


def test_lie_names_that_contain_each_other(board: Board) -> None:
    answer = board.compare([Fault("/f/Conv_1", "gain", 0.5)])
    assert {row.name: row.tensor for row in answer.layers if row.name.startswith("/f/")} == {
        name: name for name in ("/f/Conv", "/f/Conv_1", "/f/Conv_10", "/f/Zero")
    }
    assert [c.layer for c in (*answer.culprits, *answer.recovered)] == ["/f/Conv_1"]
    # By part of a name, and without one by its place: both pass as the same tensor.
    assert polygraphy(small(), small(), "/f/Conv_10", "/f/Conv_1") and polygraphy(small(), small(), "a", "b")


def test_a_healthy_layer_fails_by_a_fixed_tolerance(board: Board) -> None:
    """Half a code of an 8-bit tensor of deviation 1 is far above the tolerance of 1e-5 that peers start from."""
    value = np.random.default_rng(1).normal(0, 1, 1000).astype(np.float32)
    scale = 127 / float(np.abs(value).max())
    assert not polygraphy((np.rint(value * scale) / scale).astype(np.float32), value)
    assert load_artifacts(board.artifacts).layer("/f/Conv").quant.bits == 8 and board.compare().exit_code == 0
