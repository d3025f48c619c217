"""How an error lies in a picture or on a line: robust fits, bands, swapped channels. No thresholds of policy."""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegauge.losses.elements import Array

Floats = NDArray[np.float64]

#: Elements of a sample for robust fits: a median of so many is good to 1 % of the spread.
SAMPLE = 1 << 14
#: Reference values must be so many steps apart to give a slope: a noise of one step on either end tilts it by a quarter
#: at most, and the median over all pairs far less.
SPREAD_STEPS = 8
#: Slopes for a median, at least.
FEWEST_SLOPES = 64
#: Elements of a line that its median is taken over, at most.
LINE_SAMPLE = 96
#: A line shorter than this, or fewer lines, say nothing about bands.
SHORTEST_LINE, FEWEST_LINES = 32, 16
#: A jump between neighbouring lines counts beyond so many steps. Noise of one step moves a median by two at most.
JUMP_STEPS = 3
#: … and beyond so many standard errors of a line's median, where the noise is larger than a step.
JUMP_ERRORS = 8
#: Jumps of the error that are not larger than twice the content's own jump follow the content: no band.
CONTENT_SHARE = 0.5


class Line(NamedTuple):
    """device ≈ gain × reference + offset, and how well: Pearson's correlation of the inner 95 %."""

    gain: float
    offset: float
    correlation: float


@lru_cache(maxsize=8)
def sample_indices(count: int) -> NDArray[np.intp]:
    """Indices of a fixed random sample of `count` elements, all of them where they are few. Ascending, read-only."""
    if count <= SAMPLE:
        indices = np.arange(count)
    else:
        indices = np.sort(np.random.default_rng(count).choice(count, SAMPLE, replace=False, shuffle=False))
    indices.flags.writeable = False
    return indices


def fit_line(device: Floats, reference: Floats, step: float) -> Line | None:
    """A line that up to a quarter of wrong elements can't move; None where the reference varies too little.

    Theil's incomplete method ("A rank-invariant method of linear and polynomial regression analysis", 1950): sorted by
    reference, each element of the lower half is paired with its counterpart of the upper half; the gain is the median
    slope, the offset the median remainder.
    """
    order = np.argsort(reference, kind="stable")
    half = order.size // 2
    lower, upper = order[:half], order[order.size - half :]
    run = reference[upper] - reference[lower]
    usable = run >= SPREAD_STEPS * step
    if int(np.count_nonzero(usable)) < FEWEST_SLOPES:
        return None
    gain = float(np.median((device[upper] - device[lower])[usable] / run[usable]))
    remainder = device - gain * reference
    offset = float(np.median(remainder))
    residual = np.abs(remainder - offset)
    inner = residual <= np.quantile(residual, 0.95)
    return Line(gain, offset, correlation(device[inner], reference[inner]))


def correlation(one: Floats, other: Floats) -> float:
    """Pearson's correlation; 0 where either side is constant, since then nothing goes together."""
    one, other = one - one.mean(), other - other.mean()
    # Not `@`: BLAS would wake its threads for so few elements.
    scale = float(np.sqrt(np.sum(one * one) * np.sum(other * other)))
    return float(np.sum(one * other)) / scale if scale > 0 else 0.0


def has_band(device: Array, reference: Array, line: Line, step: float) -> bool:
    """Whether whole rows or columns of one plane are wrong together: channels × height × width, both sides alike.

    `line` is what the device makes of the reference apart from that.
    """
    height, width = device.shape[1:]
    across, down = max(1, width // LINE_SAMPLE), max(1, height // LINE_SAMPLE)
    for plane, content in zip(device, reference, strict=True):
        if _has_edge(plane[:, ::across], content[:, ::across], line, step):
            return True
        if _has_edge(plane[::down].T, content[::down].T, line, step):
            return True
    return False


def _has_edge(device: Array, reference: Array, line: Line, step: float) -> bool:
    """Whether the error jumps from one line of pixels to the next, in level or in size, where the content does not."""
    lines, length = device.shape
    if lines < FEWEST_LINES or length < SHORTEST_LINE:
        return False
    expected = np.ascontiguousarray(reference, np.float32) * np.float32(line.gain) + np.float32(line.offset)
    error = device - expected
    content = np.abs(np.diff(np.median(expected, axis=1)))
    for values in (error, np.abs(error)):
        level = np.median(values, axis=1)
        deviation = float(np.median(np.abs(values - level[:, None])))
        # Normal law: the standard deviation is 1.48 median deviations, and a median's error 1.25 times a mean's.
        standard_error = 1.4826 * 1.2533 * deviation / np.sqrt(length)
        jump = np.abs(np.diff(level))
        large = jump >= max(JUMP_STEPS * step, JUMP_ERRORS * standard_error)
        if bool((large & (content <= CONTENT_SHARE * jump)).any()):
            return True
    return False


class Assignment(NamedTuple):
    """Device channels as they are (`identity`) and in the best other order (`swapped`), of which only the best counts.

    `distance`: mean absolute difference; `correlation`: mean over channels.
    """

    identity_distance: float
    swapped_distance: float
    identity_correlation: float
    swapped_correlation: float


def assign_channels(device: Floats, reference: Floats) -> Assignment:
    """Compare every order of the device's channels with the reference: channels × pixels, at least two channels."""
    channels = device.shape[0]
    distance = np.array([[np.abs(one - other).mean() for other in reference] for one in device])
    together = np.array([[correlation(one, other) for other in reference] for one in device])
    rows = np.arange(channels)
    identity, *others = permutations(range(channels))
    return Assignment(
        identity_distance=float(distance[rows, identity].mean()),
        swapped_distance=min(float(distance[rows, order].mean()) for order in others),
        identity_correlation=float(together[rows, identity].mean()),
        swapped_correlation=max(float(together[rows, order].mean()) for order in others),
    )
