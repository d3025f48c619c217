"""The two statistical detectors of one model: the product loss, and unusually large tensor errors. Pure.

Each stream is a block mean followed by a betting e-detector (DESIGN §6.3). The second sees, for each sample, whether
its NMSE exceeds the acceptance's upper quantile; a sample whose NMSE is undefined counts as exceeding, since an
output that can't be compared is not a healthy one. Blocks that turn out too short for the stream grow.
"""

from __future__ import annotations

import msgspec

from tidegauge.detectors.acceptance import Accepted
from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.betting import BettingDetector, BettingState
from tidegauge.detectors.blocks import BlockMean, BlockMismatch, BlockState
from tidegauge.detectors.exceedance import exceeds
from tidegauge.detectors.stickiness import GROWTH, Stickiness, StickinessState

#: Evidence below this share of its limit is calm: blocks may grow.
CALM = 0.5


class StreamState(msgspec.Struct, frozen=True):
    block: BlockState
    detector: BettingState
    stickiness: StickinessState = StickinessState()


class StreamsState(msgspec.Struct, frozen=True):
    """What survives a restart. It belongs to one `Accepted`."""

    loss: StreamState
    nmse: StreamState


class _Stream:
    def __init__(self, name: str, m0: float, alpha: float, block: int, state: StreamState | None) -> None:
        self.name = name
        self._blocks = BlockMean(block)
        self._detector = BettingDetector(name, m0, alpha)
        self._stickiness = Stickiness()
        self.grew = False
        if state is not None:
            self._blocks.grow(_growth(state.block.length, block))
            self._blocks.restore(state.block)
            self._detector.restore(state.detector)
            self._stickiness = Stickiness(state.stickiness)

    def update(self, value: float) -> tuple[bool, Alarm | None]:
        """Whether an observation was completed, and the alarm it raised."""
        self.grew = False
        observation = self._blocks.add(value)
        if observation is None:
            return False, None
        alarm = self._detector.update(observation)
        evidence, limit = self.evidence()
        if self._stickiness.update(observation, calm=evidence < CALM * limit):
            self._blocks.grow(GROWTH)
            self.grew = True
        return True, alarm

    @property
    def block(self) -> int:
        return self._blocks.length

    def clear(self) -> None:
        self._blocks.reset()
        self._detector.reset()

    def evidence(self) -> tuple[float, float]:
        return self._detector.log_evidence, self._detector.log_limit

    def state(self) -> StreamState:
        return StreamState(self._blocks.state(), self._detector.state(), self._stickiness.state())


class Streams:
    """`changed` after an update that completed an observation: then the state is worth storing.

    `grown`: streams whose blocks that update has made longer, and their length now. `taken`: samples since the start.
    """

    def __init__(self, accepted: Accepted, state: StreamsState | None) -> None:
        self._threshold = accepted.nmse_quantile
        self._loss = _Stream(
            "loss", accepted.m0, accepted.alpha, accepted.block, state.loss if state is not None else None
        )
        self._nmse = _Stream(
            "nmse", accepted.exceedance_m0, accepted.alpha, accepted.block, state.nmse if state is not None else None
        )
        self.changed = False
        self.taken = 0

    def update(self, loss: float, nmse: float | None) -> list[Alarm]:
        self.taken += 1
        results = [self._loss.update(loss), self._nmse.update(exceeds(nmse, self._threshold))]
        self.changed = any(done for done, _ in results)
        return [alarm for _, alarm in results if alarm is not None]

    @property
    def grown(self) -> list[tuple[str, int]]:
        return [(each.name, each.block) for each in (self._loss, self._nmse) if each.grew]

    @property
    def block(self) -> int:
        """Samples in an observation of the loss."""
        return self._loss.block

    def clear(self) -> None:
        """Evidence to zero; how long the blocks have grown stays."""
        self._loss.clear()
        self._nmse.clear()

    def evidence(self) -> dict[str, tuple[float, float]]:
        """Log evidence and its limit, by stream."""
        return {"loss": self._loss.evidence(), "nmse": self._nmse.evidence()}

    def state(self) -> StreamsState:
        return StreamsState(self._loss.state(), self._nmse.state())


def _growth(length: int, block: int) -> int:
    """How many times a stored block is longer than acceptance's. Raises `BlockMismatch` unless it is whole times."""
    times, rest = divmod(length, block)
    if rest or times < 1:
        raise BlockMismatch(
            f"a stored block of {length} samples does not fit blocks of {block}",
            "rebaseline to start again from no evidence",
        )
    return times
