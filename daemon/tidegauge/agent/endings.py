"""What ended the workers that hold a session: named by its TIDL cause, counted, and kept for bundles."""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path

import msgspec

from tidegauge.agent import last_words
from tidegauge.agent.bus import Bus
from tidegauge.agent.events import PipelineDown
from tidegauge.agent.last_words import Follower
from tidegauge.agent.limits import Taken, forget_old
from tidegauge.agent.state import StateStore
from tidegauge.agent.workers import WorkerEnded
from tidegauge.clocks import Stamp, stamp, wall
from tidegauge.log_kinds import worker_ended
from tidegauge.metrics import END_CAUSES, OTHER, AgentMetrics

log = logging.getLogger(__name__)

#: Ends that are kept for the next bundle.
KEPT = 20


class Ending(msgspec.Struct, frozen=True):
    """`kind` from `metrics.RESTART_REASONS`; `cause`: the word of a `LogCause`, empty where no line named a fault."""

    when: Stamp
    kind: str
    cause: str
    sentence: str


class Endings:
    """`remote_log`: where the C7x's lines are collected, None for nowhere."""

    def __init__(
        self, remote_log: Path | None, artifacts: Path, store: StateStore, bus: Bus, metrics: AgentMetrics
    ) -> None:
        self._remote_log = () if remote_log is None else (remote_log,)
        self._layers = last_words.names(artifacts)
        self._store, self._bus, self._metrics = store, bus, metrics
        self._kept: deque[Ending] = deque(maxlen=KEPT)

    @property
    def kept(self) -> tuple[Ending, ...]:
        return tuple(self._kept)

    @property
    def last(self) -> str:
        """How the newest one came, empty for none."""
        return self._kept[-1].sentence if self._kept else ""

    def follow(self, worker_log: Path) -> Follower:
        """Listen from now on. Call it before the worker starts."""
        return Follower((worker_log, *self._remote_log))

    def named(self, error: WorkerEnded, follower: Follower) -> WorkerEnded:
        """The same end with what was last heard of it; counts its cause, and keeps it."""
        words = last_words.last_words(follower.heard(), self._layers)
        sentence = f"{error}; {words.sentence}" if words.sentence else str(error)
        if words.cause:
            self._metrics.log_causes.labels(words.cause if words.cause in END_CAUSES else OTHER).inc()
        self._kept.append(Ending(stamp(), error.kind, words.cause, sentence))
        return WorkerEnded(error.kind, sentence, error.failure, words.cause)

    def of_pipeline(self, error: WorkerEnded) -> int:
        """A pipeline worker has ended: say so. Returns how many were replaced in 24 hours, this one included."""
        model = self._metrics.model
        log.warning("pipeline: %s", error, extra=worker_ended(error.fault).of(worker="pipeline", reason=error.kind))
        self._metrics.inference_errors.labels(model).inc()
        self._metrics.restarts.labels(model, error.kind).inc()
        restarts = (*forget_old(self._store.state.restarts, wall()), Taken(wall(), error.kind))
        self._store.update(restarts=restarts)
        self._bus.emit(PipelineDown(error.kind, str(error)))
        return len(restarts)
