"""The two statistical detectors of one model: the product loss, and unusually large tensor errors. Pure.

Each stream is a block mean followed by a betting e-detector (DESIGN §6.3). The second sees, for each sample, whether
its NMSE exceeds the acceptance's upper quantile; a sample whose NMSE is undefined counts as exceeding, since an
output that can't be compared is not a healthy one.
"""

from __future__ import annotations

import msgspec

from tidegauge.detectors.acceptance import Accepted
from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.betting import BettingDetector, BettingState
from tidegauge.detectors.blocks import BlockMean, BlockState


class StreamState(msgspec.Struct, frozen=True):
    block: BlockState
    detector: BettingState


class StreamsState(msgspec.Struct, frozen=True):
    """What survives a restart. It belongs to one `Accepted`."""

    loss: StreamState
    nmse: StreamState


class _Stream:
    def __init__(self, name: str, m0: float, alpha: float, block: int, state: StreamState | None) -> None:
        self._blocks = BlockMean(block)
        self._detector = BettingDetector(name, m0, alpha)
        if state is not None:
            self._blocks.restore(state.block)
            self._detector.restore(state.detector)

    def update(self, value: float) -> tuple[bool, Alarm | None]:
        """Whether an observation was completed, and the alarm it raised."""
        observation = self._blocks.add(value)
        return (False, None) if observation is None else (True, self._detector.update(observation))

    def evidence(self) -> tuple[float, float]:
        return self._detector.log_evidence, self._detector.log_limit

    def state(self) -> StreamState:
        return StreamState(self._blocks.state(), self._detector.state())


class Streams:
    """`changed` after an update that completed an observation: then the state is worth storing."""

    def __init__(self, accepted: Accepted, state: StreamsState | None) -> None:
        self._threshold = accepted.nmse_quantile
        self._loss = _Stream(
            "loss", accepted.m0, accepted.alpha, accepted.block, state.loss if state is not None else None
        )
        self._nmse = _Stream(
            "nmse", accepted.exceedance_m0, accepted.alpha, accepted.block, state.nmse if state is not None else None
        )
        self.changed = False

    def update(self, loss: float, nmse: float | None) -> list[Alarm]:
        exceeds = nmse is None or nmse > self._threshold
        results = [self._loss.update(loss), self._nmse.update(float(exceeds))]
        self.changed = any(done for done, _ in results)
        return [alarm for _, alarm in results if alarm is not None]

    def evidence(self) -> dict[str, tuple[float, float]]:
        """Log evidence and its limit, by stream."""
        return {"loss": self._loss.evidence(), "nmse": self._nmse.evidence()}

    def state(self) -> StreamsState:
        return StreamsState(self._loss.state(), self._nmse.state())
