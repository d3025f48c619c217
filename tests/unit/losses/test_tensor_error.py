"""Tensor errors: right where defined, None where not, and never a made-up number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.losses.elements import BLOCK, ShapeMismatch
from tidegauge.losses.tensor_error import MOST_SQNR, tensor_errors

STEP = 1 / 255


def measure(device: object, reference: object, low: float = 0.0, high: float = 1.0, step: float = STEP):  # type: ignore[no-untyped-def]
    return tensor_errors("y", np.asarray(device), np.asarray(reference), step, low, high)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.floats(0.1, 300), st.floats(-1000, 1000), st.integers(2, 3 * BLOCK))
def test_against_the_plain_formulas(seed: int, gain: float, offset: float, count: int) -> None:
    rng = np.random.default_rng(seed)
    reference = rng.normal(3, 2, count)
    device = gain * reference + offset + rng.normal(0, 0.1, count)
    found = measure(device, reference, -np.inf, np.inf)
    error = device - reference
    nmse = (error**2).sum() / (reference**2).sum()
    slope, intercept = np.polyfit(reference, device, 1)
    assert found.nmse == pytest.approx(nmse, rel=1e-9)
    assert found.sqnr_db == pytest.approx(np.clip(-10 * np.log10(nmse), -10, 60))
    assert found.cosine == pytest.approx(
        device @ reference / np.linalg.norm(device) / np.linalg.norm(reference), abs=1e-9
    )
    assert found.gain == pytest.approx(slope, rel=1e-6)
    assert found.offset == pytest.approx(intercept, rel=1e-6, abs=1e-6)
    assert found.max_steps == pytest.approx(np.abs(error).max() / STEP)


def test_a_large_mean_costs_no_digits() -> None:
    reference = 1e6 + np.linspace(0, 1, 5 * BLOCK)
    found = measure(2 * (reference - 1e6) + 5, reference)
    assert found.gain == pytest.approx(2, rel=1e-6)


def test_equal_sides() -> None:
    found = measure(np.linspace(0, 1, 100), np.linspace(0, 1, 100))
    assert (found.sqnr_db, found.nmse, found.max_steps) == (MOST_SQNR, 0, 0)
    assert (found.cosine, found.gain) == (pytest.approx(1), pytest.approx(1))


def test_cosine_is_blind_to_a_scale_that_gain_sees() -> None:
    reference = np.linspace(0, 1, 100)
    found = measure(255 * reference, reference)
    assert found.cosine == pytest.approx(1)
    assert found.gain == pytest.approx(255)
    assert found.sqnr_db == -10


def test_zero_reference_leaves_all_ratios_undefined() -> None:
    found = measure(np.full(10, 0.5), np.zeros(10))
    assert (found.sqnr_db, found.nmse, found.cosine, found.gain, found.offset) == (None,) * 5
    assert found.max_steps == pytest.approx(127.5)


def test_constant_reference_has_no_gain() -> None:
    found = measure(np.linspace(0, 1, 10), np.full(10, 0.1))
    assert (found.gain, found.offset) == (None, None)
    assert found.nmse is not None
    assert found.cosine is not None


def test_zero_device_has_no_cosine_but_an_error() -> None:
    found = measure(np.zeros(10), np.linspace(0, 1, 10))
    assert found.cosine is None
    assert (found.nmse, found.sqnr_db, found.gain) == (pytest.approx(1), pytest.approx(0), pytest.approx(0))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["device", "reference"])
def test_non_finite_elements_leave_numbers_undefined(bad: float, side: str) -> None:
    device, reference = np.linspace(0, 1, 100), np.linspace(0, 1, 100)
    (device if side == "device" else reference)[50] = bad
    found = measure(device, reference)
    assert found.finite == (0.99 if side == "device" else 1.0)
    assert (found.sqnr_db, found.nmse, found.cosine, found.gain, found.offset, found.max_steps) == (None,) * 6
    assert found.low_share == pytest.approx(1 / (99 if side == "device" else 100))


def test_shares_at_the_ends_of_range_and_of_integer_types() -> None:
    device = np.array([-0.2, 0, 0.5, 1, 1], np.float32)
    found = measure(device, np.full(5, 0.5, np.float32))
    assert (found.low_share, found.high_share) == (0.4, 0.4)
    assert (found.reference_low_share, found.reference_high_share) == (0, 0)
    found = measure(np.array([-128, 0, 1, 127], np.int8), np.array([-128, -128, 0, 0], np.int8), step=1)
    assert (found.low_share, found.high_share, found.reference_low_share) == (0.25, 0.25, 0.5)
    found = measure(device, device, -np.inf, np.inf)
    assert (found.low_share, found.high_share) == (0, 0)


def test_dequantised_end_counts_as_the_end() -> None:
    top = np.float32(255) * (np.float32(1) / np.float32(255)) - np.float32(6e-8)
    assert measure(np.full(4, top), np.zeros(4, np.float32)).high_share == 1


def test_shape_mismatch_raises() -> None:
    with pytest.raises(ShapeMismatch):
        measure(np.zeros(3), np.zeros(4))
