"""Hiding what a picture shows in the input tensor that holds it, before it is written anywhere. Pure.

What is hidden here is hidden in all that follows from it: a network that is run anew on the hidden tensor can't show
more in its outputs and traces. So a capture keeps an exact pair of input and traces, and layers compare as ever.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegauge.profile import Preprocess

#: Boxes whose sum of widths makes a blur look like a Gaussian one (central limit).
PASSES = 3
#: The middle of an 8-bit picture: what lies outside the kept region becomes a plain grey.
GREY = 128.0

#: Left, top, right, bottom of the kept region, as shares of width and height.
Region = tuple[float, float, float, float]
WHOLE: Region = (0.0, 0.0, 1.0, 1.0)


class Hiding(msgspec.Struct, frozen=True):
    """What is done to pictures. `blur`: standard deviation as a share of the shorter side, 0 for none. `keep`: the
    region that is kept.
    """

    blur: float = 0.0
    keep: Region = WHOLE

    def __bool__(self) -> bool:
        return self.blur > 0 or self.keep != WHOLE


def hidden(tensor: NDArray[Any], preprocess: Preprocess, hiding: Hiding) -> NDArray[Any]:
    """The input tensor of the picture that remains, of the same shape and element type.

    `tensor`: (1, 3, height, width) or (1, height, width, 3), as the profile says. What lies outside the region is taken
    away before the blur, which would smear it into the region. Raises ValueError for another shape.
    """
    size = (preprocess.height, preprocess.width)
    planar = preprocess.layout == "NCHW"
    if tensor.shape != ((1, 3, *size) if planar else (1, *size, 3)):
        raise ValueError(f"an input tensor of shape {list(tensor.shape)} is no picture of {size[1]}×{size[0]}")
    planes = tensor[0].astype(np.float64)
    planes = planes if planar else planes.transpose(2, 0, 1)
    planes = _kept(planes, preprocess, hiding.keep)
    if hiding.blur > 0:
        width = _box(hiding.blur * min(size))
        for _ in range(PASSES):
            planes = _averaged(_averaged(planes, width, 1), width, 2)
    values = planes if planar else planes.transpose(1, 2, 0)
    if tensor.dtype.kind in "iu":
        limits = np.iinfo(tensor.dtype)
        values = np.clip(np.rint(values), limits.min, limits.max)
    return np.ascontiguousarray(values[np.newaxis], dtype=tensor.dtype)


def _kept(planes: NDArray[np.float64], preprocess: Preprocess, keep: Region) -> NDArray[np.float64]:
    if keep == WHOLE:
        return planes
    _, height, width = planes.shape
    left, top, right, bottom = keep
    rows = slice(int(np.ceil(top * height)), int(np.floor(bottom * height)))
    columns = slice(int(np.ceil(left * width)), int(np.floor(right * width)))
    grey = (GREY - np.array(preprocess.mean)) * np.array(preprocess.scale)
    out = np.broadcast_to(grey[:, np.newaxis, np.newaxis], planes.shape).copy()
    out[:, rows, columns] = planes[:, rows, columns]
    return out


def _box(deviation: float) -> int:
    """Odd width of a box which, `PASSES` times, has this standard deviation in pixels: a box of w has (w² - 1) / 12."""
    width = np.sqrt(12 * deviation**2 / PASSES + 1)
    return max(3, 2 * int(np.ceil((width - 1) / 2)) + 1)


def _averaged(planes: NDArray[np.float64], width: int, axis: Literal[1, 2]) -> NDArray[np.float64]:
    """Mean over `width` neighbours along an axis; the border's own value goes on beyond it."""
    half = width // 2
    pads = [(half + 1, half) if each == axis else (0, 0) for each in range(3)]
    sums = np.cumsum(np.pad(planes, pads, mode="edge"), axis=axis)
    count = planes.shape[axis]
    upper = np.take(sums, range(width, width + count), axis=axis)
    lower = np.take(sums, range(count), axis=axis)
    averaged: NDArray[np.float64] = (upper - lower) / width
    return averaged
