"""Every kind of fault of the virtual board on its layers: the layer and the cause are named, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.faults import INSIDE, KINDS, Fault, eligible_layers
from tidegauge.virtualboard.options import CompileOptions
from unit.compare.lab import MODELS, OPTIONS, Board, Net, build, picture

CAUSES = {
    "gain": {"gain"},
    "offset": {"offset"},
    "band": {"row_band"},
    "zero": {"all_zero"},
    # A layer whose values all pass the bound is all at its top: for a float layer that is just a constant.
    "saturate": {"saturation_high", "constant"},
    "channel_swap": {"channel_permutation"},
    "nan": {"non_finite"},
}
#: Tensors of 8 or 16 values leave several causes that explain everything; the layer must still be right.
TINY = {"se_gap", "se_fc1", "se_fc2", "se_sig"}


@pytest.fixture(scope="module", params=[(m, o) for m in MODELS for o in OPTIONS], ids=lambda p: f"{p[0]} {p[1]}")
def board(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Board:
    model, options = request.param
    return build(tmp_path_factory.mktemp(model), model, options)


def test_a_healthy_run_has_no_culprit(board: Board) -> None:
    for seed in (3, 91):
        answer = board.compare(value=picture(board.shape, seed))
        assert answer.culprits == () and answer.recovered == (), answer.sentence
        assert answer.exit_code == 0 and answer.coverage.share == 1.0
        assert answer.findings == ()
        assert {layer.verdict for layer in answer.layers} == {"healthy"}
        assert max(layer.excess or 0.0 for layer in answer.layers) < 3.0  # far below the threshold of ten


def test_every_fault_is_named_with_its_cause(board: Board) -> None:
    """A quarter of the layers for each kind; together the twelve boards cover them all several times."""
    tried = right = 0
    eligible = eligible_layers(board.artifacts)
    for number, kind in enumerate(kind for kind in KINDS if kind in CAUSES):
        for layer in eligible[kind][number % 4 :: 4]:
            answer = board.compare([Fault(layer, kind)])
            named = answer.culprits or answer.recovered
            assert [culprit.layer for culprit in named] == [layer], f"{kind} on {layer}: {answer.sentence}"
            tried += 1
            right += named[0].cause in CAUSES[kind]
            if layer not in TINY:
                assert named[0].cause in CAUSES[kind], f"{kind} on {layer}: {answer.sentence}"
    assert tried >= 10 and right / tried > 0.9


@pytest.mark.parametrize("options", ["8 bit", "16 bit"])
def test_faults_inside_the_arithmetic_blame_their_layer(tmp_path: Path, options: str) -> None:
    """Wrong weights, bias, accumulator or shift: kinds that no cause was written for."""
    board = build(tmp_path, "segmenter", options)
    eligible = eligible_layers(board.artifacts)
    for kind in sorted(INSIDE):
        for layer in eligible[kind][::2]:
            answer = board.compare([Fault(layer, kind)])
            assert [c.layer for c in (*answer.culprits, *answer.recovered)] == [layer], f"{kind} on {layer}"


def test_codes_off_by_one_are_a_note_not_a_culprit(tmp_path: Path) -> None:
    board = build(tmp_path, "segmenter")
    answer = board.compare([Fault("e2", "rounding")])
    assert answer.exit_code == 0 and answer.culprits == ()
    assert [f.kind for f in answer.findings] == ["off_by_one"] and "e2" in answer.findings[0].sentence


def test_two_faults_are_both_named(tmp_path: Path) -> None:
    board = build(tmp_path, "enhancer")
    answer = board.compare([Fault("/enc/c2/Relu_output_0", "gain", 1.3), Fault("/Tanh_output_0", "band")])
    assert {(c.layer, c.cause) for c in answer.culprits} == {
        ("/enc/c2/Relu_output_0", "gain"),
        ("/Tanh_output_0", "row_band"),
    }
    assert answer.exit_code == 1
    after = next(layer for layer in answer.layers if layer.name == "/dec/c3/Relu_output_0")
    assert after.verdict == "inherits" and "/enc/c2/Relu_output_0" in after.reason


def test_a_fault_without_effect_recovers(tmp_path: Path) -> None:
    """Bound far above what the next layer's clipping lets through: wrong by itself, not a culprit."""
    board = build(tmp_path, "classifier")
    answer = board.compare([Fault("prob_original", "gain", 1.0001)])
    assert answer.exit_code == 0 and answer.culprits == ()


def test_memory_groups_do_not_change_the_answer(tmp_path: Path) -> None:
    board = build(tmp_path, "segmenter")
    folder = board.trace([Fault("mid", "offset")])
    whole = board.compare_folder(folder)
    pieces = board.compare_folder(folder, group_bytes=40_000)
    assert [layer.excess for layer in pieces.layers] == pytest.approx([layer.excess for layer in whole.layers])
    assert [c.layer for c in pieces.culprits] == [c.layer for c in whole.culprits] == ["mid"]


def test_an_input_multiplied_by_255_twice_blames_the_input(tmp_path: Path) -> None:
    board = build(tmp_path, "enhancer")
    answer = board.compare(value=picture(board.shape, 3) * 255)
    assert answer.culprits[0].layer == "input_netFormat" and answer.culprits[0].cause == "saturation_high"
    finding = next(f for f in answer.findings if f.kind == "input_factor")
    assert "255" in finding.sentence
    advice = answer.culprits[0].advice[0]
    assert "scale the pixels once" in advice.why and not advice.option


@pytest.mark.parametrize("layer", ["part0", "part1"])
def test_each_output_of_a_layer_with_several_is_judged_by_itself(layer: str, tmp_path: Path) -> None:
    net, shape = Net(5), (1, 3, 48, 64)
    stem = net.conv("input", 3, 12, "stem")
    net.nodes.append(helper.make_node("Split", [stem, net.const(np.array([4, 8]))], ["part0", "part1"], axis=1))
    net.add("Add", [net.conv("part0", 4, 8, "right"), "part1"], "out")
    model = net.save(tmp_path / "net.onnx", shape, "out", (1, 8, 48, 64))
    frames = [{"input": picture(shape, seed)} for seed in range(4)]
    compile_model(model, tmp_path / "artifacts", frames, CompileOptions(calibration_frames=4))
    board = Board(model, tmp_path / "artifacts", tmp_path, shape)
    answer = board.compare([Fault(layer, "gain", 1.5)])
    assert [c.layer for c in answer.culprits] == [layer] and answer.culprits[0].cause == "gain"
    assert {x.name for x in answer.layers if x.verdict == "undecided"} == set() and answer.exit_code == 1
    assert board.compare().exit_code == 0
