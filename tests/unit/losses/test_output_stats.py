"""Statistics of every frame, and the decoded result."""

from __future__ import annotations

from math import isfinite, isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tidegauge.losses.elements import ShapeMismatch
from tidegauge.losses.output_stats import BLOCK, FULL, SHARES, output_stats, summary
from tidegauge.profile import Output

RAW = Output("y", "raw", step=0.1)


@settings(max_examples=40, deadline=None)
@given(
    hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(width=32, allow_nan=True, allow_infinity=True)),
)
def test_agrees_with_numpy_over_the_finite_elements(values: np.ndarray) -> None:
    stats = output_stats("y", values, -1, 1)
    finite = values[np.isfinite(values)].astype(np.float64)
    assert (stats.count, stats.finite) == (values.size, finite.size)
    if finite.size == 0:
        assert isnan(stats.minimum)
        assert isnan(stats.mean)
        assert isnan(stats.low_share)
        return
    assert (stats.minimum, stats.maximum) == (finite.min(), finite.max())
    assert stats.mean == pytest.approx(finite.mean(), rel=1e-5, abs=1e-6 * float(np.abs(finite).max()))
    assert stats.low_share == pytest.approx((finite <= -1 + 2e-6).mean())
    assert stats.high_share == pytest.approx((finite >= 1 - 2e-6).mean())


def test_every_block_counts() -> None:
    values = np.zeros(2 * BLOCK + 10, np.float32)
    values[-1], values[BLOCK + 1], values[0] = 7, -5, np.nan
    stats = output_stats("y", values, 0, 1)
    assert (stats.finite, stats.minimum, stats.maximum) == (values.size - 1, -5, 7)
    assert stats.high_share == pytest.approx(1 / (values.size - 1))
    assert stats.mean == pytest.approx(2 / (values.size - 1))


def test_a_large_output_is_finite_only_where_every_element_is() -> None:
    values = np.random.default_rng(1).uniform(0, 1, 720_000).astype(np.float32)
    assert SHARES < values.size <= FULL
    for position in (0, 333_333, BLOCK - 1, values.size - 1):
        for wrong in (np.nan, np.inf, -np.inf):
            damaged = values.copy()
            damaged[position] = wrong
            assert output_stats("y", damaged, 0, 1).finite == values.size - 1
    values[values < 0.25] = 0
    stats = output_stats("y", values, 0, 1)
    assert (stats.count, stats.minimum, stats.maximum) == (values.size, 0, values.max())
    assert stats.low_share == pytest.approx(0.25, abs=0.005)
    assert stats.mean == pytest.approx(float(values.mean()), abs=0.003)


def test_a_huge_output_is_looked_at_by_a_fixed_stride() -> None:
    values = np.zeros(3 * FULL, np.float32)
    values[: 2 * BLOCK], values[-1] = 0.5, 1.0
    first, second = values.copy(), values.copy()
    first[10], second[BLOCK + 10] = np.nan, np.nan  # in the first block, which is seen, and in the second, which is not
    assert output_stats("y", first, 0, 1).finite == values.size - 1
    assert output_stats("y", second, 0, 1).finite == values.size
    stats = output_stats("y", values, 0, 1)
    assert (stats.count, stats.minimum, stats.maximum) == (values.size, 0, 0.5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16])
def test_integer_ends_are_those_of_the_type(dtype: type) -> None:
    info = np.iinfo(dtype)
    stats = output_stats("y", np.array([info.min, 1, 1, info.max, info.max], dtype), 0, 1)
    assert (stats.low_share, stats.high_share) == (0.2, 0.4)
    assert stats.mean == pytest.approx((info.min + 2 + 2 * info.max) / 5)


def test_infinite_range_has_no_ends() -> None:
    stats = output_stats("y", np.array([-3e38, 3e38], np.float32), -np.inf, np.inf)
    assert (stats.low_share, stats.high_share) == (0, 0)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("order", ["RGB", "BGR"])
def test_picture_summary(layout: str, order: str) -> None:
    picture = np.zeros((3, 40, 50), np.float32)
    picture["RGB".index("G")] = 0.5
    picture[0 if order == "RGB" else 2, :, ::2] = 1.0  # red stripes
    tensor = picture[None] if layout == "NCHW" else picture.transpose(1, 2, 0)[None]
    output = Output("y", "image", 1 / 255, layout=layout, channel_order=order)  # type: ignore[arg-type]
    found = summary(output, np.ascontiguousarray(tensor))
    assert found["luma"] == pytest.approx(0.587 * 0.5 + 0.299 * 0.5, rel=1e-5)
    assert found["contrast"] == pytest.approx(0.299 / 2, rel=1e-5)
    assert found["sharpness"] == pytest.approx(0.299, rel=1e-5)
    assert (found["minimum"], found["maximum"]) == (0, 1)


def test_blur_lowers_sharpness() -> None:
    picture = np.random.default_rng(0).random((1, 1, 300, 400), np.float32)
    blurred = (picture + np.roll(picture, 1, 3) + np.roll(picture, 2, 3)) / 3
    output = Output("y", "image", 1 / 255)
    assert summary(output, blurred)["sharpness"] < 0.6 * summary(output, picture)["sharpness"]


def test_raw_summary() -> None:
    assert summary(RAW, np.array([[1.0, 5.0, 3.0]])) == {"minimum": 1, "maximum": 5, "mean": 3, "argmax": 1}


def test_what_is_not_finite_is_left_out() -> None:
    found = summary(RAW, np.array([1.0, np.nan, 3.0]))
    assert found == {}
    found = summary(Output("y", "image", 1 / 255), np.full((1, 3, 4, 4), np.inf, np.float32))
    assert all(isfinite(value) for value in found.values())
    assert "luma" not in found


def test_a_summary_of_what_is_no_picture_raises() -> None:
    with pytest.raises(ShapeMismatch):
        summary(Output("y", "image", 1 / 255), np.zeros((1, 10), np.float32).reshape(1, 10, 1, 1))


@pytest.mark.parametrize("kind", ["image", "raw"])
def test_a_summary_from_known_statistics_is_the_same(kind: str) -> None:
    output = Output("y", kind, 1 / 255)  # type: ignore[arg-type]
    values = np.random.default_rng(2).random((1, 3, 60, 80), np.float32)
    assert summary(output, values, output_stats("y", values, 0.0, 1.0)) == summary(output, values)
    values[0, 1, 2, 3] = np.nan
    found = summary(output, values, output_stats("y", values, 0.0, 1.0))
    assert "maximum" not in found, "the greatest of what is finite is not the greatest"
