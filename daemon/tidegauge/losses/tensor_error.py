"""Tensor errors of a device output against its reference, for diagnosis. None of them stands alone: cosine does not see
a wrong scale, SQNR does not see whether the product minds."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log10, sqrt

import numpy as np

from tidegauge.losses.elements import Array, blocks, flat_pair
from tidegauge.losses.saturation import shares_at_ends
from tidegauge.pipeline.messages import TensorErrors

#: SQNR is clipped to this range, decibels: above it a pair is equal for every purpose, below it no signal is left.
LEAST_SQNR, MOST_SQNR = -10.0, 60.0
#: A variance below this share of the mean square is rounding: no slope can be fitted to it.
RESOLUTION = 1e-20


@dataclass
class _Sums:
    """Sums over both sides about a pivot each (an element of it, so that a large mean costs no digits), in float64."""

    pivot_device: float
    pivot_reference: float
    count: int = 0
    device: float = 0.0
    reference: float = 0.0
    device2: float = 0.0
    reference2: float = 0.0
    product: float = 0.0
    error2: float = 0.0
    largest: float = 0.0
    least_reference: float = inf
    most_reference: float = -inf

    def add(self, device: Array, reference: Array) -> None:
        """One block, both float64."""
        error = device - reference
        self.error2 += float(error @ error)
        self.largest = max(self.largest, float(error.max()), -float(error.min()))
        self.least_reference = min(self.least_reference, float(reference.min()))
        self.most_reference = max(self.most_reference, float(reference.max()))
        device = device - self.pivot_device
        reference = reference - self.pivot_reference
        self.count += device.size
        self.device += float(device.sum())
        self.reference += float(reference.sum())
        self.device2 += float(device @ device)
        self.reference2 += float(reference @ reference)
        self.product += float(device @ reference)

    def raw_moments(self) -> tuple[float, float, float]:
        """Σd², Σr², Σdr, about zero."""
        n, d0, r0 = self.count, self.pivot_device, self.pivot_reference
        return (
            self.device2 + 2 * d0 * self.device + n * d0 * d0,
            self.reference2 + 2 * r0 * self.reference + n * r0 * r0,
            self.product + d0 * self.reference + r0 * self.device + n * d0 * r0,
        )


def tensor_errors(name: str, device: Array, reference: Array, step: float, low: float, high: float) -> TensorErrors:
    """Errors of output `name`. `step` and the range `low`…`high` (may be infinite) in the unit of the arrays.

    SQNR is 10·log₁₀(Σr² / Σ(d − r)²), NMSE Σ(d − r)² / Σr², cosine d·r / ‖d‖‖r‖; gain and offset are least squares of
    device on reference. Where one is undefined it is None: SQNR, NMSE, gain and offset for a reference
    of zeros; cosine when either side is zeros; gain and offset for a constant reference; all of them with a non-finite
    element on either side. Shares at the ends are over finite elements, NaN where none is. Raises `ShapeMismatch`.
    """
    left, right = flat_pair(device, reference)
    low_share, high_share = shares_at_ends(device, low, high)
    reference_low, reference_high = shares_at_ends(reference, low, high)
    finite = sum(_finite(block) for block in blocks(left)) / left.size
    sums = _sums(left, right) if finite == 1 else None
    sqnr, nmse, cosine, gain, offset = _ratios(sums) if sums is not None else (None,) * 5
    return TensorErrors(
        output=name,
        finite=finite,
        sqnr_db=sqnr,
        nmse=nmse,
        cosine=cosine,
        gain=gain,
        offset=offset,
        max_steps=None if sums is None else sums.largest / step,
        low_share=low_share,
        high_share=high_share,
        reference_low_share=reference_low,
        reference_high_share=reference_high,
    )


def _finite(block: Array) -> int:
    return int(np.count_nonzero(np.isfinite(block))) if block.dtype.kind == "f" else block.size


def _sums(device: Array, reference: Array) -> _Sums | None:
    """The sums, or None where the reference is not finite."""
    sums = _Sums(float(device[0]), float(reference[0]))
    for one, other in zip(blocks(device), blocks(reference), strict=True):
        if _finite(other) < other.size:
            return None
        sums.add(one.astype(np.float64), other.astype(np.float64))
    return sums


def _ratios(sums: _Sums) -> tuple[float | None, float | None, float | None, float | None, float | None]:
    """SQNR, NMSE, cosine, gain, offset."""
    device2, reference2, product = sums.raw_moments()
    if max(abs(sums.least_reference), abs(sums.most_reference)) == 0:
        return None, None, None, None, None
    nmse = sums.error2 / reference2
    sqnr = MOST_SQNR if nmse == 0 else min(max(-10 * log10(nmse), LEAST_SQNR), MOST_SQNR)
    cosine = None
    if device2 > 0:
        cosine = min(max(product / sqrt(device2) / sqrt(reference2), -1.0), 1.0)
    gain, offset = _line(sums, reference2)
    return sqnr, nmse, cosine, gain, offset


def _line(sums: _Sums, reference2: float) -> tuple[float | None, float | None]:
    n = sums.count
    variance = sums.reference2 - sums.reference * sums.reference / n
    if sums.least_reference == sums.most_reference or variance <= RESOLUTION * reference2:
        return None, None
    gain = (sums.product - sums.device * sums.reference / n) / variance
    mean_device = sums.pivot_device + sums.device / n
    mean_reference = sums.pivot_reference + sums.reference / n
    return gain, mean_device - gain * mean_reference
