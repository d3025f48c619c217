"""An input that is off by 255 on both sides: no layer shows it, and no compile option may be advised for it."""

from __future__ import annotations

from html import unescape
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from tidegauge.compare import Comparison, compare_rungs, open_source, rejudge
from tidegauge.compare.input_scale import factor_of_255
from tidegauge.compare.report import print_comparison, render_html
from unit.compare.lab import Board, build, picture

TWICE, MISSING = "the division by 255 is applied twice", "the division by 255 is missing"


def night(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A picture of 8 bits that fills a fifth of its range."""
    return (np.round(picture(shape, 3) * 48) / 255).astype(np.float32)


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("board"), "enhancer")


def climbed(board: Board, folder: Path) -> Comparison:
    with open_source(folder, model=board.model, tempdir=board.artifacts, inputs=[str(folder / "input.npy")]) as source:
        return compare_rungs(source, source)


def terminal(answer: Comparison) -> str:
    text = StringIO()
    print_comparison(answer, Console(file=text, width=160))
    return " ".join(text.getvalue().split())


@pytest.mark.parametrize(("factor", "words"), [(1 / 255, TWICE), (255.0, MISSING)])
def test_a_night_picture_off_by_255_is_a_wrong_input_and_nothing_else(
    board: Board, tmp_path: Path, factor: float, words: str
) -> None:
    value = np.round(night(board.shape) * 255) if factor > 1 else night(board.shape) * np.float32(factor)
    answer = climbed(board, board.trace(value=value.astype(np.float32), name=f"night{factor:.3f}"))
    assert answer.exit_code == 1 and words in answer.sentence
    assert {culprit.layer for culprit in answer.culprits} <= {"input_netFormat"}, "no layer is to blame"
    assert "is not the recorded" not in answer.sentence, "the device was fed what was recorded"
    assert answer.cure is None, "16 bits or other frames would not cure it"
    told = {finding.kind for finding in answer.findings}
    assert not told & {"accumulated_error", "calibrated_brighter", "calibrated_narrower"}
    assert answer.rungs is not None and answer.rungs.enters == ("input",)
    shown, page = terminal(answer), unescape(render_html(answer))
    assert shown.startswith("WRONG INPUT") and page.index("Scale the pixels once") < page.index("The network")
    for text in (shown, page):
        assert words in text and "Scale the pixels once" in text
        assert "quantization_scale_type" not in text and "calibration_frames" not in text
    assert page.index("four rungs") < page.index("The network"), "where the error enters is read first"
    assert words in rejudge(answer, threshold=50.0).sentence


def test_a_night_picture_as_it_should_be_accuses_no_pre_processing(board: Board) -> None:
    answer = board.compare(value=night(board.shape))
    assert answer.exit_code == 0 and "255" not in answer.sentence


@pytest.mark.parametrize(
    ("value", "span", "words"),
    [
        (np.linspace(0, 0.19 / 255, 500), 1.0, TWICE),
        (np.linspace(0, 1 / 255, 500), 1.0, TWICE),
        (np.linspace(0, 255, 256), 1.0, MISSING),
        (np.arange(48.0), 1.0, MISSING),
        (np.arange(256.0), 2.64, MISSING),
        # a lens that is covered, one code of 8 bits at the most, is dark and not divided twice
        (np.array([0, 1 / 255] * 50), 1.0, ""),
        (np.zeros(100), 1.0, ""),
        (np.linspace(0, 0.19, 500), 1.0, ""),
        (np.linspace(0, 3.0, 500), 1.0, ""),
        # no pixels: values between whole numbers, or below zero
        (np.linspace(0, 48.0, 500), 1.0, ""),
        (np.arange(-20.0, 20.0), 1.0, ""),
        (np.arange(48.0), 255.0, ""),
    ],
)
def test_a_factor_is_told_by_levels_and_not_by_the_largest_value_alone(
    value: NDArray[np.float64], span: float, words: str
) -> None:
    found = factor_of_255(value.astype(np.float32), span)
    assert words in found and bool(words) == bool(found)
