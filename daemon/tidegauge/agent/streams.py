"""The statistical detectors of one model: the product loss, unusually large tensor errors, the loss by kind. Pure.

Each stream is a block mean followed by a betting e-detector (DESIGN §6.3). The second sees, for each sample, whether
its NMSE exceeds the acceptance's upper quantile; a sample whose NMSE is undefined counts as exceeding, since an
output that can't be compared is not a healthy one. The third takes the loss against the limit of the sample's own kind
of input: it is the device's term of the decomposition, so a harder input mix does not raise it, and an easier one does
not hide a fault from it. Samples of a kind that acceptance never saw are not in it. Blocks that turn out too short for
the stream grow.
"""

from __future__ import annotations

import msgspec

from tidegauge.detectors.acceptance import Accepted
from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.betting import BettingDetector, BettingState
from tidegauge.detectors.blocks import BlockMean, BlockMismatch, BlockState
from tidegauge.detectors.defaults import CALM, GROWTH
from tidegauge.detectors.exceedance import exceeds
from tidegauge.detectors.stickiness import Stickiness, StickinessState

#: The streams' names: of their detectors, alarms and metrics.
LOSS, NMSE, LOSS_BY_KIND = "loss", "nmse", "loss_by_kind"


class StreamState(msgspec.Struct, frozen=True):
    """`limits`: of the samples in the block under way, where each has its own."""

    block: BlockState
    detector: BettingState
    stickiness: StickinessState = StickinessState()
    limits: BlockState | None = None


class StreamsState(msgspec.Struct, frozen=True):
    """What survives a restart. It belongs to one `Accepted`."""

    loss: StreamState
    nmse: StreamState
    loss_by_kind: StreamState | None = None


class _Stream:
    def __init__(self, name: str, m0: float, alpha: float, block: int, state: StreamState | None) -> None:
        self.name = name
        self._blocks, self._limits = BlockMean(block), BlockMean(block)
        self._detector = BettingDetector(name, m0, alpha)
        self._stickiness = Stickiness()
        self.grew = False
        if state is not None:
            for blocks in (self._blocks, self._limits):
                blocks.grow(_growth(state.block.length, block))
            self._blocks.restore(state.block)
            if state.limits is not None:
                self._limits.restore(state.limits)
            self._detector.restore(state.detector)
            self._stickiness = Stickiness(state.stickiness)

    def update(self, value: float, limit: float | None = None) -> tuple[bool, Alarm | None]:
        """Whether an observation was completed, and the alarm it raised. `limit`: of this sample's mean, if not m0."""
        self.grew = False
        observation = self._blocks.add(value)
        expected = None if limit is None else self._limits.add(limit)
        if observation is None:
            return False, None
        alarm = self._detector.update(observation, expected)
        evidence, limit = self.evidence()
        if self._stickiness.update(observation, calm=evidence < CALM * limit):
            self._blocks.grow(GROWTH)
            self._limits.grow(GROWTH)
            self.grew = True
        return True, alarm

    @property
    def block(self) -> int:
        return self._blocks.length

    @property
    def observations(self) -> int:
        return self._detector.observations

    def clear(self) -> None:
        self._blocks.reset()
        self._limits.reset()
        self._detector.reset()

    def evidence(self) -> tuple[float, float]:
        return self._detector.log_evidence, self._detector.log_limit

    def state(self) -> StreamState:
        limits = self._limits.state()
        return StreamState(
            self._blocks.state(), self._detector.state(), self._stickiness.state(), limits if limits.count else None
        )


class Streams:
    """`changed` after an update that completed an observation: then the state is worth storing.

    `grown`: streams whose blocks that update has made longer, and their length now. `taken`: samples since the start.
    """

    def __init__(self, accepted: Accepted, state: StreamsState | None) -> None:
        self._threshold = accepted.nmse_quantile
        stored = (None, None, None) if state is None else (state.loss, state.nmse, state.loss_by_kind)
        alpha, block = accepted.alpha, accepted.block
        self._loss = _Stream(LOSS, accepted.m0, alpha, block, stored[0])
        self._nmse = _Stream(NMSE, accepted.exceedance_m0, alpha, block, stored[1])
        self._by_kind = _Stream(LOSS_BY_KIND, accepted.m0, alpha, block, stored[2])
        self.changed = False
        self.taken = 0

    def update(self, loss: float, nmse: float | None, limit: float | None = None) -> list[Alarm]:
        """`limit`: m0 of the sample's kind of input, None for a kind that has none."""
        self.taken += 1
        results = [self._loss.update(loss), self._nmse.update(exceeds(nmse, self._threshold))]
        if limit is None:
            self._by_kind.grew = False
        else:
            results.append(self._by_kind.update(loss, limit))
        self.changed = any(done for done, _ in results)
        return [alarm for _, alarm in results if alarm is not None]

    @property
    def grown(self) -> list[tuple[str, int]]:
        return [(each.name, each.block) for each in self._streams if each.grew]

    @property
    def block(self) -> int:
        """Samples in an observation of the loss."""
        return self._loss.block

    def clear(self) -> None:
        """Evidence to zero; how long the blocks have grown stays."""
        for each in self._streams:
            each.clear()

    def evidence(self) -> dict[str, tuple[float, float]]:
        """Log evidence and its limit, by stream."""
        return {each.name: each.evidence() for each in self._streams}

    def observations(self) -> dict[str, int]:
        """Observations since the evidence was zero, by stream."""
        return {each.name: each.observations for each in self._streams}

    def state(self) -> StreamsState:
        return StreamsState(self._loss.state(), self._nmse.state(), self._by_kind.state())

    @property
    def _streams(self) -> tuple[_Stream, ...]:
        return self._loss, self._nmse, self._by_kind


def _growth(length: int, block: int) -> int:
    """How many times a stored block is longer than acceptance's. Raises `BlockMismatch` unless it is whole times."""
    times, rest = divmod(length, block)
    if rest or times < 1:
        raise BlockMismatch(
            f"a stored block of {length} samples does not fit blocks of {block}",
            "rebaseline to start again from no evidence",
        )
    return times
