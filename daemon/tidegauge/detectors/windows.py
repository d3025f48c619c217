"""Input drift: whether a window of frames still looks like the reference of the same light context. A warning, apart.

For each feature the two-sample Kolmogorov-Smirnov test, with Bonferroni's correction over the features; beside it the
population stability index, which says how much in a number that does not depend on the window's size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt

import msgspec
import numpy as np

from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.defaults import BINS, INTERVAL, LEVEL, PSI_LIMIT, WINDOW


class FeatureDrift(msgspec.Struct, frozen=True):
    """`distance` of the distribution functions, its `p_value` (before Bonferroni), and the `psi`."""

    feature: str
    distance: float
    p_value: float
    psi: float


def ks_distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Largest difference of the two empirical distribution functions. Raises ValueError for no or non-finite values."""
    left, right = _sorted(one), _sorted(other)
    every = np.concatenate([left, right])
    below = np.searchsorted(left, every, side="right") / left.size
    return float(np.abs(below - np.searchsorted(right, every, side="right") / right.size).max())


def ks_p_value(distance: float, one: int, other: int) -> float:
    """Probability of such a distance by chance, from the limit law with Stephens' correction for finite samples.

    M. A. Stephens, "Use of the Kolmogorov-Smirnov, Cramér-von Mises and related statistics without extensive tables",
    JRSS B 32, 1970. Ties make it too large, never too small.
    """
    root = sqrt(one * other / (one + other))
    scaled = (root + 0.12 + 0.11 / root) * distance
    if scaled < 0.2:
        return 1.0  # the series converges slowly here, and its sum is 1 to 1e-12
    total = sum((1.0 if k % 2 else -1.0) * exp(-2 * (k * scaled) ** 2) for k in range(1, 101))
    return min(max(2 * total, 0.0), 1.0)


def psi(reference: Sequence[float], window: Sequence[float], bins: int = BINS) -> float:
    """Population stability index: Σ (w − r)·ln(w/r) over bins between quantiles of the reference.

    An empty bin counts as half a value, so that the index is finite. Raises ValueError as `ks_distance`.
    """
    left, right = _sorted(reference), _sorted(window)
    edges = np.unique(np.quantile(left, np.arange(1, bins) / bins))
    shares = []
    for values in (left, right):
        counts = np.bincount(np.searchsorted(edges, values, side="left"), minlength=edges.size + 1)
        shares.append(np.maximum(counts, 0.5) / values.size)
    expected, found = shares
    return sum(float((w - r) * log(w / r)) for r, w in zip(expected, found, strict=True))


def compare(
    reference: Mapping[str, Sequence[float]], window: Mapping[str, Sequence[float]]
) -> tuple[FeatureDrift, ...]:
    """Each feature of the reference, by name. Raises KeyError for one that the window lacks."""
    found = []
    for feature in sorted(reference):
        one, other = reference[feature], window[feature]
        distance = ks_distance(one, other)
        p_value = ks_p_value(distance, len(one), len(other))
        found.append(FeatureDrift(feature, distance, p_value, psi(one, other)))
    return tuple(found)


def verdict(found: Sequence[FeatureDrift], level: float = LEVEL) -> Alarm | None:
    """A warning where a feature's p-value is below `level` over the number of features, and its PSI above 0.25.

    Either alone is not enough: a long window makes any difference significant, a short one any index large.
    """
    drifted = [each for each in found if each.p_value < level / len(found) and each.psi > PSI_LIMIT]
    if not drifted:
        return None
    worst = max(drifted, key=lambda each: each.psi)
    names = ", ".join(each.feature for each in drifted)
    return Alarm(
        "input_drift",
        f"the inputs no longer look like those of acceptance: {names} (PSI of {worst.feature} {worst.psi:.2f})",
        {f"psi_{each.feature}": each.psi for each in drifted} | {"features": float(len(found))},
    )


class DriftState(msgspec.Struct, frozen=True):
    """Values of the window under way by feature; seconds until the next verdict is due."""

    values: dict[str, list[float]]
    wait: float


class InputDrift:
    """Windows of one light context against its frozen reference. One verdict a window, and at most one a day.

    The test is for independent values, so they are taken `interval`/`window` seconds apart at least: a window covers
    the whole interval. `now` and `interval` in seconds of one monotonic clock.
    """

    def __init__(
        self, reference: Mapping[str, Sequence[float]], now: float, window: int = WINDOW, interval: float = INTERVAL
    ) -> None:
        if not reference or min(len(values) for values in reference.values()) < window:
            raise ValueError(f"a reference of input features needs {window} values of each")
        self.reference = {name: tuple(values) for name, values in reference.items()}
        self.window, self.interval = window, interval
        self._due = now + interval
        self._last: float | None = None
        self._values: dict[str, list[float]] = {name: [] for name in reference}

    def update(self, now: float, features: Mapping[str, float]) -> tuple[bool, Alarm | None]:
        """Take one sample's features; whether a verdict was given, and its warning.

        Raises KeyError for a missing feature, ValueError for a
        non-finite one.
        """
        taken = {name: float(features[name]) for name in self.reference}
        if not all(np.isfinite(value) for value in taken.values()):
            raise ValueError("a feature of an input is not finite")
        if self._last is not None and now - self._last < self.interval / self.window:
            return False, None
        self._last = now
        for name, value in taken.items():
            self._values[name].append(value)
            del self._values[name][: -self.window]
        if now < self._due or len(next(iter(self._values.values()))) < self.window:
            return False, None
        found = compare(self.reference, self._values)
        self._due = now + self.interval
        self._values = {name: [] for name in self.reference}
        return True, verdict(found)

    def state(self, now: float) -> DriftState:
        return DriftState({name: list(values) for name, values in self._values.items()}, max(0.0, self._due - now))

    def restore(self, state: DriftState, now: float) -> None:
        """Go on after a restart. Raises ValueError for a state of other features."""
        if set(state.values) != set(self.reference):
            raise ValueError("a stored window has other features than the reference")
        self._values = {name: list(values) for name, values in state.values.items()}
        self._due, self._last = now + state.wait, None


def _sorted(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    data = np.sort(np.asarray(values, np.float64))
    if data.ndim != 1 or data.size == 0 or not np.isfinite(data).all():
        raise ValueError("a distribution needs values, and finite ones")
    return data
