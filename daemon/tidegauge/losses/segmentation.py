"""Label maps: which class each pixel has."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidegauge.losses.elements import Array, ShapeMismatch, all_finite, flat_pair
from tidegauge.losses.image import Layout

#: More classes than this are no label map but something else.
MOST_CLASSES = 4096


def labels(output: Array, layout: Layout) -> NDArray[np.int64]:
    """Height × width. One channel (or none) holds class numbers, several hold each class's score. `ShapeMismatch`."""
    maps = output[0] if output.ndim == 4 and output.shape[0] == 1 else output
    if maps.ndim == 3:
        maps = maps if layout == "NCHW" else maps.transpose(2, 0, 1)
        if 1 < maps.shape[0] <= MOST_CLASSES:
            return np.asarray(maps.argmax(axis=0), np.int64)
        maps = maps[0]
    if maps.ndim != 2 or maps.size == 0 or output.size != maps.size:
        raise ShapeMismatch(
            f"an output of shape {list(output.shape)} is no label map in layout {layout}",
            "correct `output.layout` or `output.kind` of the profile",
        )
    found = np.rint(maps).astype(np.int64)
    return np.clip(found, -1, MOST_CLASSES - 1)  # what is out of range is one more class


def loss(device: Array, reference: Array, layout: Layout) -> float:
    """1 − mean intersection over union, over the classes that either side has. Not finite is 1. `ShapeMismatch`."""
    pair = _pair(device, reference, layout)
    if pair is None:
        return 1.0
    one, other = pair[0].ravel() + 1, pair[1].ravel() + 1
    count = int(max(one.max(), other.max())) + 1
    both = np.bincount(one[one == other], minlength=count)
    either = np.bincount(one, minlength=count) + np.bincount(other, minlength=count) - both
    present = either > 0
    return float(np.clip(1 - np.mean(both[present] / either[present]), 0, 1))


def pixels(device: Array, reference: Array, layout: Layout) -> float:
    """Share of pixels of another class: rare classes weigh little. Not finite is 1. Raises `ShapeMismatch`."""
    pair = _pair(device, reference, layout)
    return 1.0 if pair is None else float(np.mean(pair[0] != pair[1]))


def _pair(device: Array, reference: Array, layout: Layout) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    flat_pair(device, reference)
    if not (all_finite(device) and all_finite(reference)):
        return None
    return labels(device, layout), labels(reference, layout)


def summary(output: Array, layout: Layout) -> dict[str, float]:
    """How many `classes` there are, the most frequent `class` and its `share`."""
    found, counts = np.unique(labels(output, layout), return_counts=True)
    most = int(counts.argmax())
    return {"classes": float(found.size), "class": float(found[most]), "share": float(counts[most] / counts.sum())}
