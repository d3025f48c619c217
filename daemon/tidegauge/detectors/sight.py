"""What one frame looks like, from its pixels: for the camera's health, the light context, and input drift. Pure.

Only inputs are looked at, never an answer: what is left out or sorted by these numbers biases no comparison of device
and reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegauge.detectors.camera import (
    EDGE_GRID,
    CameraReference,
    FrameLook,
    conditions,
    look,
)
from tidegauge.detectors.contexts import Light, LightContext
from tidegauge.detectors.defaults import BLACK_LUMA, BLOWN_LUMA, Condition
from tidegauge.profile import Preprocess

#: Weights of blue, green and red in luma (ITU-R BT.601).
LUMA_BGR = (0.114, 0.587, 0.299)
#: A frame is looked at with every n-th pixel of every n-th row, so that its width stays below twice this.
WIDTH = 320


class Sight(msgspec.Struct, frozen=True):
    """One frame of the camera, looked at."""

    look: FrameLook
    light: Light


def thinned(picture: NDArray[Any]) -> NDArray[Any]:
    """Every n-th pixel of every n-th row, unfiltered: a blur of some pixels is still seen, and the cost is bounded."""
    step = max(1, picture.shape[1] // WIDTH)
    return picture[::step, ::step]


def see(picture: NDArray[Any]) -> Sight | None:
    """Look at a frame: uint8, height × width × 3, BGR. None for one too small for an edge map (24 × 32 pixels)."""
    pixels = thinned(picture)
    rows, columns = EDGE_GRID
    if pixels.shape[0] < 2 * rows or pixels.shape[1] < 2 * columns:
        return None
    values = pixels.astype(np.float32)
    luma = values @ np.asarray(LUMA_BGR, np.float32)
    seen = look(luma.astype(np.uint8))
    return Sight(seen, Light(float(luma.mean()), _chroma(values)))


def judge(seen: Sight, light: LightContext, now: float, references: Mapping[str, CameraReference]) -> set[Condition]:
    """What is wrong with a frame; it also moves `light` on. `references`: the camera's view by light context.

    A black or blown frame tells nothing of the light. While the light changes, and in a context without a view of its
    own, sharpness is not judged: dusk is no fault, and must not keep its own light from being recognised. Where edges
    are hardly depends on the light, so for a covered or turned camera any context's view will do.
    """
    found = conditions(seen.look, None)
    if found:
        return found
    context = light.update(now, seen.light)
    if context in references and not light.changing:
        return conditions(seen.look, references[context])
    by_edges = [conditions(seen.look, view) & {"covered"} for view in references.values()]
    return set.intersection(*by_edges) if by_edges else set()


def input_features(picture: NDArray[Any]) -> dict[str, float]:
    """Image statistics of one input: float values on the scale 0…255, height × width × 3, BGR; for input drift.

    `luma` and `contrast` (mean and standard deviation), `chroma` (mean distance from grey), `sharpness` (logarithm of
    the variance of the Laplacian), and the shares `dark` and `bright` of luma below 16 and from 250 on.
    """
    values = picture.astype(np.float32)
    luma = values @ np.asarray(LUMA_BGR, np.float32)
    inner = luma[1:-1, 1:-1]
    laplacian = luma[:-2, 1:-1] + luma[2:, 1:-1] + luma[1:-1, :-2] + luma[1:-1, 2:] - 4 * inner
    return {
        "luma": float(luma.mean()),
        "contrast": float(luma.std()),
        "chroma": _chroma(values),
        "sharpness": float(np.log1p(laplacian.var())) if laplacian.size else 0.0,
        "dark": float(np.mean(luma < BLACK_LUMA)),
        "bright": float(np.mean(luma >= BLOWN_LUMA)),
    }


def picture_of(tensor: NDArray[Any], preprocess: Preprocess) -> NDArray[np.float32]:
    """The picture that an input tensor holds: float32, height × width × 3, BGR, on the scale 0…255.

    The inverse of `pipeline.preprocess.input_tensor` but for the resizing. Raises `ValueError` for another shape.
    """
    size = (preprocess.height, preprocess.width)
    expected = (1, 3, *size) if preprocess.layout == "NCHW" else (1, *size, 3)
    if tensor.shape != expected:
        raise ValueError(f"an input tensor of {list(tensor.shape)}, not {list(expected)}")
    values = tensor[0].astype(np.float32)
    if preprocess.layout == "NCHW":
        values = values.transpose(1, 2, 0)
    values = values / np.array(preprocess.scale, np.float32) + np.array(preprocess.mean, np.float32)
    return np.asarray(values[..., ::-1] if preprocess.channel_order == "RGB" else values, np.float32)


def _chroma(values: NDArray[np.float32]) -> float:
    return float((values.max(axis=2) - values.min(axis=2)).mean())
