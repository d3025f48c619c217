"""Boxes of the device against those of the reference: localisation, recall, precision in one number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tidegauge.losses.boxes import Detections, match, overlaps
from tidegauge.losses.detection_decoders import decode
from tidegauge.losses.elements import Array, all_finite
from tidegauge.profile import Output

#: Boxes of one object overlap by at least this.
LEAST_OVERLAP = 0.5


class Agreement(NamedTuple):
    """`loss` in [0, 1]; pairs `matched`, device boxes without a counterpart (`spurious`), reference ones (`missing`).

    `empty`: neither side has an object, so the loss of 0 says little; such frames are counted apart.
    """

    loss: float
    matched: int
    spurious: int
    missing: int

    @property
    def empty(self) -> bool:
        return self.matched + self.spurious + self.missing == 0


def compare(device: Detections, reference: Detections, threshold: float) -> Agreement:
    """Localisation-recall-precision error: (FP + FN + Σ(1 − IoU)/(1 − τ)) / (TP + FP + FN), τ = 0.5, within a class.

    Oksuz et al., "Localization Recall Precision", ECCV 2018. Boxes are matched from half of `threshold` on, but only
    those count of which one side's score is at least `threshold`: an object at 0.501 and 0.499 is not lost.
    """
    device, reference = device.above(threshold / 2), reference.above(threshold / 2)
    likeness = overlaps(device.boxes, reference.boxes)
    likeness[device.labels[:, None] != reference.labels[None]] = 0.0
    pairs = match(likeness, LEAST_OVERLAP)
    counted = [p for p in pairs if max(device.scores[p[0]], reference.scores[p[1]]) >= threshold]
    spurious = _unmatched(device, {row for row, _ in pairs}, threshold)
    missing = _unmatched(reference, {column for _, column in pairs}, threshold)
    total = len(counted) + spurious + missing
    if total == 0:
        return Agreement(0.0, 0, 0, 0)
    inexact = sum((1 - float(likeness[pair])) / (1 - LEAST_OVERLAP) for pair in counted)
    return Agreement(min((spurious + missing + inexact) / total, 1.0), len(counted), spurious, missing)


def _unmatched(found: Detections, matched: set[int], threshold: float) -> int:
    return sum(1 for index in np.flatnonzero(found.scores >= threshold).tolist() if index not in matched)


def loss(device: Sequence[Array], reference: Sequence[Array], output: Output) -> float:
    """`compare` of both sides' decoded outputs. Not finite is 1. Raises `ShapeMismatch`."""
    if not all(all_finite(array) for array in (*device, *reference)):
        return 1.0
    return compare(decode(device, output), decode(reference, output), output.threshold).loss


def both_empty(device: Sequence[Array], reference: Sequence[Array], output: Output) -> bool:
    """Whether no object counts on either side. Raises `ShapeMismatch`."""
    return compare(decode(device, output), decode(reference, output), output.threshold).empty


def summary(outputs: Sequence[Array], output: Output) -> dict[str, float]:
    """`objects` at or above the threshold and the `best` score, where there is one."""
    found = decode(outputs, output).above(output.threshold)
    result = {"objects": float(found.scores.size)}
    return result | {"best": float(found.scores[0])} if found.scores.size else result
