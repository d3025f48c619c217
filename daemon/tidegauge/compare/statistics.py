"""Device tensor against reference tensor in one pass over the codes: raw sums, from which every metric derives.

Blocks of about 128 K elements stay in the cache; buffers are made once a thread. Block sums are float32, added up in
float64. A reference whose mean is far from zero is shifted by a pivot near it, so that variances do not cancel.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.types import Metrics

Array = NDArray[Any]
Float64 = NDArray[np.float64]

BLOCK = 128 * 1024
#: Elements from which the pivot is taken, and how many variances its square must have to matter.
_HEAD, _FAR = 4096, 16.0
#: Elements of a dot product, of a line of sums, and of a plane of which many fit into a block.
_DOT, _LINE, _SMALL = 8192, 512, 32768
#: The square of a float32 below this is one, and so is a block's sum of them.
_LARGE = 1e16

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
    # As plain arrays: each view of a memory map as such costs microseconds.
    device, other = np.asarray(codes).reshape(-1), np.asarray(reference).reshape(-1)
    sums = Sums(pivot=_pivot(other))
    places = _Places(channels, height, width) if profiles else None
    with np.errstate(invalid="ignore", over="ignore"):
        for first, last in _pieces(channels, height, width):
            _block(sums, encoding, device[first:last], other[first:last], places, first)
    if places is not None:
        sums.channel_d2, sums.row_d2, sums.column_d2 = places.totals()
    return sums


def _pivot(reference: Array) -> float:
    """What to subtract so that the variance does not cancel: the mean of the beginning, where it is far from zero in
    units of the deviation; else nothing, which spares a pass."""
    head = reference[:_HEAD]
    finite = head[np.isfinite(head)].astype(np.float64)
    mean = float(finite.mean()) if finite.size else 0.0
    return float(np.float32(mean)) if mean * mean > _FAR * float(finite.var() if finite.size else 0.0) else 0.0


def _ends(sums: Sums, codes: Array, encoding: Encoding) -> None:
    """Count the codes at either end; most tensors do not reach the one or the other."""
    low, high = encoding.code_range
    if low == 0:
        sums.low += codes.size - int(np.count_nonzero(codes))
    elif (lowest := codes.min()) == low:
        sums.low += int(np.count_nonzero(np.equal(codes, lowest, out=_work.equal[: codes.size])))
    if (highest := codes.max()) == high:
        sums.high += int(np.count_nonzero(np.equal(codes, highest, out=_work.equal[: codes.size])))


def _pieces(channels: int, height: int, width: int) -> Iterator[tuple[int, int]]:
    """Ranges of the flat tensor: whole channels, else whole rows of one channel, else parts of one row."""
    within, unit = channels * height * width, 1
    for size in (width, height * width):
        within, unit = (within, size) if size <= BLOCK else (min(within, size), unit)
    step = max(1, BLOCK // unit) * unit
    for begin in range(0, channels * height * width, max(1, within)):
        for first in range(begin, begin + within, step):
            yield first, min(first + step, begin + within)


class _Places:
    """Σd² by channel, row and column, filled block by block."""

    def __init__(self, channels: int, height: int, width: int) -> None:
        self._shape = channels, height, width
        self._channels, self._rows, self._columns = np.zeros(channels), np.zeros(height), np.zeros(width)
        # Small planes are summed up over the channels first: then each element is added once for rows and columns.
        self._plane = np.zeros(height * width, np.float32) if height * width <= _SMALL else None

    def add(self, squares: Array, first: int) -> float:
        """Squares of the elements from `first` on; returns their sum."""
        _, height, width = self._shape
        channel, place = divmod(first, height * width)
        if self._plane is not None:
            planes = squares.reshape(-1, height * width)
            by_channel = np.einsum("ij->i", planes).astype(np.float64)
            self._plane += _over_first(planes)
        elif width <= BLOCK:
            rows = squares.reshape(-1, width)
            by_row = np.einsum("ij->i", rows).astype(np.float64)
            by_row = by_row.reshape(-1, min(height, by_row.size))
            top = place // width
            self._rows[top : top + by_row.shape[1]] += by_row.sum(axis=0)
            self._columns += _over_first(rows)
            by_channel = by_row.sum(axis=1)
        else:
            by_channel = squares.sum(dtype=np.float64, keepdims=True)
            top, left = divmod(place, width)
            self._columns[left : left + squares.size] += squares
            self._rows[top] += by_channel[0]
        self._channels[channel : channel + by_channel.size] += by_channel
        return float(by_channel.sum())

    def totals(self) -> tuple[Float64, Float64, Float64]:
        _, height, width = self._shape
        if self._plane is not None:
            plane = self._plane.reshape(height, width)
            return self._channels, plane.sum(axis=1, dtype=np.float64), plane.sum(axis=0, dtype=np.float64)
        return self._channels, self._rows, self._columns


def _over_first(block: Array) -> Array:
    """Sums over the first axis; a short second one is folded into longer lines, which NumPy adds up faster."""
    lines, length = block.shape
    fold = _LINE // max(1, length)
    if fold < 2 or lines < 2 * fold:
        return np.asarray(np.add.reduce(block, axis=0))
    whole = lines // fold * fold
    folded = np.add.reduce(block[:whole].reshape(-1, fold * length), axis=0).reshape(fold, length)
    return np.asarray(np.add.reduce(np.concatenate((folded, block[whole:])), axis=0))


class _Work(threading.local):
    """The buffers of a thread: as large as a block, so that they stay in the cache, and made once."""

    def __init__(self) -> None:
        self.d, self.g = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
        self.equal = np.empty(BLOCK, bool)


_work = _Work()


def _block(sums: Sums, encoding: Encoding, device: Array, reference: Array, places: _Places | None, first: int) -> None:
    n = device.size
    d, g = _work.d[:n], _work.g[:n]
    np.copyto(d, device, casting="same_kind" if device.dtype.kind == "f" else "unsafe")
    if encoding.integer:
        _ends(sums, device, encoding)
        if encoding.zero_point:
            np.subtract(d, np.float32(encoding.zero_point), out=d)
        np.multiply(d, np.float32(1.0 / encoding.scale), out=d)
    np.subtract(d, reference, out=d)
    if sums.pivot or reference.dtype != np.float32:
        np.subtract(reference, np.float32(sums.pivot), out=g, casting="same_kind")
    else:
        g = reference
    total, spread = float(np.einsum("i->", d)), float(np.einsum("i->", g))
    bad = 0
    if not math.isfinite(total) or not math.isfinite(spread):
        g = np.array(g)
        bad = _mask(sums, device, reference, d, g)
        total, spread = float(d.sum(dtype=np.float64)), float(g.sum(dtype=np.float64))
    sums.count += n - bad
    sums.d += total
    sums.g += spread
    sums.g2 += _dot(g, g)
    sums.dg += _dot(d, g)
    np.abs(d, out=d)
    sums.abs_d += float(np.einsum("i->", d))
    sums.max_d = max(sums.max_d, float(np.maximum.reduce(d)))
    if places is None:
        sums.d2 += _dot(d, d)
    elif sums.max_d < _LARGE:
        sums.d2 += places.add(np.multiply(d, d, out=d), first)
    else:  # squares overflow float32: slowly, but rightly
        sums.d2 += places.add(np.square(d, dtype=np.float64), first)


def _mask(sums: Sums, device: Array, reference: Array, d: Array, g: Array) -> int:
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
    """Σab. In lines: OpenBLAS hands longer ones to threads that wait in a loop, which costs more than it saves."""
    lines, rest = divmod(a.size, _DOT)
    value = 0.0
    if lines:
        whole = lines * _DOT
        products = np.matmul(a[:whole].reshape(lines, 1, _DOT), b[:whole].reshape(lines, _DOT, 1))
        value = sum(products.ravel().tolist())
    if rest:
        value += float(np.dot(a[a.size - rest :], b[b.size - rest :]))
    # float32 overflows for values beyond 1e19: such a tensor is wrong, but the number must still be one.
    return value if math.isfinite(value) else float(np.dot(a.astype(np.float64), b.astype(np.float64)))


def mean_square(a: Array, b: Array) -> float:
    """The mean squared difference of two float32 tensors of the same size."""
    one, other, total = a.reshape(-1), b.reshape(-1), 0.0
    for first in range(0, one.size, BLOCK):
        part = one[first : first + BLOCK]
        d = np.subtract(part, other[first : first + BLOCK], out=_work.d[: part.size], casting="same_kind")
        total += _dot(d, d)
    return total / one.size


def ends(value: Array) -> tuple[float, float]:
    """The smallest and the largest value; not a number where one is none."""
    flat, lowest, highest = np.asarray(value).reshape(-1), math.inf, -math.inf
    for first in range(0, flat.size, BLOCK):
        part = flat[first : first + BLOCK]
        lowest = float(np.minimum(lowest, np.minimum.reduce(part)))
        highest = float(np.maximum(highest, np.maximum.reduce(part)))
    return lowest, highest


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
