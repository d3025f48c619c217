"""The pictures of the stories: strips of pictures side by side, and marks on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.pictures import png

Bytes = NDArray[np.uint8]
_TOP, _GAP = 22, 6


def rgb(tensor: NDArray[Any]) -> Bytes:
    """(1, 3, H, W) or (3, H, W) in 0…1 as (H, W, 3) bytes; what is not finite is magenta."""
    planes = tensor.reshape(tensor.shape[-3:]).transpose(1, 2, 0)
    values = np.where(np.isfinite(planes), planes, 0.0)
    picture = (np.clip(values, 0, 1) * 255).round().astype(np.uint8)
    picture[~np.isfinite(planes).all(axis=2)] = (255, 0, 200)
    return picture


def strip(pictures: Sequence[tuple[str, Bytes]], zoom: int = 2) -> bytes:
    """A PNG of pictures side by side, each enlarged `zoom` times, with its label above."""
    tiles = [_labelled(label, np.kron(picture, np.ones((zoom, zoom, 1), np.uint8))) for label, picture in pictures]
    height = max(tile.shape[0] for tile in tiles)
    padded = [np.pad(t, ((0, height - t.shape[0]), (0, _GAP), (0, 0)), constant_values=255) for t in tiles]
    return png(np.concatenate(padded, 1)[:, :-_GAP])


def _labelled(label: str, picture: Bytes) -> Bytes:
    head = np.full((_TOP, picture.shape[1], 3), 255, np.uint8)
    cv2.putText(head, label, (2, 15), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (20, 20, 20), 1, cv2.LINE_AA)
    return np.concatenate([head, picture])


def marked(picture: Bytes, points: NDArray[Any], truth: NDArray[Any], zoom: int = 4) -> Bytes:
    """Points (n, 2), in shares of width and height, as crosses; where they should be as rings."""
    large = np.ascontiguousarray(np.kron(picture, np.ones((zoom, zoom, 1), np.uint8)))
    size = np.array([large.shape[1], large.shape[0]])
    for place in (truth * size).round().astype(int):
        cv2.circle(large, tuple(int(v) for v in place), 2 * zoom, (60, 220, 60), 1, cv2.LINE_AA)
    for place in (points * size).round().astype(int):
        at = tuple(int(v) for v in place)
        cv2.drawMarker(large, at, (255, 40, 40), cv2.MARKER_TILTED_CROSS, 3 * zoom, 2, cv2.LINE_AA)
    return large
