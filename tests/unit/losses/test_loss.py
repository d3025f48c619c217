"""The loss an operator sees: the share of elements that are off by more than one step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tidegauge.losses import image, raw_tensor
from tidegauge.losses.elements import BLOCK, ShapeMismatch
from tidegauge.losses.select import loss_for
from tidegauge.profile import Output

STEP = 1 / 255


def codes(count: int) -> np.ndarray:
    return (np.arange(count) % 256).astype(np.float32) / np.float32(255)


def test_equal_outputs_have_no_loss() -> None:
    assert image.loss(codes(1000), codes(1000), STEP) == 0


@pytest.mark.parametrize("count", [7, BLOCK, BLOCK + 1, 3 * BLOCK - 5])
def test_share_counts_every_block(count: int) -> None:
    device = codes(count).copy()
    device[-3:] += 3 * STEP
    assert image.loss(device, codes(count), STEP) == pytest.approx(3 / count)


@pytest.mark.parametrize("low_code", [0, 1, 100, 127, 254])
def test_one_step_of_float32_codes_is_not_more_than_one_step(low_code: int) -> None:
    low = np.full(100, np.float32(low_code) / np.float32(255), np.float32)
    high = np.full(100, np.float32(low_code + 1) / np.float32(255), np.float32)
    assert image.loss(high, low, STEP) == 0
    assert image.loss(high + np.float32(0.5 * STEP), low, STEP) == 1


def test_sixteen_bit_codes_keep_their_step() -> None:
    scale = np.float32(0.0123)
    reference = (np.arange(-32768, 32767) * scale).astype(np.float32)
    device = (np.arange(-32767, 32768) * scale).astype(np.float32)
    assert raw_tensor.loss(device, reference, float(scale)) == 0
    assert raw_tensor.loss(device, reference, float(scale) / 2) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_elements_are_off_on_either_side(bad: float) -> None:
    device, reference = codes(100).copy(), codes(100).copy()
    device[3] = bad
    reference[5] = bad
    device[7] = reference[7] = bad
    assert image.loss(device, reference, STEP) == pytest.approx(0.03)


def test_unsigned_differences_do_not_wrap() -> None:
    device, reference = np.array([0, 255, 4], np.uint8), np.array([255, 0, 5], np.uint8)
    assert raw_tensor.loss(device, reference, 1) == pytest.approx(2 / 3)


def test_large_integers_keep_their_difference() -> None:
    device = np.array([2**24, 2**24], np.int32)
    reference = np.array([2**24 + 1, 2**24 + 3], np.int32)
    assert raw_tensor.loss(device, reference, 2) == 0.5


def test_shapes_must_agree_and_have_elements() -> None:
    with pytest.raises(ShapeMismatch, match=r"\[2, 3\].*\[3, 2\]"):
        image.loss(np.zeros((2, 3)), np.zeros((3, 2)), STEP)
    with pytest.raises(ShapeMismatch, match="no elements"):
        raw_tensor.loss(np.zeros((0, 3)), np.zeros((0, 3)), STEP)


@pytest.mark.parametrize("kind", ["image", "raw"])
def test_the_profile_chooses_loss_and_step(kind: str) -> None:
    output = Output("y", kind, step=0.1)  # type: ignore[arg-type]
    device, reference = np.array([0.0, 0.05, 0.3, 0.5]), np.zeros(4)
    assert loss_for(output)(device, reference) == 0.5


def test_planes_follow_the_layout_and_refuse_what_is_no_picture() -> None:
    assert image.planes(np.zeros((1, 3, 4, 5)), "NCHW").shape == (3, 4, 5)
    assert image.planes(np.zeros((1, 4, 5, 3)), "NHWC").shape == (3, 4, 5)
    assert image.planes(np.zeros((4, 5)), "NHWC").shape == (1, 4, 5)
    for shape in ((2, 3, 4, 5), (1, 9, 5, 3), (10,)):
        with pytest.raises(ShapeMismatch, match="NCHW"):
            image.planes(np.zeros(shape), "NCHW")


@settings(max_examples=40, deadline=None)
@given(
    hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(-1e6, 1e6, width=32)),
    st.floats(1e-3, 1e3),
)
def test_loss_is_a_share_and_does_not_depend_on_order(values: np.ndarray, step: float) -> None:
    device = np.roll(values, 1)
    loss = raw_tensor.loss(device, values, step)
    order = np.random.default_rng(values.size).permutation(values.size)
    assert 0 <= loss <= 1
    assert raw_tensor.loss(device[order], values[order], step) == loss
    assert raw_tensor.loss(values, device, step) == loss
