"""Biases that calibration moved (accuracy_level 1) where no proto tells them: a finding, no accusation."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.options import CompileOptions
from unit.compare.lab import MODELS, Board, picture


def compiled(folder: Path, model: str, level: int) -> Board:
    """A compile whose quantisation proto was not kept."""
    path = MODELS[model](folder / "net.onnx")
    shape = tuple(d.dim_value for d in onnx.load(path).graph.input[0].type.tensor_type.shape.dim)
    pasted = {"accuracy_level": str(level), "advanced_options:calibration_frames": "4"}
    chosen = CompileOptions.from_tidl({**pasted, "advanced_options:calibration_iterations": "4"})
    compile_model(path, folder / "artifacts", [{"input": picture(shape, seed)} for seed in range(4)], chosen)
    for proto in (folder / "artifacts").rglob("*.prototxt"):
        proto.unlink()
    return Board(path, folder / "artifacts", folder, shape)


@pytest.mark.parametrize(("model", "seed"), [("classifier", 3), ("classifier", 11), ("enhancer", 11)])
def test_moved_biases_are_a_finding_and_no_layer_is_accused(model: str, seed: int, tmp_path: Path) -> None:
    board = compiled(tmp_path, model, 1)
    answer = board.compare(value=picture(board.shape, seed))
    (finding,) = [f for f in answer.findings if f.kind == "biases_moved"]
    assert "quant_params_proto_path" in finding.sentence and "accuracy_level 1" in finding.sentence
    assert answer.exit_code == 0 and answer.culprits == () and answer.recovered == ()
    moved = [layer for layer in answer.layers if "biases that calibration moved" in layer.reason]
    assert moved and all(layer.verdict == "healthy" for layer in moved)


@pytest.mark.parametrize("layer", ["bn", "head"])
def test_a_fault_in_a_bias_of_such_a_compile_is_still_a_culprit(layer: str, tmp_path: Path) -> None:
    answer = compiled(tmp_path, "classifier", 1).compare([Fault(layer, "bias", 2.0)])
    assert layer in [c.layer for c in answer.culprits] and answer.exit_code == 1


@pytest.mark.parametrize("layer", ["stem", "dw", "bn", "head"])
def test_a_fault_in_a_bias_is_never_taken_for_calibration(layer: str, tmp_path: Path) -> None:
    answer = compiled(tmp_path, "classifier", 0).compare([Fault(layer, "bias", 2.0)])
    assert [c.layer for c in (*answer.culprits, *answer.recovered)] == [layer]
    assert not any(f.kind == "biases_moved" for f in answer.findings)
