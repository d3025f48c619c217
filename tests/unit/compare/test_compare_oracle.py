"""Codes against predicted codes: ties are excused, wrong rounding and single channels are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tidegauge.compare.oracle import off, ones
from tidegauge.compare.statistics import Encoding
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import build

ENCODING = Encoding("uint8", 10.0, 3)


def test_a_tie_is_excused_and_one_code_more_is_not() -> None:
    ties = np.full((1, 2, 8, 8), 2.05, np.float32)  # 20.5 codes and the zero point
    for code in (23, 24):
        codes = np.full(ties.shape, code, np.uint8)
        assert ones(ENCODING, codes, ties) == (0.0, 0.0)
    right = np.full(ties.shape, 2.02, np.float32)
    codes = np.full(ties.shape, 23, np.uint8)
    assert ones(ENCODING, codes, right) == (0.0, 0.0) and off(ENCODING, codes.ravel(), right.ravel()) == (0.0, 0.0)
    codes[0, 1] = 24
    assert ones(ENCODING, codes, right) == (0.5, 1.0) and off(ENCODING, codes.ravel(), right.ravel()) == (0.5, 0.0)
    codes[0, 1] = 25
    assert ones(ENCODING, codes, right) == (0.0, 0.0) and off(ENCODING, codes.ravel(), right.ravel()) == (0.0, 0.5)
    assert ones(ENCODING, codes[0, 0, 0], right[0, 0, 0])[1] == 0.0  # no channels


def test_values_beyond_the_code_range_are_right_at_its_end() -> None:
    value = np.full((1, 1, 8, 8), 99.0, np.float32)
    assert ones(ENCODING, np.full(value.shape, 255, np.uint8), value) == (0.0, 0.0)


def test_one_channel_off_by_one_code_is_named_alone(tmp_path: Path) -> None:
    board = build(tmp_path, "segmenter")
    for channel in (0, 5):
        answer = board.compare([Fault("e1", "one_channel", float(channel))])
        assert [c.layer for c in (*answer.culprits, *answer.recovered)] == ["e1"]


def test_a_few_codes_off_by_two_are_named(tmp_path: Path) -> None:
    board = build(tmp_path, "segmenter")
    answer = board.compare([Fault("d1", "boundary_column", 0.01)])
    assert [c.layer for c in (*answer.culprits, *answer.recovered)] == ["d1"]
