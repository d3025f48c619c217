"""A reference that is read from a folder in place of the computed float run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tidegauge.compare import compare
from tidegauge.compare.given import open_given
from tidegauge.compare.model import Model, load_model
from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import Board, build, picture


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("reference"), "enhancer")


def float_run(board: Board, folder: Path, value: Any = None) -> Path:
    """Every float tensor of the model by ONNX Runtime itself, as a user would write them."""
    model = onnx.load(board.model)
    known = {output.name for output in model.graph.output}
    names = [name for node in model.graph.node for name in node.output if name not in known]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    value = picture(board.shape, 3) if value is None else value
    folder.mkdir()
    for output, found in zip(session.get_outputs(), session.run(None, {"input": value}), strict=True):
        np.save(folder / f"{output.name.replace('/', '_')}.npy", found)
    return folder


def test_folder_stands_in_for_the_computed_run_and_for_the_input(board: Board, tmp_path: Path) -> None:
    fault = Fault(layer="/enc/c2/Relu_output_0", kind="gain", amount=1.5)
    folder = float_run(board, tmp_path / "floats")
    np.save(folder / "input.npy", picture(board.shape, 3))
    plain = board.compare([fault])
    traces = board.trace([fault])
    (traces / "input.npy").unlink()

    found = compare(traces, model=board.model, tempdir=board.artifacts, reference=folder)
    assert (found.exit_code, found.culprits[0].layer, found.culprits[0].cause) == (1, fault.layer, "gain")
    assert {layer.reference for layer in found.layers} == {"given"}
    assert [f.kind for f in found.findings if f.kind.startswith("reference")] == ["reference_given"]
    for own, theirs in zip(plain.layers, found.layers, strict=True):
        assert own.cumulative is not None and theirs.cumulative is not None
        assert theirs.cumulative.mse == pytest.approx(own.cumulative.mse, rel=1e-3, abs=1e-9)


def test_values_of_the_folder_are_what_the_device_is_compared_with(board: Board, tmp_path: Path) -> None:
    folder = float_run(board, tmp_path / "floats")
    name, output = "_enc_c2_Relu_output_0.npy", "enhanced.npy"
    for file in (name, output):
        np.save(folder / file, np.load(folder / file) + np.float32(0.5))
    for file in folder.iterdir():
        if file.name not in (name, output):
            file.unlink()

    found = compare(board.trace(), model=board.model, tempdir=board.artifacts, reference=folder)
    moved = {layer.tensor: layer for layer in found.layers if layer.reference == "given"}
    assert set(moved) == {"/enc/c2/Relu_output_0", "enhanced", "enhanced_original"} & {x.tensor for x in found.layers}
    layer = moved["/enc/c2/Relu_output_0"].cumulative
    assert layer is not None and layer.mse == pytest.approx(0.25, rel=0.05)
    assert found.outputs[0].metrics.mse == pytest.approx(0.25, rel=0.05)
    assert not found.culprits  # a layer's own error does not depend on them
    (differs,) = (f for f in found.findings if f.kind == "reference_differs")
    assert differs.layer == "/enc/c2/Relu_output_0" and "not this model's float run" in differs.sentence


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:200]), "can't be read"),
        (lambda path: path.write_bytes(b""), "can't be read"),
        (lambda path: np.save(path, np.zeros((1, 12, 4, 4), np.float32)), "does not have the shape [1, 12, 48, 64]"),
        (lambda path: np.save(path, np.zeros((1, 12, 64, 48), np.float32)), "does not have the shape [1, 12, 48, 64]"),
        (lambda path: np.save(path, np.array(["a"])), "holds no numbers"),
    ],
)
def test_bad_file_is_named_and_its_tensor_computed(board: Board, tmp_path: Path, spoil: Any, said: str) -> None:
    folder = float_run(board, tmp_path / "floats")
    spoil(folder / "_enc_c2_Relu_output_0.npy")
    found = compare(board.trace(), model=board.model, tempdir=board.artifacts, reference=folder)
    (told,) = (f for f in found.findings if f.kind == "reference_unusable")
    assert told.layer == "/enc/c2/Relu_output_0" and said in told.sentence and "_enc_c2_Relu_output_0" in told.sentence
    computed = [layer.tensor for layer in found.layers if layer.reference == "computed"]
    assert computed == ["input_netFormat", "/enc/c2/Relu_output_0"]  # the folder has no input
    assert found.exit_code == 0


def test_values_that_are_not_finite_are_a_status(board: Board, tmp_path: Path) -> None:
    folder = float_run(board, tmp_path / "floats")
    path = folder / "_enc_c2_Relu_output_0.npy"
    values = np.load(path)
    values[0, 0, 0, 0] = np.nan
    np.save(path, values)
    found = compare(board.trace(), model=board.model, tempdir=board.artifacts, reference=folder)
    (layer,) = (x for x in found.layers if x.tensor == "/enc/c2/Relu_output_0")
    assert layer.status == "non_finite" and layer.cumulative is None


def test_folder_of_something_else_is_refused(board: Board, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    traces = board.trace()
    with pytest.raises(TidegaugeError, match=r"other has no \.npy and no \.bin files: name each file"):
        compare(traces, model=board.model, tempdir=board.artifacts, reference=folder)
    np.save(folder / "layer_17.npy", np.zeros(3))
    with pytest.raises(TidegaugeError, match=r"no file in .*other \(layer_17, …\) is named as a tensor"):
        compare(traces, model=board.model, tempdir=board.artifacts, reference=folder)
    (folder / "layer_17.bin").write_bytes(bytes(12))
    with pytest.raises(TidegaugeError, match="claim the same tensor"):
        open_given(folder)


def test_each_frame_has_a_folder_of_its_own(board: Board, tmp_path: Path) -> None:
    frames = tmp_path / "frames"
    floats = tmp_path / "floats"
    floats.mkdir()
    for number in (1, 2):
        value = picture(board.shape, number)
        shutil.copytree(board.trace(value=value), frames / f"frame-{number}")
        float_run(board, floats / f"frame-{number}", value)
    found = compare(frames, model=board.model, tempdir=board.artifacts, reference=floats)
    assert found.exit_code == 0 and not [f for f in found.findings if f.kind == "reference_differs"]
    (floats / "frame-2").rename(floats / "frame-3")
    with pytest.raises(TidegaugeError, match="has no folder frame-2"):
        compare(frames, model=board.model, tempdir=board.artifacts, reference=floats)


def test_channels_last_for_tflite_and_flat_floats(tmp_path: Path, board: Board) -> None:
    value = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)  # NCHW, as the model holds it
    np.save(tmp_path / "t.npy", value.transpose(0, 2, 3, 1))
    value.transpose(0, 2, 3, 1).tofile(tmp_path / "flat.bin")
    onnx_model = load_model(board.model.read_bytes(), str(board.model), None)
    tflite = Model(**{f.name: getattr(onnx_model, f.name) for f in onnx_model.__dataclass_fields__.values()})
    tflite.nhwc = {"input": (1, 3, 4, 2)}
    given = open_given(tmp_path)
    for name in ("t", "flat"):
        found = given.value(tflite, name, value)
        assert found is not None and np.array_equal(found, value)
    assert given.value(onnx_model, "t", value) is None  # an ONNX model's tensors have their channels first
    assert "t.npy does not have the shape [1, 2, 3, 4]" in given.refused["t"]


def test_command(board: Board, tmp_path: Path) -> None:
    folder = float_run(board, tmp_path / "floats")
    line = [sys.executable, "-m", "tidegauge", "compare"]
    ran = subprocess.run(
        [
            *(*line, "--device", board.trace(), "--model", board.model, "--tempdir", board.artifacts),
            *("--reference", folder, "--json", "-"),
        ],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    assert {layer["reference"] for layer in json.loads(ran.stdout)["layers"]} == {"computed", "given"}  # not the input
    refused = subprocess.run(
        [*line, "--before", folder, "--after", folder, "--reference", folder],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert refused.returncode == 2 and "--reference is for a device run compared with its model" in refused.stderr
