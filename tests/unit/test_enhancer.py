"""The demo's model is a real one: valid, small, and it does brighten dark pictures."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest

import tidegauge
from tidegauge.camera.sensor import Sensor, expose

DATA = Path(tidegauge.__file__).parent / "demo" / "data"
MODEL = DATA / "enhancer.onnx"
PHOTOS = sorted((DATA / "photos").glob("*.jpg"))


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(-10 * np.log10(np.mean((a - b) ** 2)))


def test_model_is_valid_small_and_has_the_promised_interface() -> None:
    model = onnx.load(MODEL)
    onnx.checker.check_model(model, full_check=True)
    assert MODEL.stat().st_size < 500_000
    assert 13 <= model.opset_import[0].version <= 17
    for value, name in ((model.graph.input[0], "input"), (model.graph.output[0], "enhanced")):
        assert value.name == name
        assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [1, 3, 128, 192]


def test_operators_are_those_of_the_curve_estimators() -> None:
    graph = onnx.load(MODEL).graph
    assert {node.op_type for node in graph.node} == {"Conv", "Relu", "Concat", "Tanh", "Slice", "Mul", "Sub", "Add"}
    assert sum(node.op_type == "Slice" for node in graph.node) == 8
    names = {output for node in graph.node for output in node.output}
    assert {"/conv1/Conv_output_0", "/conv1/Relu_output_0", "/curve3/Mul_output_0"} <= names


@pytest.mark.parametrize("photo", PHOTOS, ids=lambda path: path.stem)
@pytest.mark.parametrize("exposure", [0.06, 0.12, 0.3])
def test_dark_photographs_come_closer_to_the_bright_original(
    session: onnxruntime.InferenceSession, photo: Path, exposure: float
) -> None:
    bright = cv2.cvtColor(cv2.imread(str(photo)), cv2.COLOR_BGR2RGB)
    bright = cv2.resize(bright, (192, 128), interpolation=cv2.INTER_AREA)
    dark = expose(bright, exposure, Sensor(), np.random.default_rng(1)).astype(np.float32) / 255
    enhanced = session.run(None, {"input": dark.transpose(2, 0, 1)[np.newaxis]})[0][0].transpose(1, 2, 0)
    assert enhanced.min() >= 0
    assert enhanced.max() <= 1
    target = bright.astype(np.float32) / 255
    assert psnr(enhanced, target) >= psnr(dark, target) + 3


def test_photographs_are_small_and_their_licence_is_written_down() -> None:
    assert 4 <= len(PHOTOS) <= 6
    table = (DATA / "README.md").read_text()
    for photo in PHOTOS:
        assert photo.stat().st_size <= 60_000
        assert f"`{photo.name}`" in table


def test_training_summary_is_of_this_file() -> None:
    summary = json.loads((DATA / "enhancer.json").read_text())
    assert summary["onnx_bytes"] == MODEL.stat().st_size
    weights = onnx.load(MODEL).graph.initializer
    count = sum(int(np.prod(weight.dims)) for weight in weights if weight.name.startswith("conv"))
    assert count == summary["parameters"]
    assert summary["held_out"]["psnr_enhanced_db"] > summary["held_out"]["psnr_dark_db"] + 3
