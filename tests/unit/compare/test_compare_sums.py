"""The one-pass sums against plain float64 arithmetic, and the metrics that are undefined."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.compare.statistics import Encoding, measure, metrics, noise_floor


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 40)),
    dtype=st.sampled_from(["int8", "uint8", "int16", "uint16"]),
    scale=st.floats(1e-3, 1e4),
    zero=st.integers(-100, 100),
    mean=st.floats(-5, 5),
    seed=st.integers(0, 2**16),
)
def test_sums_equal_plain_arithmetic(
    shape: tuple[int, int, int], dtype: str, scale: float, zero: int, mean: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    encoding = Encoding(dtype, scale, zero)
    codes = random.integers(*encoding.code_range, size=shape, endpoint=True).astype(dtype)
    noise = random.normal(mean, 1, shape) * encoding.step
    reference = ((codes.astype(np.float64) - zero) / scale + noise).astype(np.float32)
    sums = measure(codes, reference, encoding)
    f = reference.astype(np.float64)
    v = (codes.astype(np.float64) - zero) / scale
    d = v - f
    unit = max(1.0, float(np.abs(v).max()) / encoding.step) * encoding.step
    near = {"rel": 1e-3, "abs": 1e-5 * unit**2 * codes.size}
    assert sums.count == codes.size
    assert sums.d2 == pytest.approx(np.sum(d**2), **near)
    assert sums.f2 == pytest.approx(np.sum(f**2), rel=1e-4, abs=near["abs"])
    assert sums.df == pytest.approx(np.sum(d * f), **near)
    assert sums.max_d == pytest.approx(np.abs(d).max(), rel=1e-3, abs=1e-5 * unit)
    assert sums.channel_d2 == pytest.approx(np.sum(d**2, axis=(1, 2)), **near)
    assert sums.row_d2 == pytest.approx(np.sum(d**2, axis=(0, 2)), **near)
    assert sums.column_d2 == pytest.approx(np.sum(d**2, axis=(0, 1)), **near)
    assert sums.low == np.count_nonzero(codes == encoding.code_range[0])
    assert sums.high == np.count_nonzero(codes == encoding.code_range[1])


@pytest.mark.parametrize("shape", [(2, 300, 500), (1, 3, 3 * 131072), (70000,), (1, 1), (5, 7, 11, 13)])
def test_blocks_cover_every_element_once(shape: tuple[int, ...]) -> None:
    codes = np.ones(shape, np.int8)
    sums = measure(codes, np.zeros(shape, np.float32), Encoding("int8", 2.0))
    assert sums.count == codes.size
    assert sums.d2 == pytest.approx(0.25 * codes.size)
    assert sums.row_d2 is not None and sums.column_d2 is not None and sums.channel_d2 is not None
    for profile in (sums.row_d2, sums.column_d2, sums.channel_d2):
        assert profile.sum() == pytest.approx(0.25 * codes.size)


def test_gain_and_offset_survive_a_mean_far_from_zero() -> None:
    random = np.random.default_rng(0)
    reference = (1000 + random.normal(0, 1, 200_000)).astype(np.float32)
    device = (reference * np.float32(1.1) - np.float32(100.5)).astype(np.float32)
    found = metrics(measure(device, reference, Encoding("float32")), Encoding("float32"), 1.0)
    assert found.gain == pytest.approx(1.1, abs=1e-3)
    assert found.offset == pytest.approx(-100.5, abs=1.0)


def test_a_sign_flip_of_a_tiny_layer_is_no_hundred_decibels() -> None:
    random = np.random.default_rng(1)
    reference = random.normal(0, 5e-4, 4096).astype(np.float32)
    for encoding in (Encoding("float32"), Encoding("int8", 127 / 2e-3)):
        device = -reference if encoding.dtype == "float32" else encoding.codes(-reference).astype(np.int8)
        floor = noise_floor(encoding, 5e-4)
        found = metrics(measure(device, reference, encoding), encoding, floor)
        assert found.sqnr_db == pytest.approx(-6.02, abs=0.2)
        assert found.cosine == pytest.approx(-1.0, abs=1e-3)
        assert found.gain == pytest.approx(-1.0, abs=2e-2)
        assert found.excess is not None and found.excess > 100


def test_a_zero_reference_has_neither_sqnr_nor_cosine() -> None:
    encoding = Encoding("int8", 100.0)
    found = metrics(measure(np.full(999, 3, np.int8), np.zeros(999, np.float32), encoding), encoding, 1e-5)
    assert found.sqnr_db is None and found.cosine is None and found.gain is None
    assert found.max_steps == pytest.approx(3.0) and found.bias_steps == pytest.approx(3.0, rel=1e-5)


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    device = np.ones(1000, np.float32)
    reference = np.full(1000, 0.5, np.float32)
    device[3], device[4], reference[999] = np.nan, np.inf, np.nan
    sums = measure(device, reference, Encoding("float32"))
    assert (sums.count, sums.device_bad, sums.reference_bad) == (997, 2, 1)
    assert sums.d2 == pytest.approx(997 * 0.25)


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="can't be compared"):
        measure(np.zeros(1000, np.int8), np.zeros(900, np.float32), Encoding("int8", 1.0))


def test_an_exact_tensor() -> None:
    encoding = Encoding("uint8", 255.0)
    codes = np.arange(256, dtype=np.uint8)
    found = metrics(measure(codes, encoding.values(codes), encoding), encoding, noise_floor(encoding, 1.0))
    assert found.mse == 0.0 and found.excess == 0.0 and found.max_steps == 0.0 and found.sqnr_db is None


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["int8", "uint8", "int16"]), st.floats(0.01, 1e4), st.integers(-50, 50), st.integers(0, 999))
def test_codes_and_values_round_trip(dtype: str, scale: float, zero: int, seed: int) -> None:
    encoding = Encoding(dtype, scale, zero)
    codes = np.random.default_rng(seed).integers(*encoding.code_range, size=64, endpoint=True).astype(dtype)
    assert (encoding.codes(encoding.values(codes)) == codes).all()
