"""Scales, zero points and quantised weights. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidegauge.virtualboard.network import INT8, INT16, UINT8, UINT16, Quant

Float = NDArray[np.float32]


def _f32(value: float) -> float:
    return float(np.float32(value))


def activation_quant(low: float, high: float, bits: int, asymmetric: bool) -> Quant:
    """The quantisation of an activation with the calibration range `low`…`high`.

    Unsigned codes where no value is negative. Zero points only for 8-bit codes of both signs: TIDL's 16-bit tensors
    are symmetric. A constant zero gets the scale of the range 0…1, so that a later value is still representable.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        high = 1.0
    if low >= 0.0:
        return Quant(UINT8 if bits == 8 else UINT16, _f32((2**bits - 1) / high), 0)
    if asymmetric and bits == 8:
        scale = _f32(255 / (high - low))
        return Quant(INT8, scale, int(np.clip(round(-128 - low * scale), -128, 127)))
    return Quant(INT8 if bits == 8 else INT16, _f32((2 ** (bits - 1) - 1) / max(-low, high)), 0)


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
    shaped = scale
    if per_channel:
        shaped = scale.reshape([-1 if i == axis else 1 for i in range(weights.ndim)])
    codes = np.clip(np.rint(weights.astype(np.float64) * shaped), -top, top)
    return codes.astype(np.float32), scale


def sqnr_db(reference: Float, actual: Float) -> float:
    """Signal to quantisation noise ratio in decibels; infinite where both are equal."""
    signal = float(np.sum(np.square(reference, dtype=np.float64)))
    noise = float(np.sum(np.square(reference.astype(np.float64) - actual)))
    if noise == 0.0:
        return float("inf")
    return float(10 * np.log10(signal / noise)) if signal > 0 else float("-inf")
