"""An input tensor on the device that is not the recorded one: what the pre-processing did, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from tidegauge.cli.compare import command
from tidegauge.compare import open_source
from tidegauge.compare.ladder import compare_rungs
from tidegauge.compare.preprocessing import find_preprocessing
from tidegauge.compare.residual import Cause, evidence
from tidegauge.compare.statistics import Encoding
from tidegauge.compare.stored import rejudge
from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard.faults import Fault, Kind
from unit.compare.lab import Board, build, picture

Array = NDArray[Any]

SHAPE = (1, 3, 48, 64)
MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1)
UNSIGNED, SIGNED = Encoding("uint8", 255.0, 0), Encoding("int8", 127 / 2.7, 0)


def normalised(x: Array) -> Array:
    return np.asarray((x - MEAN) / STD, np.float32)


def lower(x: Array) -> Array:
    """A letter-box with all of its bar above."""
    moved = np.zeros_like(x)
    moved[:, :, 6:] = x[:, :, :-6]
    return moved


def boxed(x: Array, height: int, width: int, top: int, left: int, bar: float) -> Array:
    """A letter-box by OpenCV, as a camera's pipeline makes it."""
    canvas = np.full_like(x, bar)
    small = cv2.resize(np.ascontiguousarray(x[0].transpose(1, 2, 0)), (width, height), interpolation=cv2.INTER_AREA)
    canvas[0, :, top : top + height, left : left + width] = small.transpose(2, 0, 1)
    return canvas


def black_bars(x: Array) -> Array:
    """The recorded picture of `CASES` has a grey frame; here it is black."""
    framed = x.copy()
    framed[:, :, :6] = framed[:, :, 42:] = framed[..., :8] = framed[..., 56:] = 0.0
    return framed


def as_nhwc(x: Array) -> Array:
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).reshape(x.shape)


#: What the device was fed with instead, the encoding of its input, the cause, and a part of its words.
CASES: dict[str, tuple[Callable[[Array], Array], Encoding, str, str]] = {
    "×255": (lambda x: x * 255, UNSIGNED, "gain", "×255"),
    "÷255": (lambda x: x / 255, UNSIGNED, "gain", "÷255"),
    "half as bright": (lambda x: x * np.float32(0.5), UNSIGNED, "gain", "times 0.5"),
    "BGR": (lambda x: x[:, ::-1], UNSIGNED, "channel_permutation", "red and blue"),
    "mean and std": (normalised, SIGNED, "normalisation", "mean 0.485, 0.456, 0.406 and std 0.229, 0.224, 0.225"),
    "−1 to 1": (lambda x: (x - np.float32(0.5)) * 2, UNSIGNED, "normalisation", "mean 0.5 and std 0.5"),
    "BGR, normalised": (lambda x: normalised(x)[:, ::-1], SIGNED, "channel_permutation", "std 0.225, 0.224, 0.229"),
    "NHWC": (as_nhwc, UNSIGNED, "layout", "channels last"),
    "mirrored": (lambda x: x[..., ::-1], UNSIGNED, "flip", "left for right"),
    "letter-box, smaller": (
        lambda x: boxed(x, 36, 48, 6, 8, 114 / 255),
        UNSIGNED,
        "shift",
        "rows 6 to 42 and columns 8",
    ),
    "letter-box, squeezed": (
        lambda x: boxed(x, 30, 64, 18, 0, 0.0),
        UNSIGNED,
        "shift",
        "rows 18 to 48 and columns 0 to",
    ),
    "letter-box, black bars": (black_bars, UNSIGNED, "padding_value", "hold 0 where 0.447 was recorded"),
    "letter-box": (lower, UNSIGNED, "shift", "6 rows down"),
}


def cause_of(recorded: Array, fed: Array, encoding: Encoding) -> Cause | None:
    codes = encoding.codes(np.ascontiguousarray(fed, np.float32))
    fitting = np.clip(recorded, *encoding.value_range)
    case = evidence(codes, fitting, encoding, encoding.step**2 / 12, exact=True)
    return find_preprocessing(case, recorded.reshape(case.device.shape))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [1, 2])
def test_what_the_pre_processing_did_is_named(case: str, seed: int) -> None:
    change, encoding, name, words = CASES[case]
    recorded = picture(SHAPE, seed)
    if change is black_bars:
        recorded = boxed(recorded, 36, 48, 6, 8, 114 / 255)
    cause = cause_of(recorded, change(recorded), encoding)
    assert cause is not None and cause.name == name, cause
    assert words in cause.detail and cause.explained is not None and cause.explained > 0.9


@pytest.mark.parametrize("seed", [1, 2])
def test_bars_that_are_missing_on_the_device_are_told(seed: int) -> None:
    whole = picture(SHAPE, seed)
    cause = cause_of(boxed(whole, 36, 48, 6, 8, 0.5), whole, UNSIGNED)
    assert cause is not None and cause.name == "shift" and "fills rows 0 to 48 and columns 0 to 64" in cause.detail


def test_a_recorded_input_that_is_the_wrong_one_is_told_the_other_way_round() -> None:
    x = picture(SHAPE, 3)
    cause = cause_of(normalised(x), x, UNSIGNED)
    assert cause is not None and cause.name == "normalisation" and "once less than recorded" in cause.detail
    cause = cause_of(x * 255, x, UNSIGNED)
    assert cause is not None and cause.name == "gain" and "÷255" in cause.detail


@pytest.mark.parametrize("seed", range(4))
def test_another_picture_has_no_named_cause(seed: int) -> None:
    assert cause_of(picture(SHAPE, seed), picture(SHAPE, 50 + seed), UNSIGNED) is None
    noise = np.random.default_rng(seed).random(SHAPE).astype(np.float32)
    assert cause_of(picture(SHAPE, seed), noise, UNSIGNED) is None


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("preprocessing"), "enhancer")


@pytest.mark.parametrize("case", ["BGR", "NHWC", "−1 to 1", "letter-box"])
def test_the_verdict_is_on_the_pre_processing_and_accuses_no_layer(board: Board, case: str) -> None:
    recorded = picture(board.shape, 3)
    folder = board.trace(value=np.ascontiguousarray(CASES[case][0](recorded), np.float32))
    np.save(folder / "input.npy", recorded)
    answer = board.compare_folder(folder)
    assert answer.exit_code == 1 and answer.sentence.startswith("The pre-processing differs")
    assert [c.layer for c in answer.culprits] == ["input_netFormat"]
    assert answer.culprits[0].cause == CASES[case][2]
    assert not any(item.option.startswith("deny_list") for item in answer.culprits[0].advice)


@pytest.mark.parametrize("seed", [50, 51, 52])
def test_another_picture_stops_the_analysis_too(board: Board, seed: int) -> None:
    folder = board.trace([Fault("enhanced_original", "gain", 3.0)], picture(board.shape, seed))
    np.save(folder / "input.npy", picture(board.shape, 3))
    answer = board.compare_folder(folder)
    assert [(c.layer, c.cause) for c in answer.culprits] == [("input_netFormat", "other_input")]
    assert answer.exit_code == 1
    assert "another picture was fed than the recorded one" in answer.sentence
    assert {layer.verdict for layer in answer.layers if layer.name != "input_netFormat"} == {"undecided"}
    assert "record the input in the same call" in answer.culprits[0].advice[1].why
    answer = board.compare_folder(folder, past_input=True)
    assert [c.layer for c in answer.culprits] == ["input_netFormat", "enhanced_original"]


def test_another_picture_whose_difference_lies_mostly_in_some_rows_is_no_band(board: Board) -> None:
    """A landscape at noon and one at night differ most in the sky."""
    contrast = np.where(np.arange(board.shape[2]) < 0.6 * board.shape[2], 1.0, 0.6)[:, None]
    fed, recorded = (
        (0.5 + contrast * (np.random.default_rng(seed).random(board.shape) - 0.5)).astype(np.float32) for seed in (3, 4)
    )
    folder = board.trace(value=fed, name="landscape")
    np.save(folder / "input.npy", recorded)
    answer = board.compare_folder(folder)
    assert [(c.layer, c.cause) for c in answer.culprits] == [("input_netFormat", "other_input")]


@pytest.mark.parametrize("kind", ["band", "tiny", "shear", "boundary_column", "rounding", "one_channel"])
def test_an_input_that_is_wrong_in_a_part_stops_nothing(board: Board, kind: Kind) -> None:
    answer = board.compare([Fault("input_netFormat", kind), Fault("enhanced_original", "gain", 3.0)])
    assert {c.layer for c in answer.culprits} >= {"enhanced_original"}
    assert "other_input" not in {c.cause for c in answer.culprits}


def test_no_baseline_is_learned_from_a_run_of_another_input(board: Board, tmp_path: Path) -> None:
    folder = board.trace(value=picture(board.shape, 50))
    np.save(folder / "input.npy", picture(board.shape, 3))
    line = [str(folder), "--model", str(board.model), "--tempdir", str(board.artifacts)]
    ran = CliRunner().invoke(command, [*line, "--write-baseline", str(tmp_path / "baseline.json")])
    assert isinstance(ran.exception, TidegaugeError) and "is no healthy run" in str(ran.exception)
    assert not (tmp_path / "baseline.json").exists()


def test_a_wrong_input_stops_the_analysis_unless_it_shall_go_on(board: Board) -> None:
    recorded = picture(board.shape, 3)
    folder = board.trace([Fault("enhanced_original", "gain", 3.0)], np.ascontiguousarray(recorded[:, ::-1]))
    np.save(folder / "input.npy", recorded)
    answer = board.compare_folder(folder)
    assert [c.layer for c in answer.culprits] == ["input_netFormat"] and answer.exit_code == 1
    assert answer.sentence.endswith("all have seen another picture than the float run.")
    others = [layer for layer in answer.layers if layer.name != "input_netFormat"]
    assert {layer.verdict for layer in others} == {"undecided"} and answer.recovered == ()
    assert all("another input" in layer.reason for layer in others if layer.status == "ok")
    assert [c.layer for c in rejudge(answer, threshold=5.0).culprits] == ["input_netFormat"]
    answer = board.compare_folder(folder, past_input=True)
    assert [c.layer for c in answer.culprits] == ["input_netFormat", "enhanced_original"]


def test_where_no_layer_was_judged_nothing_is_called_right(board: Board) -> None:
    recorded = picture(board.shape, 3)
    folder = board.trace([Fault("enhanced_original", "gain", 3.0)], np.ascontiguousarray(recorded[:, ::-1]))
    np.save(folder / "input.npy", recorded)
    inputs = [str(folder / "input.npy")]
    with open_source(folder, model=board.model, tempdir=board.artifacts, inputs=inputs) as source:
        answer = compare_rungs(source)
    assert answer.rungs is not None
    states = {step.stage: step.state for step in answer.rungs.steps}
    assert states["input"] == "error" and states["import"] == states["quantisation"] == "undecided"
    stopped = board.compare_folder(folder, target_db=60.0)
    assert stopped.cure is None or not any("16bit" in item.option for item in stopped.cure.advice)
    with pytest.raises(TidegaugeError, match="--past-input"):
        rejudge(stopped, threshold=1e11)
