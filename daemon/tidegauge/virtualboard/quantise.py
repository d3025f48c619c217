"""Scales, zero points and quantised weights. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tidegauge.virtualboard.network import INT8, INT16, UINT8, UINT16, Quant

Float = NDArray[np.float32]


def _f32(value: float) -> float:
    return float(np.float32(value))


def power_of_two(scale: float) -> float:
    """The largest power of two that isn't above the scale."""
    return float(2.0 ** np.floor(np.log2(scale)))


def activation_quant(low: float, high: float, bits: int, scale_type: int) -> Quant:
    """The quantisation of an activation with the calibration range `low`…`high`, by `quantization_scale_type`.

    Unsigned codes where no value is negative. Zero points only for 8-bit codes of both signs: TIDL's 16-bit tensors
    are symmetric. A constant zero gets the scale of the range 0…1, so that a later value is still representable.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        high = 1.0
    if scale_type == 4 and bits == 8 and low < 0.0:
        scale = _f32(255 / (high - low))
        return Quant(INT8, scale, int(np.clip(round(-128 - low * scale), -128, 127)))
    if low >= 0.0:
        element, scale = UINT8 if bits == 8 else UINT16, (2**bits - 1) / high
    else:
        element, scale = INT8 if bits == 8 else INT16, (2 ** (bits - 1) - 1) / max(-low, high)
    return Quant(element, _f32(power_of_two(scale) if scale_type == 1 else scale), 0)


@dataclass(frozen=True)
class WeightRules:
    """How weights become codes. `given`: scales by layer, from a quantisation proto, instead of the weights' own."""

    scale_type: int
    given: Mapping[str, Float] = field(default_factory=dict)

    def quantise(self, layer: str, weights: Float, bits: int, axis: int | None = None) -> tuple[Float, Float]:
        """As `quantise_weights`; one scale a channel only where `axis` names the channels' axis."""
        scale = self.given.get(layer)
        if scale is not None:
            return codes_of(weights, scale, bits, axis or 0), scale
        codes, scale = quantise_weights(weights, bits, self.scale_type == 4 and axis is not None, axis or 0)
        if self.scale_type != 1:
            return codes, scale
        scale = np.asarray(power_of_two(float(scale)), np.float32)
        return codes_of(weights, scale, bits, 0), scale


def codes_of(weights: Float, scale: Float, bits: int, axis: int) -> Float:
    """Integer weights at a given scale, as float32."""
    top = 2 ** (bits - 1) - 1
    shaped = scale.reshape([-1 if i == axis else 1 for i in range(weights.ndim)]) if scale.ndim else scale
    return np.clip(np.rint(weights.astype(np.float64) * shaped), -top, top).astype(np.float32)


def quantise_weights(weights: Float, bits: int, per_channel: bool, axis: int = 0) -> tuple[Float, Float]:
    """Integer weights (as float32) and their scales: shape () for one scale, (channels,) for one a channel of `axis`.

    Symmetric, round half to even; an all-zero channel gets scale 1.
    """
    top = 2 ** (bits - 1) - 1
    magnitude = np.abs(weights.astype(np.float64))
    if per_channel:
        others = tuple(i for i in range(weights.ndim) if i != axis)
        peak = magnitude.max(axis=others)
    else:
        peak = np.asarray(magnitude.max())
    scale = np.where(peak > 0, top / np.where(peak > 0, peak, 1.0), 1.0).astype(np.float32)
    return codes_of(weights, scale, bits, axis), scale


def sqnr_db(reference: Float, actual: Float) -> float:
    """Signal to quantisation noise ratio in decibels; infinite where both are equal."""
    signal = float(np.sum(np.square(reference, dtype=np.float64)))
    noise = float(np.sum(np.square(reference.astype(np.float64) - actual)))
    if noise == 0.0:
        return float("inf")
    return float(10 * np.log10(signal / noise)) if signal > 0 else float("-inf")
