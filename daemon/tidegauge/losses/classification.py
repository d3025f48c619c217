"""Class probabilities: how much probability has moved, or whether the first class has changed."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tidegauge.losses.elements import Array, all_finite, flat, flat_pair

Activation = Literal["none", "softmax", "sigmoid"]


def probabilities(output: Array, activation: Activation) -> Array:
    """One vector of float64 from a classifier's output of any shape. `activation` is what the model left out."""
    values = flat(output).astype(np.float64)
    if activation == "softmax":
        values = np.exp(values - values.max())
        return np.asarray(values / values.sum())
    if activation == "sigmoid":
        return np.asarray(0.5 * (1 + np.tanh(values / 2)))
    return values


def loss(device: Array, reference: Array, activation: Activation = "none") -> float:
    """Total variation in [0, 1]: half the sum of absolute differences. Not finite is 1. Raises `ShapeMismatch`.

    What is missing to a sum of 1 counts as one more class, "none": so outputs that are all near 0, which a device gives
    whose graph was not verified, are as wrong as they can be. For `sigmoid`, independent labels, it is the largest
    difference of a label.
    """
    flat_pair(device, reference)
    if not (all_finite(device) and all_finite(reference)):
        return 1.0
    one, other = probabilities(device, activation), probabilities(reference, activation)
    difference = np.abs(one - other)
    if activation == "sigmoid":
        return float(min(difference.max(), 1.0))
    return float(min((difference.sum() + abs(one.sum() - other.sum())) / 2, 1.0))


def top1(device: Array, reference: Array) -> float:
    """1 where the first class differs, else 0. Not finite is 1. Raises `ShapeMismatch`."""
    one, other = flat_pair(device, reference)
    if not (all_finite(device) and all_finite(reference)):
        return 1.0
    # Equal values on the device are no other answer where the reference's class is among them.
    return float(one[other.argmax()] < one.max())


def summary(output: Array, activation: Activation = "none") -> dict[str, float]:
    """`class` (index) and its `probability`."""
    found = probabilities(output, activation)
    best = int(found.argmax())
    return {"class": float(best), "probability": float(found[best])}
