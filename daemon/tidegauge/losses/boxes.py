"""Boxes as corners, their overlap, non-maximum suppression and matching. One code for both sides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Candidates that are looked at, the highest scores first: bounds time and memory for a broken output.
MOST = 300


class Detections(NamedTuple):
    """`boxes` n × 4 (left, top, right, bottom), `scores` n in the model's own scale, `labels` n."""

    boxes: Floats
    scores: Floats
    labels: Ints

    def chosen(self, which: NDArray[np.bool_] | Ints) -> Detections:
        return Detections(self.boxes[which], self.scores[which], self.labels[which])

    def above(self, score: float) -> Detections:
        """The highest scores from `score` on, at most 300, in descending order."""
        order = np.argsort(-self.scores, kind="stable")
        return self.chosen(order[self.scores[order] >= score][:MOST])


def overlaps(one: Floats, other: Floats) -> Floats:
    """Intersection over union, n × m; 0 where a box has no area."""
    left_top = np.maximum(one[:, None, :2], other[None, :, :2])
    right_bottom = np.minimum(one[:, None, 2:], other[None, :, 2:])
    common = np.prod(np.clip(right_bottom - left_top, 0, None), axis=2)
    union = areas(one)[:, None] + areas(other)[None] - common
    return np.asarray(np.where(union > 0, common / np.where(union > 0, union, 1), 0.0))


def areas(boxes: Floats) -> Floats:
    return np.asarray(np.prod(np.clip(boxes[:, 2:] - boxes[:, :2], 0, None), axis=1))


def suppress(found: Detections, overlap: float) -> Detections:
    """Greedy non-maximum suppression within each class; `found` in descending order of scores."""
    together = overlaps(found.boxes, found.boxes) > overlap
    together &= found.labels[:, None] == found.labels[None]
    kept = np.ones(found.scores.size, bool)
    for index in range(kept.size):
        if kept[index]:
            kept[index + 1 :] &= ~together[index, index + 1 :]
    return found.chosen(kept)


def match(likeness: Floats, least: float) -> list[tuple[int, int]]:
    """Pairs (row, column), the most alike first, each used once, down to `least`."""
    rows, columns = np.nonzero(likeness >= least)
    order = np.argsort(-likeness[rows, columns], kind="stable")
    pairs: list[tuple[int, int]] = []
    free_rows, free_columns = set(range(likeness.shape[0])), set(range(likeness.shape[1]))
    for row, column in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if row in free_rows and column in free_columns:
            pairs.append((row, column))
            free_rows.discard(row)
            free_columns.discard(column)
    return pairs
