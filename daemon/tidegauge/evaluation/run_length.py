"""Run lengths of the betting detector behind its block front end, for many streams at once.

The same recursion as `detectors.betting`, in linear numbers: a run ends at 1/α, so nothing overflows. A test compares
the two on the same observations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidegauge.detectors.betting import BETS, bets
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

    def keep(self, kept: Flags) -> None:
        self.m0, self.limit = self.m0[kept], self.limit[kept]
        self.bets, self.evidence = self.bets[:, kept], self.evidence[:, kept]


def run_lengths(stream: Stream, blocks: Ints, m0: Floats, alpha: float | Floats, longest: int | Ints) -> Ints:
    """Observations of each stream up to its first alarm, `longest` where there was none until then.

    `blocks`: samples in a block of each stream; `alpha`, `longest` one for all, or one for each. The mean of cut runs
    is a lower bound of the mean run length.
    """
    count = stream.count
    longest = np.broadcast_to(np.asarray(longest, np.int64), count)
    found = longest.copy()
    which, blocks = np.arange(count), blocks.copy()
    detectors = Detectors(m0, np.broadcast_to(np.asarray(alpha, np.float64), count))
    seen, held, total = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count)
    while which.size:
        samples = int(np.clip(CHUNK // which.size, 1, int((blocks * (longest - seen)).max())))
        sums = np.concatenate([np.zeros((1, which.size)), np.cumsum(stream.take(samples), axis=0)])
        ended = np.zeros(which.size, bool)
        order = np.zeros(which.size, np.int64)  # where in the chunk each stream's block ends
        while True:
            ends = blocks * (order + 1) - held
            ready = np.flatnonzero((ends <= samples) & ~ended)
            if ready.size == 0:
                break
            starts = np.maximum(ends - blocks, 0)[ready]
            part = sums[ends[ready], ready] - sums[starts, ready] + np.where(order[ready] == 0, total[ready], 0.0)
            alarm = detectors.update(np.minimum(part / blocks[ready], 1.0), ready)
            order[ready] += 1
            seen[ready] += 1
            found[which[ready[alarm]]] = seen[ready[alarm]]
            ended[ready[alarm]] = True
            ended[ready[seen[ready] >= longest[ready]]] = True
        begun = np.maximum(blocks * order - held, 0)
        left = sums[-1] - sums[np.minimum(begun, samples), np.arange(which.size)]
        total = np.where(order == 0, total, 0.0) + left
        held = np.where(order == 0, held + samples, samples - begun)
        kept = ~ended
        stream.keep(kept)
        detectors.keep(kept)
        which, blocks, longest = which[kept], blocks[kept], longest[kept]
        seen, held, total = seen[kept], held[kept], total[kept]
    return found
