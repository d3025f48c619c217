"""Key points of people or objects: where they are, relative to the size of what they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tidegauge.losses.boxes import MOST, Floats, areas, match
from tidegauge.losses.elements import Array, ShapeMismatch, all_finite
from tidegauge.profile import Output

#: COCO's spreads of 17 body key points (cocoapi, `Params.setKpParams`); any other number of points has one for all.
COCO = np.array([26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]) / 1000
OTHER_SPREAD = 0.05
#: Poses are one person's from this likeness on.
LEAST_LIKENESS = 0.1
#: Columns before the key points in rows of TI's YOLOX-pose: box, score, label.
HEAD = 6


class Poses(NamedTuple):
    """`points` n × k × 2, `scores` n, `areas` n in the square of the points' unit."""

    points: Floats
    scores: Floats
    areas: Floats

    def above(self, score: float) -> Poses:
        order = np.argsort(-self.scores, kind="stable")
        order = order[self.scores[order] >= score][:MOST]
        return Poses(self.points[order], self.scores[order], self.areas[order])


def decode(array: Array, output: Output) -> Poses:
    """Poses from the watched output. Raises `ShapeMismatch`.

    `decoder` "tidl": rows of left, top, right, bottom, score, label, then x, y, score of each point (TI's YOLOX-pose);
    "points": one pose, … × k × 2 or 3; "heatmaps": one pose, a map for each point, in `output.layout`.
    """
    if output.decoder == "tidl" and array.ndim >= 2 and array.shape[-1] > HEAD and (array.shape[-1] - HEAD) % 3 == 0:
        rows = array.reshape(-1, array.shape[-1]).astype(np.float64)
        found = Poses(rows[:, HEAD:].reshape(len(rows), -1, 3)[:, :, :2], rows[:, 4], areas(rows[:, :4]))
        return found.above(np.finfo(np.float64).tiny)  # rows of score 0 are padding
    if output.decoder == "points" and array.ndim >= 2 and array.shape[-1] in (2, 3):
        return _single(array.reshape(-1, array.shape[-1])[:, :2].astype(np.float64))
    if output.decoder == "heatmaps" and array.ndim == 4 and array.shape[0] == 1:
        maps = array[0] if output.layout == "NCHW" else array[0].transpose(2, 0, 1)
        rows, columns = np.divmod(maps.reshape(len(maps), -1).argmax(axis=1), maps.shape[2])
        return _single(np.stack([columns, rows], axis=1).astype(np.float64))
    raise ShapeMismatch(
        f"an output of shape {list(array.shape)} has no key points of form {output.decoder}",
        "correct `output.decoder` of the profile: tidl, points or heatmaps",
    )


def _single(points: Floats) -> Poses:
    """One pose that is certain; its area is that of the box around its points."""
    size = np.maximum(points.max(axis=0) - points.min(axis=0), np.finfo(np.float64).tiny)
    return Poses(points[None], np.ones(1), np.array([float(np.prod(size))]))


def likeness(device: Poses, reference: Poses) -> Floats:
    """Object keypoint similarity, n × m: mean of exp(−d² / (2 s² k²)), k twice the spread, s² the reference's area."""
    count = reference.points.shape[1]
    spread = 2 * (COCO if count == COCO.size else np.full(count, OTHER_SPREAD))
    distance2 = np.sum((device.points[:, None] - reference.points[None]) ** 2, axis=3)
    area = np.maximum(reference.areas, np.finfo(np.float64).tiny)[None, :, None]
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(-distance2 / (2 * area * spread**2)).mean(axis=2))


def compare(device: Poses, reference: Poses, threshold: float) -> float:
    """Mean of 1 − OKS over matched poses and 1 over the others, in [0, 1]; 0 where neither side has one.

    As for boxes, poses are matched from half of `threshold` on, and count from `threshold` on either side.
    """
    device, reference = device.above(threshold / 2), reference.above(threshold / 2)
    if device.points.shape[1] != reference.points.shape[1]:
        raise ShapeMismatch("the two sides have different numbers of key points", "compare outputs of one model only")
    alike = likeness(device, reference)
    pairs = match(alike, LEAST_LIKENESS)
    errors = [1 - float(alike[p]) for p in pairs if max(device.scores[p[0]], reference.scores[p[1]]) >= threshold]
    rows, columns = {row for row, _ in pairs}, {column for _, column in pairs}
    for poses, used in ((device, rows), (reference, columns)):
        errors += [1.0 for i in np.flatnonzero(poses.scores >= threshold).tolist() if i not in used]
    return float(np.clip(np.mean(errors), 0, 1)) if errors else 0.0


def loss(device: Array, reference: Array, output: Output) -> float:
    """`compare` of both sides' decoded outputs. Not finite is 1. Raises `ShapeMismatch`."""
    if not (all_finite(device) and all_finite(reference)):
        return 1.0
    return compare(decode(device, output), decode(reference, output), output.threshold)


def both_empty(device: Sequence[Array], reference: Sequence[Array], output: Output) -> bool:
    """Whether no pose counts on either side. Raises `ShapeMismatch`."""
    sides = (decode(device[0], output), decode(reference[0], output))
    return all(poses.above(output.threshold).scores.size == 0 for poses in sides)


def summary(outputs: Sequence[Array], output: Output) -> dict[str, float]:
    """`poses` at or above the threshold."""
    return {"poses": float(decode(outputs[0], output).above(output.threshold).scores.size)}
