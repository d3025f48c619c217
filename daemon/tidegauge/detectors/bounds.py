"""Confidence bounds on the mean of values in [0, 1], and on a share."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, lgamma, log

import numpy as np

#: Candidates for the mean; the bound is rounded outwards to this grid.
GRID = 2000
#: Of them, every so many is looked at first; then those between the last that is not ruled out and the next.
COARSE = 40
#: Values taken at a time: what betting on them against each candidate leads to stays small in memory.
CHUNK = 1024
#: Share of the largest bet allowed that is used at most (Waudby-Smith and Ramdas take 1/2 or 3/4).
TRUNCATION = 0.75


_Values = np.ndarray[tuple[int], np.dtype[np.float64]]


def upper_bound(values: Sequence[float], delta: float = 0.05) -> float:
    """An upper bound on the mean that holds with probability 1 − `delta`, for values in [0, 1] of one conditional mean.

    One side of the hedged-capital bound with predictable plug-in bets of Waudby-Smith and Ramdas, "Estimating means of
    bounded random variables by betting", arXiv 2010.09686: a mean m is ruled out once betting against it has multiplied
    the stake by 1/δ. The empirical Bernstein bound (Maurer and Pontil, arXiv 0907.3740) is several times wider at a few
    hundred values. Raises ValueError for no values, or values outside [0, 1].
    """
    data = _checked(values, delta)
    sizes = np.arange(1, data.size + 1)
    means = (0.5 + np.cumsum(data)) / (sizes + 1)
    spread = (0.25 + np.cumsum((data - means) ** 2)) / (sizes + 1)
    known = np.concatenate([[0.25], spread[:-1]])  # a bet may use only what came before it
    bet = np.sqrt(2 * log(1 / delta) / (data.size * known))
    last = _last_kept(data, bet, np.arange(COARSE, GRID, COARSE), log(1 / delta))
    last = max(last, _last_kept(data, bet, np.arange(last + 1, min(last + COARSE, GRID)), log(1 / delta)))
    return min((last + 1) / GRID, 1.0)


def _last_kept(data: _Values, bet: _Values, grid: np.ndarray[tuple[int], np.dtype[np.int64]], limit: float) -> int:
    """The largest of the candidates (multiples of 1/GRID) that betting did not rule out; 0 where all are."""
    candidates = grid / GRID
    best = np.full(grid.size, -np.inf)
    capital = np.zeros(grid.size)
    for start in range(0, data.size, CHUNK):
        part = slice(start, start + CHUNK)
        allowed = np.minimum(bet[part, None], TRUNCATION / (1 - candidates))
        path = capital + np.cumsum(np.log1p(allowed * (candidates - data[part, None])), axis=0)
        capital = path[-1]
        np.maximum(best, path.max(axis=0), out=best)
    kept = np.flatnonzero(best < limit)
    return 0 if kept.size == 0 else int(grid[kept[-1]])


def lower_bound(values: Sequence[float], delta: float = 0.05) -> float:
    """The mirror image of `upper_bound`."""
    return 1 - upper_bound([1 - value for value in values], delta)


def share_upper_bound(hits: int, count: int, delta: float = 0.05) -> float:
    """Upper bound of a share, `hits` among `count` seen: exact (Clopper and Pearson, Biometrika 26, 1934)."""
    if not 0 <= hits <= count or count < 1:
        raise ValueError(f"{hits} hits among {count}")
    if hits == count:
        return 1.0
    low, high = hits / count, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _binomial_cdf(hits, count, middle) > delta:
            low = middle
        else:
            high = middle
    return high


def binomial_log_pmf(hits: int, count: int, share: float) -> float:
    """ln P(exactly `hits` of `count`) for 0 < share < 1."""
    choose = lgamma(count + 1) - lgamma(hits + 1) - lgamma(count - hits + 1)
    return choose + hits * log(share) + (count - hits) * log(1 - share)


def _binomial_cdf(hits: int, count: int, share: float) -> float:
    if share <= 0 or share >= 1:
        return 1.0 if share <= 0 else 0.0
    return sum(exp(binomial_log_pmf(each, count, share)) for each in range(hits + 1))


def group_means(values: Sequence[float], correlation_time: float) -> list[float]:
    """Means over groups of 1 + correlation time samples: about as many as there are independent ones.

    A last group that is not full is left out, unless it is the only one.
    """
    size = max(1, round(1 + correlation_time))
    data = np.asarray(values, np.float64)
    whole = data.size // size
    if whole == 0:
        return [float(data.mean())]
    return [float(mean) for mean in data[: whole * size].reshape(whole, size).mean(axis=1)]


def _checked(values: Sequence[float], delta: float) -> _Values:
    data = np.asarray(values, np.float64)
    if data.ndim != 1 or data.size == 0 or not ((data >= 0) & (data <= 1)).all():
        raise ValueError("a bound needs at least one value, and values in [0, 1]")
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}, not in (0, 1)")
    return data
