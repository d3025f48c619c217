"""From a picture to the model's input tensor, with the numbers of the model's profile. Pure."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from tidegauge.errors import TidegaugeError
from tidegauge.profile import Preprocess


def check_preprocess(preprocess: Preprocess) -> None:
    """Raise `TidegaugeError` where the profile's numbers can't give a tensor of its element type without clipping."""
    for key, values in (("mean", preprocess.mean), ("scale", preprocess.scale)):
        if len(values) != 3:
            raise TidegaugeError(f"preprocess.{key} has {len(values)} numbers", "give three, one a channel")
    if preprocess.dtype == "float32":
        return
    limits = np.iinfo(preprocess.dtype)
    for mean, scale in zip(preprocess.mean, preprocess.scale, strict=True):
        ends = sorted(round((code - mean) * scale) for code in (0, 255))
        if ends[0] < limits.min or ends[1] > limits.max:
            raise TidegaugeError(
                f"preprocess.mean {mean:g} and scale {scale:g} give {ends[0]}…{ends[1]}, outside {preprocess.dtype}",
                "use the numbers of the compile, or dtype float32",
            )


def _resized(picture: NDArray[Any], width: int, height: int) -> NDArray[Any]:
    """Area averages where both sides shrink, else linear: OpenCV's own advice against moiré."""
    if picture.shape[:2] == (height, width):
        return picture
    shrinks = picture.shape[0] >= height and picture.shape[1] >= width
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)


def input_tensor(picture_bgr: NDArray[Any], preprocess: Preprocess) -> NDArray[Any]:
    """The input tensor of a picture.

    `picture_bgr`: uint8, (height, width, 3), BGR. Returns a contiguous array of the profile's element type, shape
    (1, 3, height, width) or (1, height, width, 3): `(value - mean) * scale` in float32, `mean` and `scale` in the order
    of the *tensor's* channels; rounded to the nearest (ties to even) for an integer type. Raises `TidegaugeError` for
    numbers that can't be right, `ValueError` for another picture.
    """
    if picture_bgr.dtype != np.uint8 or picture_bgr.ndim != 3 or picture_bgr.shape[2] != 3:
        raise ValueError(f"expected uint8 (height, width, 3), got {picture_bgr.dtype} {picture_bgr.shape}")
    check_preprocess(preprocess)
    pixels = _resized(picture_bgr, preprocess.width, preprocess.height)
    if preprocess.channel_order == "RGB":
        pixels = pixels[..., ::-1]
    values = pixels.astype(np.float32)
    values -= np.array(preprocess.mean, np.float32)
    values *= np.array(preprocess.scale, np.float32)
    if preprocess.layout == "NCHW":
        values = values.transpose(2, 0, 1)
    if preprocess.dtype != "float32":
        values = np.rint(values)
    return np.ascontiguousarray(values[np.newaxis], dtype=preprocess.dtype)
