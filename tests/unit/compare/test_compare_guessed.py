"""Where a table tells too little: weights that must be guessed, scales that are printed with too few digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tidegauge.compare.compiled import read_tempdir
from tidegauge.compare.traces import DeviceTensor
from tidegauge.tidl.tensor_table import TensorInfo, merge
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.network import load_artifacts
from tidegauge.virtualboard.options import CompileOptions
from unit.compare.lab import MODELS, Board, Net, build, picture

CONVOLUTIONS = {
    "enhancer": ("/enc/c2/Relu_output_0", "/dec/c4/Conv_output_0"),
    "classifier": ("stem", "bn", "head"),
    "segmenter": ("e2", "mid", "logit"),
}


@pytest.fixture(scope="module", params=CONVOLUTIONS)
def guessed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Board]:
    """A compile that keeps its weights' scales to itself."""
    made = build(tmp_path_factory.mktemp("board"), request.param)
    for file in made.artifacts.rglob("*.prototxt"):
        file.unlink()
    assert not any(subgraph.weights for subgraph in read_tempdir(made.artifacts).values())
    return request.param, made


def test_an_offset_of_one_code_shows_where_weights_are_guessed(guessed: tuple[str, Board]) -> None:
    name, board = guessed
    for layer in CONVOLUTIONS[name]:
        compiled = load_artifacts(board.artifacts).layer(layer)
        amount = 1.0 / (compiled.quant.scale * (compiled.high - compiled.low))
        for sign in (1, -1):
            answer = board.compare([Fault(layer, "offset", sign * amount)])
            found = (*answer.culprits, *answer.recovered)
            assert [c.layer for c in found] == [layer], (layer, sign, answer.sentence)
            assert found[0].cause in ("offset", "saturation_low", "saturation_high"), found[0].detail


def test_guessed_weights_accuse_no_healthy_layer(guessed: tuple[str, Board]) -> None:
    _, board = guessed
    for seed in (3, 21, 22, 23):
        answer = board.compare(value=picture(board.shape, seed))
        assert answer.culprits == () and answer.recovered == (), answer.sentence


def growing(path: Path) -> Path:
    """Every convolution makes its values twenty times larger, as in a network without normalisation."""
    net, x = Net(5), "input"
    for i in range(6):
        x = net.conv(x, 3 if i == 0 else 8, 8, f"c{i}", gain=20.0)
    return net.save(path, (1, 3, 24, 32), x, (1, 8, 24, 32))


@pytest.fixture(scope="module", params=["8 bit", "16 bit"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Board:
    root = tmp_path_factory.mktemp("board")
    path = growing(root / "net.onnx")
    frames = [{"input": picture((1, 3, 24, 32), seed)} for seed in range(4)]
    bits = 16 if request.param == "16 bit" else 8
    compile_model(path, root / "artifacts", frames, CompileOptions(calibration_frames=4, tensor_bits=bits))
    return Board(path, root / "artifacts", root, (1, 3, 24, 32))


def test_large_values_accuse_nobody(large: Board) -> None:
    """Their scales are smaller than six decimals can tell: the proto has all digits."""
    peak = max(abs(layer.high) for layer in load_artifacts(large.artifacts).tensors())
    assert peak > 1e5
    answer = large.compare()
    assert answer.culprits == () and answer.recovered == (), answer.sentence
    assert answer.scale_sources["proto"] >= 1 and "estimate" not in answer.scale_sources
    faulty = large.compare([Fault("c4", "gain", 1.1)])
    assert [(c.layer, c.cause) for c in faulty.culprits] == [("c4", "gain")]


def test_without_another_source_a_coarse_scale_is_estimated_and_marked(large: Board, tmp_path: Path) -> None:
    for file in large.artifacts.rglob("*.prototxt"):
        file.rename(tmp_path / file.name)
    try:
        answer = large.compare()
        assert answer.culprits == (), answer.sentence
        told = [f for f in answer.findings if f.kind == "coarse_scales"]
        assert answer.scale_sources["estimate"] >= 1 and len(told) == 1 and "c5" in told[0].sentence
        assert any(layer.scale_source == "svg" for layer in answer.layers)  # those with digits enough
        exact = {layer.name: layer.quant.scale for layer in load_artifacts(large.artifacts).tensors()}
        for layer in answer.layers:
            if layer.scale_source == "estimate" and layer.scale is not None:
                assert layer.scale == pytest.approx(exact[layer.name], abs=0.51e-6)
                assert layer.scale == pytest.approx(exact[layer.name], rel=5e-3)
        banded = large.compare([Fault("c4", "band")])
        assert [(c.layer, c.cause) for c in banded.culprits] == [("c4", "row_band")]
        assert "is an estimate" in banded.culprits[0].sentence
    finally:
        for file in tmp_path.glob("*.prototxt"):
            file.rename(large.artifacts / "tempDir" / file.name)


def info(source: str, scale: float, dtype: str = "int8") -> TensorInfo:
    return TensorInfo(7, "x", None, None, dtype, scale, 0, None, None, source)


def test_the_finer_source_is_taken_where_digits_are_too_few() -> None:
    (row,) = merge([info("svg", 0.000127)], [info("proto", 0.00012734567)])
    assert (row.source, row.scale, row.doubt) == ("proto", 0.00012734567, 0.0)
    (row,) = merge([info("svg", 12.734568)], [info("proto", 12.7345676)])
    assert (row.source, row.doubt) == ("svg", pytest.approx(0.5e-6 / 12.734568))
    (row,) = merge([info("svg", 0.000127)], [info("proto", 0.000128)])  # of another compile: a conflict, not a cure
    assert row.source == "svg" and row.doubt == pytest.approx(0.5e-6 / 0.000127)
    (row,) = merge([info("svg", 0.000127)], [info("proto", 0.00012734567, "int16")])
    assert row.source == "svg" and row.doubt > 0


@pytest.mark.parametrize(
    ("dtype", "scale", "coarse"),
    [("int8", 0.01, False), ("int8", 0.005, True), ("int16", 601.966, False), ("int16", 0.9, True)],
)
def test_digits_are_too_few_where_they_move_a_code(dtype: str, scale: float, coarse: bool) -> None:
    (row,) = merge([info("svg", scale, dtype)])
    tensor = DeviceTensor("x", "", 7, "", (1,), 1, None, dtype=dtype, scale=row.scale, doubt=row.doubt)
    assert tensor.coarse is coarse
    assert (2 * np.iinfo(dtype).max * 0.5e-6 / scale > 0.02) is coarse
    (row,) = merge((), [info("proto", scale, dtype)])
    assert row.doubt == 0.0


def test_the_model_is_valid(tmp_path: Path) -> None:
    onnx.checker.check_model(str(growing(tmp_path / "net.onnx")))


@pytest.mark.parametrize("model", ["classifier", "segmenter"])
def test_biases_that_calibration_moved_are_the_compiles(model: str, tmp_path: Path) -> None:
    """TIDL's accuracy_level 1 shifts biases, on purpose: the proto tells them, and no layer is wrong for it."""
    path = MODELS[model](tmp_path / "net.onnx")
    shape = (1, 3, *((48, 48) if model == "classifier" else (40, 56)))
    pasted = {"accuracy_level": "1", "advanced_options:calibration_frames": "4"}
    chosen = CompileOptions.from_tidl({**pasted, "advanced_options:calibration_iterations": "4"})
    compile_model(path, tmp_path / "artifacts", [{"input": picture(shape, seed)} for seed in range(4)], chosen)
    board = Board(path, tmp_path / "artifacts", tmp_path, shape)
    (subgraph,) = read_tempdir(board.artifacts).values()
    assert all(known.bias for known in subgraph.weights.values())
    answer = board.compare()
    assert answer.culprits == () and answer.recovered == (), answer.sentence
    layer = CONVOLUTIONS[model][-1]
    wrong = board.compare([Fault(layer, "bias", 2.0)])
    assert [c.layer for c in (*wrong.culprits, *wrong.recovered)] == [layer]
