"""From a picture to the input tensor: exact values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tidegauge.errors import TidegaugeError
from tidegauge.pipeline.preprocess import check_preprocess, input_tensor
from tidegauge.profile import Preprocess

#: Two rows of three pixels, B, G, R all different.
PICTURE = np.array(
    [[[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[10, 20, 30], [40, 50, 60], [255, 0, 128]]],
    np.uint8,
)


def preprocess(**changes: Any) -> Preprocess:
    return Preprocess(**({"width": 3, "height": 2} | changes))


def test_nchw_rgb_float() -> None:
    tensor = input_tensor(PICTURE, preprocess())
    assert tensor.dtype == np.float32
    assert tensor.flags.c_contiguous
    expected = [[[[3, 6, 9], [30, 60, 128]], [[2, 5, 8], [20, 50, 0]], [[1, 4, 7], [10, 40, 255]]]]
    np.testing.assert_array_equal(tensor, np.array(expected, np.float32))


def test_nhwc_bgr_is_the_picture() -> None:
    tensor = input_tensor(PICTURE, preprocess(layout="NHWC", channel_order="BGR", dtype="uint8"))
    assert tensor.dtype == np.uint8
    np.testing.assert_array_equal(tensor, PICTURE[np.newaxis])


def test_mean_and_scale_go_with_the_tensors_channels() -> None:
    tensor = input_tensor(PICTURE, preprocess(mean=(1.0, 2.0, 3.0), scale=(2.0, 4.0, 0.5)))
    # first pixel: R 3, G 2, B 1
    assert tensor[0, :, 0, 0].tolist() == [(3 - 1) * 2.0, (2 - 2) * 4.0, (1 - 3) * 0.5]


def test_scale_to_one_is_float32_arithmetic() -> None:
    tensor = input_tensor(PICTURE, preprocess(scale=(1 / 255,) * 3))
    assert tensor[0, 2, 1, 2] == np.float32(255) * np.float32(1 / 255) == 1.0
    assert tensor[0, 0, 0, 0] == np.float32(3) * np.float32(1 / 255)


def test_int8_is_shifted_not_wrapped() -> None:
    tensor = input_tensor(PICTURE, preprocess(mean=(128.0,) * 3, dtype="int8", channel_order="BGR"))
    assert tensor.dtype == np.int8
    assert tensor[0, :, 1, 2].tolist() == [127, -128, 0]


def test_integers_are_rounded_to_the_nearest() -> None:
    picture = np.array([[[1, 3, 4]]], np.uint8)
    tensor = input_tensor(picture, Preprocess(1, 1, scale=(0.5,) * 3, channel_order="BGR", dtype="uint8"))
    assert tensor.ravel().tolist() == [0, 2, 2]  # 0.5, 1.5, 2.0: ties to even


def test_shrinking_averages_areas() -> None:
    picture = np.zeros((6, 9, 3), np.uint8)
    picture[0, 0] = picture[2, 2] = 90  # a linear reading of every third pixel would see neither
    tensor = input_tensor(picture, preprocess())
    assert tensor.shape == (1, 3, 2, 3)
    assert tensor[0, :, 0, 0].tolist() == [20.0] * 3
    assert tensor.sum() == 60.0


def test_growing_is_linear() -> None:
    picture = np.array([[[0] * 3, [100] * 3]], np.uint8)
    tensor = input_tensor(picture, Preprocess(4, 1))
    assert tensor[0, 0, 0].tolist() == [0.0, 25.0, 75.0, 100.0]  # half-pixel centres


@given(hnp.arrays(np.uint8, (2, 3, 3)))
@settings(max_examples=25, deadline=None)
def test_layouts_and_orders_hold_the_same_numbers(picture: np.ndarray) -> None:
    nchw = input_tensor(picture, preprocess())
    nhwc = input_tensor(picture, preprocess(layout="NHWC"))
    bgr = input_tensor(picture, preprocess(channel_order="BGR"))
    np.testing.assert_array_equal(nchw, nhwc.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(nchw, bgr[:, ::-1])


def test_the_picture_is_left_alone() -> None:
    picture = PICTURE.copy()
    tensor = input_tensor(picture, preprocess(layout="NHWC", channel_order="BGR", dtype="uint8"))
    tensor[...] = 0
    np.testing.assert_array_equal(picture, PICTURE)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"dtype": "int8"}, "int8"),
        ({"dtype": "uint8", "mean": (1.0, 0.0, 0.0)}, "uint8"),
        ({"dtype": "uint8", "scale": (1.0, 1.0, 1.01)}, "uint8"),
        ({"mean": (1.0,)}, "mean"),
        ({"scale": (1.0, 1.0, 1.0, 1.0)}, "scale"),
    ],
)
def test_numbers_that_would_clip_are_refused(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(TidegaugeError, match=names) as caught:
        check_preprocess(preprocess(**changes))
    assert caught.value.cure
    with pytest.raises(TidegaugeError):
        input_tensor(PICTURE, preprocess(**changes))


@given(st.sampled_from([(2, 3), (2, 3, 1), (2, 3, 4), (1, 2, 3, 3)]))
@settings(max_examples=4, deadline=None)
def test_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected uint8"):
        input_tensor(np.zeros(shape, np.uint8), preprocess())
