"""Run lengths of the betting detector behind its block front end, for many streams at once.

The same recursion as `detectors.betting`, in linear numbers: a run ends at 1/α, so nothing overflows. A test compares
the two on the same observations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidegauge.detectors.betting import bets
from tidegauge.detectors.defaults import ALLOWED, BETS, CALM, ERRORS, FIRST_LOOK, GROWTH
from tidegauge.evaluation.streams import Flags, Floats, Stream

Ints = NDArray[np.int64]

#: Numbers in a chunk of samples, time × streams.
CHUNK = 4_000_000


class Detectors:
    """One detector for each stream, with its own `m0` and `alpha`. `update` says which raised an alarm."""

    def __init__(self, m0: Floats, alpha: Floats) -> None:
        self.m0 = m0.copy()
        self.limit = BETS / alpha
        self.bets = np.array(bets(1.0))[:, None] / self.m0
        self.evidence = np.zeros_like(self.bets)

    def update(self, observations: Floats, streams: Ints) -> Flags:
        """Take one observation of each of `streams` (indices); whether each of them is at its limit."""
        bets_now = self.bets[:, streams]
        evidence = (self.evidence[:, streams] + 1) * (1 + bets_now * (observations - self.m0[streams]))
        self.evidence[:, streams] = evidence
        return np.asarray(evidence.sum(axis=0) >= self.limit[streams])

    def calm(self, streams: Ints) -> Flags:
        """Which of `streams` have less than half of the log evidence that an alarm needs."""
        evidence = np.log1p(self.evidence[:, streams].sum(axis=0) / BETS)
        return np.asarray(evidence < CALM * np.log1p(self.limit[streams] / BETS))

    def keep(self, kept: Flags) -> None:
        self.m0, self.limit = self.m0[kept], self.limit[kept]
        self.bets, self.evidence = self.bets[:, kept], self.evidence[:, kept]


class Growth:
    """`detectors.stickiness` for many streams: which of them are stickier than their blocks assume."""

    def __init__(self, count: int) -> None:
        self._sums = np.zeros((4, count))  # of means, squares, products of neighbours, and the first mean
        self._last, self._count = np.zeros(count), np.zeros(count, np.int64)

    def update(self, means: Floats, calm: Flags, streams: Ints) -> Flags:
        """Take one block's mean of each of `streams`; whose blocks must grow. These start again."""
        count, fresh = self._count[streams] + 1, self._count[streams] == 0
        last = np.where(fresh, 0.0, self._last[streams])
        sums = self._sums[:, streams] + np.array([means, means * means, means * last, np.where(fresh, means, 0.0)])
        total, squares, products, first = sums
        mean = total / count
        spread = squares - count * mean * mean
        product = products - mean * (2 * total - first - means) + (count - 1) * mean * mean
        with np.errstate(divide="ignore", invalid="ignore"):
            correlation = np.where(spread > 1e-12 * count, product / spread, 0.0)
        looked = calm & (count >= FIRST_LOOK) & (count & (count - 1) == 0)
        grows: Flags = looked & (correlation > ALLOWED + ERRORS / np.sqrt(count))
        self._sums[:, streams] = np.where(grows, 0.0, sums)
        self._last[streams], self._count[streams] = means, np.where(grows, 0, count)
        return grows

    def keep(self, kept: Flags) -> None:
        self._sums, self._last, self._count = self._sums[:, kept], self._last[kept], self._count[kept]


def run_lengths(
    stream: Stream,
    blocks: Ints,
    m0: Floats,
    alpha: float | Floats,
    longest: int | Ints,
    growing: bool = False,
) -> Ints:
    """Observations of each stream up to its first alarm, `longest` where there was none until then.

    `blocks`: samples in a block of each stream; `alpha`, `longest` one for all, or one for each. The mean of cut runs
    is a lower bound of the mean run length. `growing`: blocks that turn out too short grow, as the agent's do; lengths
    are then in times of the first block, which is what α was chosen for.
    """
    count = stream.count
    longest = np.broadcast_to(np.asarray(longest, np.int64), count)
    found = longest.copy()
    which, first, blocks = np.arange(count), blocks.copy(), blocks.copy()
    detectors = Detectors(m0, np.broadcast_to(np.asarray(alpha, np.float64), count))
    growth = Growth(count) if growing else None
    # Where in the coming chunk each stream's block began (before it: negative), the sum of what came before the chunk,
    # and the samples of all blocks until then.
    begun, carried, passed = np.zeros(count, np.int64), np.zeros(count), np.zeros(count, np.int64)
    while which.size:
        most = int((first * longest - passed).max())
        samples = int(np.clip(CHUNK // which.size, 1, most))
        sums = np.concatenate([np.zeros((1, which.size)), np.cumsum(stream.take(samples), axis=0)])
        ended = np.zeros(which.size, bool)
        while True:
            ready = np.flatnonzero((begun + blocks <= samples) & ~ended)
            if ready.size == 0:
                break
            starts, ends = begun[ready], begun[ready] + blocks[ready]
            part = sums[ends, ready] - sums[np.maximum(starts, 0), ready] + np.where(starts < 0, carried[ready], 0.0)
            means = np.minimum(part / blocks[ready], 1.0)
            alarm = detectors.update(means, ready)
            begun[ready], carried[ready] = ends, 0.0
            passed[ready] += blocks[ready]
            seen = passed[ready] // first[ready]
            found[which[ready[alarm]]] = np.minimum(seen, longest[ready])[alarm]
            ended[ready[alarm | (seen >= longest[ready])]] = True
            if growth is not None:
                blocks[ready[growth.update(means, detectors.calm(ready), ready)]] *= GROWTH
        carried = sums[-1] - sums[np.maximum(begun, 0), np.arange(which.size)] + np.where(begun < 0, carried, 0.0)
        begun -= samples
        kept = ~ended
        stream.keep(kept)
        detectors.keep(kept)
        if growth is not None:
            growth.keep(kept)
        which, first, blocks, longest = which[kept], first[kept], blocks[kept], longest[kept]
        begun, carried, passed = begun[kept], carried[kept], passed[kept]
    return found
