"""Biases that calibration moved on purpose, where no table of the compile tells them.

At accuracy_level 1 TIDL's calibration shifts biases until the means of a layer's channels are the float model's. A
layer then differs from the model by one constant a channel before its activation, and is right otherwise. A fault in
the biases looks the same but for one thing: calibration brings the device's means nearer to the float run's, a fault
takes them away from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.layers import STATED, Evaluation, Layer
from tidegauge.compare.reference import Reference
from tidegauge.compare.weights import SCHEMES, bias_of, rounded, weight_inputs

Array = NDArray[Any]
Real = NDArray[np.float64]

#: Rounds of fitting: an activation hides a part of the values, so that one is not enough.
_ROUNDS = 5
#: With the fitted biases no more than this share of codes may be further from the computed value than half a code and
#: this much: an exact fit, where a fault that is no bias leaves many more.
_OFF, _TIE = 0.02, 0.05
#: Of fewer values a channel any constant explains all: such a layer decides nothing, up to so many steps.
_TELLING, _UNSURE = 8, 8.0
#: What calibration must have left of the squared error of the channels' means: of all such layers, or of the only one.
#: A layer whose means are farther than this from the float run's is none of them.
_NEARER, _ALONE, _FARTHER = 0.7, 0.1, 3.0
#: A layer whose means calibration did not bring nearer is no fault where no channel moved by more steps than this.
_SLIGHT = 0.5
#: Fewer values within the code range tell no channel's bias.
_LEAST = 1


@dataclass(frozen=True, eq=False)
class _Moved:
    """A layer with fitted biases: how far each channel's mean moved by them, and the device's means, in steps."""

    layer: Layer
    shift: Real
    device: Real


def find_moved(work: Evaluation, suspects: Sequence[Layer]) -> tuple[dict[int, float], dict[int, float]]:
    """Of wrong layers (by identity) those that are right but for biases that calibration moved, and those of a compile
    with such layers of which nobody can tell, since they have too few values; both with the largest move of a
    channel's mean in steps.

    Costs some runs of each suspect's own region, and one float run up to the last of those that could be."""
    fitted = [found for layer in suspects if (found := _fit(work, layer)) is not None]
    telling = [moved for moved in fitted if moved.layer.tensor.count >= _TELLING * moved.shift.size]
    if not telling:
        return {}, {}
    means = _float_means(work, [moved.layer for moved in telling])
    taken, after, before = {}, 0.0, 0.0
    for moved in telling:
        error, most = moved.device - means[moved.layer.twin], float(np.abs(moved.shift).max())
        left, had = float(np.square(error).sum()), float(np.square(error - moved.shift).sum())
        if left <= _FARTHER * had or most <= _SLIGHT:
            taken[id(moved.layer)] = most
            after, before = after + left, before + had
    if not taken or after > (_NEARER if len(taken) > 1 else _ALONE) * before:
        return {}, {}
    small = {id(m.layer): float(np.abs(m.shift).max()) for m in fitted if m not in telling}
    return taken, {key: most for key, most in small.items() if most <= _UNSURE}


def _fit(work: Evaluation, layer: Layer) -> _Moved | None:
    """The biases with which a region gives the device's codes; None where it has none, or they don't explain them."""
    part, encoding = work.reference.region(layer.twin), layer.encoding
    if part is None or encoding is None or not encoding.integer or layer.weights == STATED:
        return None
    model = work.reference.model
    weights = weight_inputs(model, part.nodes)
    found = bias_of(model, next(iter(weights))) if len(weights) == 1 else None
    codes = work.codes(layer)
    if found is None or codes.ndim < 2 or codes.shape[1] != model.weights[found[1]].size:
        return None
    best: tuple[float, _Moved] | None = None
    for scheme in SCHEMES:
        fitted = _fit_bias(work, layer, codes, found[1], rounded(model, weights, scheme))
        if fitted is not None and (best is None or fitted[0] < best[0]):
            best = fitted
    return best[1] if best is not None and best[0] <= _OFF else None


def _fit_bias(
    work: Evaluation, layer: Layer, codes: Array, bias: str, scheme: dict[str, Array]
) -> tuple[float, _Moved] | None:
    """With these weights: the share of codes that the fitted biases don't give, and what they are."""
    own, encoding = work.reference.model.weights[bias], layer.encoding
    if encoding is None:
        return None
    low, high = encoding.code_range
    shape = (codes.shape[0], own.size, -1)
    codes = codes.reshape(shape)
    inside, device = (codes > low) & (codes < high), encoding.values(codes)
    moved, first, best = np.zeros(own.size), None, None
    for _ in range(_ROUNDS):
        scheme[bias] = (own.astype(np.float64).reshape(-1) + moved).astype(own.dtype).reshape(own.shape)
        local = work.reference.local([layer.twin], scheme)[layer.twin].reshape(shape)
        clipped = np.clip(local, *encoding.value_range)
        first = clipped.copy() if first is None else first
        off = float((np.abs(codes - clipped * encoding.scale - encoding.zero_point) > 0.5 + _TIE).mean())
        if best is None or off < best[0]:
            shift = (clipped - first).mean(axis=(0, 2), dtype=np.float64) * encoding.scale
            means = device.mean(axis=(0, 2), dtype=np.float64) * encoding.scale
            best = off, _Moved(layer, shift, means)
        moved += _residual(device - local, inside & (local > encoding.value_range[0]))
    return best


def _residual(error: Array, inside: NDArray[np.bool_]) -> Real:
    """The mean error of each channel where neither side is cut off; 0 where that is nowhere."""
    count = inside.sum(axis=(0, 2))
    total = np.where(inside, error, 0.0).sum(axis=(0, 2), dtype=np.float64)
    return np.where(count >= _LEAST, total / np.maximum(count, 1), 0.0)


def _float_means(work: Evaluation, layers: Sequence[Layer]) -> dict[str, Real]:
    """The mean of each channel in the float run, in the device's steps, a group of tensors at a time."""
    by_twin = {layer.twin: layer for layer in layers}
    sizes = {name: layer.tensor.count for name, layer in by_twin.items()}
    found: dict[str, Real] = {}
    for values in Reference(work.reference.model, work.reference.inputs, {}, sizes).walk():
        for name, value in values.items():
            encoding = by_twin[name].encoding
            if encoding is not None:
                axes = tuple(axis for axis in range(value.ndim) if axis != 1)
                clipped = np.clip(value, *encoding.value_range)
                found[name] = clipped.mean(axis=axes, dtype=np.float64) * encoding.scale
    return found
