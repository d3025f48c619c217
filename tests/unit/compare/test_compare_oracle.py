"""Codes against predicted codes: ties are excused, wrong rounding and single channels are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tidegauge.compare.oracle import TIERS, examine, examine_floats
from tidegauge.compare.statistics import Encoding
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import build

ENCODING = Encoding("uint8", 10.0, 3)


def test_a_tie_is_excused_and_one_code_more_is_not() -> None:
    ties = np.full((1, 2, 8, 8), 2.05)  # 20.5 codes and the zero point
    for code in (23, 24):
        found = examine(ENCODING, np.full(ties.shape, code, np.uint8), ties)
        assert (found.ones, found.worst_channel, found.beyond) == (0.0, 0.0, (0.0,) * len(TIERS))
    right = np.full(ties.shape, 2.02, np.float32)
    codes = np.full(ties.shape, 23, np.uint8)
    found = examine(ENCODING, codes, right)
    assert (found.one, found.more, found.ones, found.worst_channel) == (0.0, 0.0, 0.0, 0.0)
    codes[0, 1] = 24
    found = examine(ENCODING, codes, right)
    assert (found.one, found.more, found.ones, found.worst_channel) == (0.5, 0.0, 0.5, 1.0)
    codes[0, 1] = 25
    found = examine(ENCODING, codes, right)
    assert (found.one, found.more, found.ones, found.worst_channel) == (0.0, 0.5, 0.0, 0.0)
    assert examine(ENCODING, codes[0, 0, 0], right[0, 0, 0]).worst_channel == 0.0  # no channels


def test_tiers_count_how_far_codes_are_beyond_rounding() -> None:
    value = np.full((1, 1, 8, 8), 2.0)
    for tier, nearer in zip(TIERS[1:6], TIERS[:5], strict=True):
        far = np.full(value.shape, 2.0 + (0.5 + (tier + nearer) / 2) / ENCODING.scale)
        found = examine(ENCODING, np.full(value.shape, 23, np.uint8), far)
        assert [share == 1.0 for share in found.beyond] == [t < tier for t in TIERS]


def test_floats_are_judged_by_the_tensors_peak() -> None:
    value = np.linspace(-1, 2, 1000, dtype=np.float32)
    assert not any(examine_floats(value * np.float32(1 + 2e-6), value).beyond)
    other = value.copy()
    other[7] += 0.01
    assert examine_floats(other, value).beyond[0] == 1e-3


def test_values_beyond_the_code_range_are_right_at_its_end() -> None:
    value = np.full((1, 1, 8, 8), 99.0, np.float32)
    assert not any(examine(ENCODING, np.full(value.shape, 255, np.uint8), value).beyond)


def test_one_channel_off_by_one_code_is_named_alone(tmp_path: Path) -> None:
    board = build(tmp_path, "segmenter")
    for channel in (0, 5):
        answer = board.compare([Fault("e1", "one_channel", float(channel))])
        assert [c.layer for c in (*answer.culprits, *answer.recovered)] == ["e1"]


def test_a_few_codes_off_by_two_are_named(tmp_path: Path) -> None:
    board = build(tmp_path, "segmenter")
    answer = board.compare([Fault("d1", "boundary_column", 0.01)])
    assert [c.layer for c in (*answer.culprits, *answer.recovered)] == ["d1"]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("spread", [0.02, 0.6, 30.0])
def test_codes_that_float32_settles_are_counted_as_float64_counts_them(dtype: str, spread: float) -> None:
    random = np.random.default_rng(3)
    encoding = Encoding(dtype, 37.5, 3 if dtype == "uint8" else 0)
    low, high = encoding.code_range
    codes = random.integers(low, high, (2, 5, 30, 31), endpoint=True).astype(dtype)
    value = ((codes + random.normal(0, spread, codes.shape) - encoding.zero_point) / encoding.scale).astype(np.float32)
    found = examine(encoding, codes, value)
    exact = np.clip(value.astype(np.float64) * encoding.scale + encoding.zero_point, low, high)
    apart, distance = np.abs(codes - np.rint(exact)), np.abs(codes - exact)
    assert found.one == pytest.approx((apart == 1).mean(), abs=1e-12)
    assert found.more == pytest.approx((apart > 1).mean(), abs=1e-12)
    assert found.beyond == pytest.approx([(distance - 0.5 > tier).mean() for tier in TIERS], abs=1e-12)
    if found.one:
        untied = (distance > 0.55) & (distance < 1.55)
        assert found.ones == pytest.approx(untied.mean(), abs=1e-12)
        assert found.worst_channel == pytest.approx(untied.mean(axis=(0, 2, 3)).max(), abs=1e-12)
