"""Device tensor against reference tensor in one pass over the codes: raw sums, from which every metric derives.

Blocks of about 64 K elements stay in the cache; buffers are allocated once a call. Block sums are float32 dot
products, added up in float64. The reference is shifted by a pivot near its mean, so that variances do not cancel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.types import Metrics

Array = NDArray[Any]
Float64 = NDArray[np.float64]

BLOCK = 64 * 1024

#: A float tensor has no step; two correct float kernels differ by about this share of its rms.
FLOAT_TOLERANCE = 1e-5


@dataclass
class Sums:
    """Raw sums over the finite pairs of device value v and reference f, with d = v - f and g = f - pivot.

    `channel_*`, `row_*`, `column_*`: the same sums by position; empty where they were not asked for. `low`, `high`:
    device codes at either end of the code range. `device_bad`, `reference_bad`: elements that are not finite.
    """

    count: int = 0
    pivot: float = 0.0
    d: float = 0.0
    d2: float = 0.0
    abs_d: float = 0.0
    max_d: float = 0.0
    g: float = 0.0
    g2: float = 0.0
    dg: float = 0.0
    low: int = 0
    high: int = 0
    device_bad: int = 0
    reference_bad: int = 0
    channel_d2: Float64 | None = None
    row_d2: Float64 | None = None
    column_d2: Float64 | None = None

    @property
    def mse(self) -> float | None:
        return self.d2 / self.count if self.count else None

    @property
    def f2(self) -> float:
        """Σf²."""
        return max(0.0, self.g2 + 2 * self.pivot * self.g + self.count * self.pivot**2)

    @property
    def f(self) -> float:
        """Σf."""
        return self.g + self.count * self.pivot

    @property
    def df(self) -> float:
        """Σdf."""
        return self.dg + self.pivot * self.d


@dataclass(frozen=True)
class Encoding:
    """How codes become values: `value = (code - zero_point) / scale`. Float tensors have scale 1, zero point 0."""

    dtype: str
    scale: float = 1.0
    zero_point: int = 0

    @property
    def integer(self) -> bool:
        return self.dtype != "float32"

    @property
    def step(self) -> float:
        """The size of one code, in the tensor's unit; 0 for a float tensor."""
        return 1.0 / self.scale if self.integer else 0.0

    @property
    def code_range(self) -> tuple[int, int]:
        info = np.iinfo(self.dtype)
        return int(info.min), int(info.max)

    @property
    def value_range(self) -> tuple[float, float]:
        """The values of the lowest and of the highest code; infinite for a float tensor."""
        if not self.integer:
            return -math.inf, math.inf
        low, high = self.code_range
        return (low - self.zero_point) / self.scale, (high - self.zero_point) / self.scale

    def values(self, codes: Array) -> NDArray[np.float32]:
        """Codes as float32 values, in a new array of the same shape."""
        if not self.integer:
            return codes.astype(np.float32)
        out = codes.astype(np.float32)
        out -= np.float32(self.zero_point)
        out *= np.float32(1.0 / self.scale)
        return out

    def codes(self, values: Array) -> NDArray[np.int32]:
        """The codes that a correct requantisation gives: round half to even, clip to the code range."""
        low, high = self.code_range
        scaled = np.rint(values.astype(np.float64) * self.scale) + self.zero_point
        codes: NDArray[np.int32] = np.clip(scaled, low, high).astype(np.int32)
        return codes


def noise_floor(encoding: Encoding, reference_rms: float) -> float:
    """The mean squared error of a healthy tensor: 1/12 step² of rounding; for floats a relative tolerance."""
    if encoding.integer:
        return encoding.step**2 / 12.0
    return (FLOAT_TOLERANCE * reference_rms) ** 2


def planes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """A shape as (channels, height, width), outer dimensions counted into the channels."""
    padded = (1, 1, 1, *shape)
    return math.prod(padded[:-2]), padded[-2], padded[-1]


def measure(codes: Array, reference: Array, encoding: Encoding, *, profiles: bool = True) -> Sums:
    """One pass over a device tensor and its reference of the same shape (…, channels, height, width).

    Raises `ValueError` for unequal shapes: a shape mismatch is a status, never a number.
    """
    if codes.shape != reference.shape:
        raise ValueError(f"shapes {codes.shape} and {reference.shape} can't be compared")
    channels, height, width = planes(codes.shape)
    device = codes.reshape(channels, height * width)
    other = reference.reshape(channels, height * width)
    sums = Sums(pivot=_pivot(other))
    if profiles:
        sums.channel_d2, sums.row_d2, sums.column_d2 = np.zeros(channels), np.zeros(height), np.zeros(width)
    work = _Work(min(max(BLOCK, width), channels * height * width), encoding)
    if height * width <= BLOCK:
        step = max(1, BLOCK // max(1, height * width))
        for first in range(0, channels, step):
            last = min(channels, first + step)
            _block(sums, work, device[first:last], other[first:last], (first, 0, last - first, height, width))
    else:
        step = max(1, BLOCK // width)
        for channel in range(channels):
            for top in range(0, height, step):
                rows = min(step, height - top)
                cut = slice(top * width, (top + rows) * width)
                _block(sums, work, device[channel, cut], other[channel, cut], (channel, top, 1, rows, width))
    return sums


def _pivot(reference: Array) -> float:
    head = reference.reshape(-1)[:BLOCK]
    finite = head[np.isfinite(head)]
    return float(np.float32(finite.mean(dtype=np.float64))) if finite.size else 0.0


class _Work:
    """The buffers of one pass, and the constants of the encoding."""

    def __init__(self, size: int, encoding: Encoding) -> None:
        self.encoding = encoding
        self.ones = np.ones(size, np.float32)
        self.d, self.g, self.scratch = (np.empty(size, np.float32) for _ in range(3))
        self.factor = np.float32(1.0 / encoding.scale)
        self.zero = np.float32(encoding.zero_point)
        self.ends = encoding.code_range if encoding.integer else None


def _block(sums: Sums, work: _Work, device: Array, reference: Array, place: tuple[int, int, int, int, int]) -> None:
    device, reference = device.reshape(-1), reference.reshape(-1)
    n = device.size
    d, g, scratch, ones = work.d[:n], work.g[:n], work.scratch[:n], work.ones[:n]
    np.copyto(d, device, casting="same_kind" if device.dtype.kind == "f" else "unsafe")
    if work.ends is not None:
        if work.encoding.zero_point:
            np.subtract(d, work.zero, out=d)
        np.multiply(d, work.factor, out=d)
        sums.low += int(np.count_nonzero(device == work.ends[0]))
        sums.high += int(np.count_nonzero(device == work.ends[1]))
    np.copyto(g, reference, casting="same_kind")
    with np.errstate(invalid="ignore", over="ignore"):
        np.subtract(d, g, out=d)
        np.subtract(g, np.float32(sums.pivot), out=g)
        total = float(np.dot(d, ones))
        spread = float(np.dot(g, ones))
        bad = 0
        if not math.isfinite(total) or not math.isfinite(spread):
            bad = _mask(sums, work, device, reference, d, g)
            total, spread = float(d.sum(dtype=np.float64)), float(g.sum(dtype=np.float64))
        sums.count += n - bad
        sums.d += total
        sums.g += spread
        sums.g2 += _dot(g, g)
        sums.dg += _dot(d, g)
        np.abs(d, out=scratch)
        sums.abs_d += float(np.dot(scratch, ones))
        sums.max_d = max(sums.max_d, float(scratch.max()))
        _profiles(sums, d, scratch, ones, place)


def _mask(sums: Sums, work: _Work, device: Array, reference: Array, d: Array, g: Array) -> int:
    """Zero the pairs that are not finite, count them, return how many."""
    bad_reference = ~np.isfinite(reference)
    bad_device = ~np.isfinite(device) if device.dtype.kind == "f" else np.zeros(device.size, bool)
    sums.reference_bad += int(bad_reference.sum())
    sums.device_bad += int(bad_device.sum())
    bad = bad_reference | bad_device
    d[bad] = 0
    g[bad] = 0
    return int(bad.sum())


def _dot(a: Array, b: Array) -> float:
    value = float(np.dot(a, b))
    # float32 overflows for values beyond 1e19: such a tensor is wrong, but the number must still be one.
    return value if math.isfinite(value) else float(np.dot(a.astype(np.float64), b.astype(np.float64)))


def _profiles(sums: Sums, d: Array, scratch: Array, ones: Array, place: tuple[int, int, int, int, int]) -> None:
    channel, top, channels, rows, width = place
    if sums.channel_d2 is None or sums.row_d2 is None or sums.column_d2 is None:
        sums.d2 += _dot(d, d)
        return
    squares = np.multiply(d, d, out=scratch).reshape(channels * rows, width)
    by_row = squares @ ones[:width]
    by_column = ones[: channels * rows] @ squares
    if not math.isfinite(float(by_row.sum())):  # squares overflow float32: slowly, but rightly
        squares = np.square(d.reshape(channels * rows, width), dtype=np.float64)
        by_row, by_column = squares.sum(axis=1), squares.sum(axis=0)
    by_plane = by_row.reshape(channels, rows).astype(np.float64)
    by_channel = by_plane.sum(axis=1)
    sums.d2 += float(by_channel.sum())
    sums.channel_d2[channel : channel + channels] += by_channel
    sums.row_d2[top : top + rows] += by_plane.sum(axis=0)
    sums.column_d2 += by_column


def metrics(sums: Sums, encoding: Encoding, floor: float) -> Metrics:
    """Every number that the sums define. `floor`: the healthy mean squared error that `excess` counts in."""
    n = sums.count
    if n == 0:
        return Metrics(0, None, None, None, None, None, None, None, None, None)
    step = encoding.step
    mse = sums.d2 / n
    resolution = step**2 / 12.0
    device2 = max(0.0, sums.f2 + 2 * sums.df + sums.d2)
    carries = sums.f2 / n > resolution and sums.f2 > 0
    product = sums.f2 + sums.df
    gain, offset = _fit(sums, resolution)
    return Metrics(
        count=n,
        sqnr_db=10 * math.log10(sums.f2 / sums.d2) if carries and sums.d2 > 0 else None,
        cosine=max(-1.0, min(1.0, product / math.sqrt(sums.f2 * device2))) if carries and device2 > 0 else None,
        gain=gain,
        offset=offset,
        mse=mse,
        max_error=sums.max_d,
        max_steps=sums.max_d / step if step else None,
        bias_steps=sums.d / n / step if step else None,
        excess=mse / floor if floor > 0 else None,
    )


def _fit(sums: Sums, resolution: float) -> tuple[float | None, float | None]:
    """Least squares v = gain · f + offset; undefined where f varies by less than its resolution."""
    n = sums.count
    variance = sums.g2 / n - (sums.g / n) ** 2
    if variance <= resolution or variance <= 1e-12 * (sums.pivot**2 + 1e-300):
        return None, None
    covariance = sums.dg / n - (sums.d / n) * (sums.g / n)
    gain = 1.0 + covariance / variance
    mean_f = sums.f / n
    return gain, (sums.d + sums.f) / n - gain * mean_f
