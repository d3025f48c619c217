"""Outputs that are pictures: their loss, and how their planes lie in the tensor."""

from __future__ import annotations

from typing import Literal

from tidegauge.losses.elements import Array, ShapeMismatch, share_off

Layout = Literal["NCHW", "NHWC"]

#: More planes than a picture has (red, green, blue, alpha) mean that the layout is wrong.
MOST_CHANNELS = 4


def loss(device: Array, reference: Array, step: float) -> float:
    """Share of a picture's elements off by more than one step; non-finite ones are off. Raises `ShapeMismatch`."""
    return share_off(device, reference, step)


def planes(array: Array, layout: Layout) -> Array:
    """The picture as channels × height × width, a view. One picture, with or without its batch dimension.

    Raises `ShapeMismatch` for anything else: two dimensions are one grey plane; more than four channels are none.
    """
    picture = array[0] if array.ndim == 4 and array.shape[0] == 1 else array
    if picture.ndim == 2:
        picture = picture[None]
    elif picture.ndim == 3 and layout == "NHWC":
        picture = picture.transpose(2, 0, 1)
    if picture.ndim != 3 or not 1 <= picture.shape[0] <= MOST_CHANNELS or picture.size == 0:
        raise ShapeMismatch(
            f"an output of shape {list(array.shape)} is not one picture in layout {layout}",
            'correct `output.layout`, or set `output.kind = "raw"` in the profile',
        )
    return picture
