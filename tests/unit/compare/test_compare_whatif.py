"""What a change is worth: the emulated device is the device, and the figures are what recompiling gives."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.compare import advice as options
from tidegauge.compare import open_source, run, whatif
from tidegauge.compare.emulate import Emulator
from tidegauge.compare.report import words
from tidegauge.compare.types import Advice, WhatIf
from tidegauge.compare.whatif import worst
from tidegauge.virtualboard.calibration import float_session
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.network import load_artifacts
from tidegauge.virtualboard.options import CompileOptions
from unit.compare.lab import Board, build, picture


@pytest.fixture(scope="module")
def enhancer(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("whatif"), "enhancer")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("whatif"), "classifier")


def recompiled(board: Board, pasted: dict[str, str], root: Path) -> WhatIf | None:
    """The error of a compile with these options, without any fault, of the picture that `Board` traces."""
    frames = [{"input": picture(board.shape, seed)} for seed in range(4)]
    given = CompileOptions.from_tidl({options.FRAMES: "4", **pasted})
    report = compile_model(board.model, root, frames, given)
    assert not [text for text in report.warnings if "Invalid Layer Name" in text or "no compile option" in text]
    value, network = picture(board.shape, 3), load_artifacts(root)
    names = list(network.outputs)
    expected = float_session(onnx.load(board.model), []).run(names, {"input": value})
    got = Twin(network).run({"input": value}, names)
    return worst(dict(zip(names, expected, strict=True)), got)


def pasted_from(advice: tuple[Advice, ...]) -> dict[str, str]:
    found: dict[str, str] = ast.literal_eval("{" + words.paste(advice) + "\n}")
    return found


def test_unchanged_it_gives_the_devices_own_error(enhancer: Board) -> None:
    for faults in ([], [Fault("/enc/c2/Relu_output_0", "gain", 1.4)], [Fault("/Mul_0b_output_0", "band", 0.3)]):
        answer = enhancer.compare(faults, target_db=0.0)
        (output,) = answer.outputs
        assert answer.cure is not None and answer.cure.faithful
        assert output.metrics.sqnr_db == pytest.approx(answer.cure.before.sqnr_db, abs=0.02)


def test_a_targets_set_does_what_was_foretold_and_none_of_it_can_be_left_out(enhancer: Board, tmp_path: Path) -> None:
    plain = enhancer.compare(target_db=0.0)
    assert plain.cure is not None and plain.cure.reached and not plain.cure.advice
    assert plain.cure.before.sqnr_db is not None
    target = plain.cure.before.sqnr_db + 8
    cure = enhancer.compare(target_db=target).cure
    assert cure is not None and cure.reached and cure.after.error is not None
    assert cure.after.sqnr_db is not None and cure.after.sqnr_db >= target
    after = recompiled(enhancer, pasted_from(cure.advice), tmp_path / "all")
    assert after is not None and after.error == pytest.approx(cure.after.error, rel=0.05)
    names = pasted_from(cure.advice)[options.OUTPUT_16].split(",")
    alone = [name for name in names if not name.endswith("Concat_output_0")]
    for left in alone[:3]:
        fewer = ",".join(name for name in names if name != left)
        short = recompiled(enhancer, {options.OUTPUT_16: fewer}, tmp_path / str(alone.index(left)))
        assert short is not None and short.sqnr_db is not None and short.sqnr_db < target


def test_a_target_out_of_reach_says_so(classifier: Board) -> None:
    cure = classifier.compare(target_db=200.0).cure
    assert cure is not None and cure.reached is False
    assert "no set of layers reaches" in words.prediction(cure)


def test_a_culprits_figure_is_what_denying_it_gives(enhancer: Board, tmp_path: Path) -> None:
    layer = "/dec/c3/Relu_output_0"
    answer = enhancer.compare([Fault(layer, "weights", 0.5)])
    (culprit,) = answer.culprits
    assert answer.cure is not None and culprit.what_if is not None
    line = culprit.advice[0]
    assert line.option == options.DENY and set(line.value.split(",")) == {f"{layer}_conv", layer}
    assert line.what_if is not None and line.what_if.error is not None
    assert answer.cure.before.error is not None and line.what_if.error < answer.cure.before.error / 2
    assert culprit.what_if.error is not None and culprit.what_if.error <= line.what_if.error * 1.1


def test_a_coarse_pool_is_given_16_bits_and_both_are_pasted_as_one_line(classifier: Board) -> None:
    answer = classifier.compare([Fault("se_gap", "coarse", 5.0), Fault("gap", "coarse", 5.0)])
    assert {culprit.layer for culprit in answer.culprits} == {"se_gap", "gap"}
    assert {culprit.cause for culprit in answer.culprits} == {"coarse_step"}
    assert answer.cure is not None
    assert set(pasted_from(answer.cure.advice)[options.OUTPUT_16].split(",")) == {"se_gap", "gap"}
    assert answer.cure.after.error is not None and answer.cure.before.error is not None
    assert answer.cure.after.error < answer.cure.before.error


def test_saturation_below_the_range_is_no_matter_of_calibration(enhancer: Board) -> None:
    answer = enhancer.compare([Fault("/enc/c1/Relu_output_0", "saturate", 0.4)])
    assert answer.culprits[0].cause == "saturation_high"
    assert all(line.option != options.FRAMES for line in answer.culprits[0].advice)


def test_a_range_that_is_too_narrow_asks_for_frames(enhancer: Board) -> None:
    bright = np.clip(picture(enhancer.shape, 3) * 4, 0, 4).astype(np.float32)
    answer = enhancer.compare(value=bright)
    lines = {line.option: line for culprit in answer.culprits for line in culprit.advice}
    assert options.FRAMES in lines
    assert answer.cure is not None and answer.cure.after.error is not None and answer.cure.before.error is not None
    assert answer.cure.after.error < answer.cure.before.error


def test_without_a_culprit_and_with_a_good_output_there_is_nothing_to_cure(enhancer: Board) -> None:
    assert enhancer.compare().cure is None


_LINES = st.builds(
    lambda option, value, alternative: Advice(option, value, "why", alternative=alternative),
    st.sampled_from(
        [options.OUTPUT_16, options.PARAMS_16, options.DENY, options.SCALES, options.PROTO, options.FRAMES, ""]
    ),
    st.sampled_from(["a", "b", "a,c", "4"]),
    st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_LINES, max_size=8))
def test_joined_lines_are_one_dictionary_without_contradictions(lines: list[Advice]) -> None:
    joined = options.joined(lines)
    pasted = pasted_from(joined)
    assert len(pasted) == len(joined)
    for first, second in options.EXCLUDE:
        assert not (first & pasted.keys() and second & pasted.keys())
    for option in options.LISTS:
        wanted = {n for line in lines if line.option == option and not line.alternative for n in line.value.split(",")}
        assert set(filter(None, pasted.get(option, "").split(","))) == wanted


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=20), st.floats(0.01, 2.0))
def test_the_worst_output_is_the_one_with_the_largest_relative_error(values: list[float], factor: float) -> None:
    reference = np.asarray(values, np.float64)
    if not np.square(reference).sum() > 1e-6:
        return
    found = worst({"a": reference, "b": reference}, {"a": reference, "b": reference * (1 + factor)})
    assert found is not None and found.output == "b" and found.error == pytest.approx(factor, rel=1e-6)


def test_an_output_that_is_not_finite_is_no_number() -> None:
    bad: Any = np.array([1.0, np.nan])
    found = worst({"a": np.ones(2)}, {"a": bad})
    assert found == WhatIf("a", None, None)


def test_a_run_of_the_virtual_boards_own_compile_says_so(enhancer: Board, tmp_path: Path) -> None:
    assert enhancer.compare().subject.virtual
    other = tmp_path / "tempDir"
    shutil.copytree(enhancer.artifacts / "tempDir", other)  # as where only the tempDir is at hand
    with open_source(enhancer.trace(), model=enhancer.model, tempdir=other) as source:
        assert not source.subject.virtual


@pytest.mark.parametrize("layer", ["stem", "pool", "se_scale", "out", "head"])
def test_a_layer_at_16_bits_is_worth_what_the_compile_gives(classifier: Board, layer: str, tmp_path: Path) -> None:
    """Scale of the top code, 16-bit weights, and the biases of what reads the layer: else rounding falls otherwise, and
    in an output of ten values the figure is off by a fifth."""
    sources = {"model": classifier.model, "tempdir": classifier.artifacts}
    with open_source(classifier.trace(), **sources, inputs=[str(classifier.root / "traces" / "input.npy")]) as source:
        figure, names = _figure(source, layer)
    after = recompiled(classifier, {options.OUTPUT_16: ",".join(names)}, tmp_path)
    assert after is not None and after.error is not None and figure.error is not None
    assert figure.error == pytest.approx(after.error, rel=0.03)


def _figure(source: Any, layer: str) -> tuple[WhatIf, list[str]]:
    """What 16 bits for one layer are worth, and the names that an advice would give."""
    found: list[tuple[WhatIf, list[str]]] = []

    def spy(work: Any, wrong: Any, harmless: Any, outputs: Any, subgraphs: Any, target: Any, scaled: Any) -> Any:
        search = whatif._Search(work, Emulator(work, {}, subgraphs))
        changes = search.changes(work.by_twin[layer], "wide")
        found.append((search.figure(changes), [whatif.option_name(work.by_twin[name]) for name in changes]))
        return whatif.Study({}, {}, None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "study", spy)
        run.compare(source)
    return found[0]
