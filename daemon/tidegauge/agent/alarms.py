"""The latched alarms: raised once, kept across restarts, cleared by a person.

Two kinds come here: a detector's alarm with its verdict, which asks for a capture, and what supervision found (an
accelerator that hung, crashed, got slow or won't open), which never does: a traced run on a suspect C7x hangs too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidegauge.agent.bus import Bus
from tidegauge.agent.events import AlarmCleared, AlarmRaised, Evidence
from tidegauge.agent.state import Latched, StateStore
from tidegauge.bundles.manifest import Cause
from tidegauge.clocks import wall
from tidegauge.metrics import CAUSES, AgentMetrics

log = logging.getLogger(__name__)


class AlarmBook:
    """The one writer of `AgentState.alarms` and of the metric `drift_alarm`."""

    def __init__(self, store: StateStore, bus: Bus, metrics: AgentMetrics) -> None:
        self._store, self._bus, self._metrics = store, bus, metrics
        self._count = 0

    @property
    def alarms(self) -> tuple[Latched, ...]:
        return self._store.state.alarms

    def show(self) -> None:
        """Set the metric from what is latched."""
        latched = {alarm.verdict for alarm in self.alarms}
        for cause in CAUSES:
            self._metrics.alarm.labels(self._metrics.model, cause).set(1 if cause in latched else 0)

    def is_latched(self, detector: str) -> bool:
        return any(alarm.detector == detector for alarm in self.alarms)

    def latch(
        self, found: Sequence[tuple[str, str]], cause: Cause, evidence: Evidence | None, *, capture: bool = True
    ) -> str:
        """Latch `found` (detector and sentence each) as one alarm, and say so. Returns its id."""
        now = wall()
        self._count += 1
        name = cause.detector.replace("_", "-")
        alarm_id = f"{int(now)}-{self._store.state.session}-{self._count}-{name}"
        latched = tuple(Latched(alarm_id, detector, cause.verdict, said, now) for detector, said in found)
        self._store.update(alarms=(*self.alarms, *latched))
        self._metrics.alarms.labels(self._metrics.model, cause.verdict).inc(len(latched))
        self.show()
        log.warning("alarm, verdict %s: %s", cause.verdict, cause.message)
        self._bus.emit(AlarmRaised(alarm_id, cause, evidence, capture))
        return alarm_id

    def clear(self) -> tuple[Latched, ...]:
        """Unlatch all; returns what was latched."""
        cleared = self.alarms
        self._store.update(alarms=())
        self.show()
        if cleared:
            self._bus.emit(AlarmCleared(cleared))
        return cleared
