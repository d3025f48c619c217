"""Device tensor against reference tensor in one pass over the codes: raw sums, from which every metric derives.

A reference whose mean is far from zero is shifted by a pivot near it, so that variances do not cancel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.one_pass import Found, Terms, flat, run, shaped
from tidegauge.compare.types import Metrics

Array = NDArray[Any]
Float64 = NDArray[np.float64]

#: Elements from which the pivot is taken, and how many variances its square must have to matter.
_HEAD, _FAR = 4096, 16.0

#: A float tensor has no step; two correct float kernels differ by about this share of its rms.
FLOAT_TOLERANCE = 1e-5


@dataclass
class Sums:
    """Raw sums over the finite pairs of device value v and reference f, with d = v - f and g = f - pivot.

    `channel_*`, `row_*`, `column_*`: Σd² and Σf² by position; None where they were not asked for. `low`, `high`: device
    codes at either end of the code range. `device_bad`, `reference_bad`: elements that are not finite. `least`, `most`:
    the reference's smallest and largest value, not a number where one is none.
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
    channel_f2: Float64 | None = None
    row_f2: Float64 | None = None
    least: float = math.inf
    most: float = -math.inf

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

    Raises `ValueError` for unequal shapes: a shape mismatch is a status, never a number. `TidegaugeError` where the
    compiled sweep can't be made.
    """
    if codes.shape != reference.shape:
        raise ValueError(f"shapes {codes.shape} and {reference.shape} can't be compared")
    channels, height, width = planes(codes.shape)
    grid = shaped(channels, height, width) if profiles else flat(codes.size)
    low, high = encoding.code_range if encoding.integer else (0, 0)
    pivot = _pivot(np.asarray(reference))
    terms = Terms(1.0 / encoding.scale, encoding.zero_point, pivot, low, high)
    found = run(np.asarray(codes), np.asarray(reference), terms, grid)
    sums = Sums(pivot=pivot, least=found.least, most=found.most, **found.totals)
    if profiles:
        _place(sums, found, grid.planes, channels, height, width)
    return sums


def _place(sums: Sums, found: Found, by_plane: bool, channels: int, height: int, width: int) -> None:
    """Sums by channel, row and column from those by line and by place in a line."""
    if by_plane:
        plane = found.columns.reshape(2, height, width)
        sums.channel_d2, sums.channel_f2 = found.lines
        sums.row_d2, sums.row_f2 = plane.sum(axis=2)
        sums.column_d2 = plane[0].sum(axis=0)
    else:
        rows = found.lines.reshape(2, channels, height)
        sums.channel_d2, sums.channel_f2 = rows.sum(axis=2)
        sums.row_d2, sums.row_f2 = rows.sum(axis=1)
        sums.column_d2 = found.columns[0]


def _pivot(reference: Array) -> float:
    """What to subtract so that the variance does not cancel: the mean of the beginning, where it is far from zero in
    units of the deviation; else nothing."""
    head = reference.reshape(-1)[:_HEAD].astype(np.float64)
    if not math.isfinite(float(np.dot(head, head))):
        head = head[np.isfinite(head)]
    size, total, squares = head.size, float(head.sum()), float(np.dot(head, head))
    mean = total / size if size else 0.0
    variance = max(0.0, squares / size - mean * mean) if size else 0.0
    return float(np.float32(mean)) if mean * mean > _FAR * variance else 0.0


def mean_square(a: Array, b: Array) -> float:
    """The mean squared difference of two float32 tensors of the same size."""
    sums = measure(a.reshape(-1), b.reshape(-1), Encoding("float32"), profiles=False)
    return sums.d2 / a.size


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
