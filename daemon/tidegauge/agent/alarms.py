"""The latched alarms: raised once, kept across restarts, cleared by a person.

Two kinds come here: a detector's alarm with its verdict, which asks for a capture, and what supervision found (an
accelerator that hung, crashed, got slow or won't open), which never does: a traced run on a suspect C7x hangs too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from tidegauge.agent.bus import Bus
from tidegauge.agent.events import AlarmCleared, AlarmRaised, Evidence
from tidegauge.agent.state import Latched, StateStore
from tidegauge.attribution import TERMS
from tidegauge.bundles.manifest import Cause
from tidegauge.clocks import wall
from tidegauge.log_kinds import ALARM_CLEARED, ALARM_RAISED
from tidegauge.metrics import CAUSES, AgentMetrics

log = logging.getLogger(__name__)

#: Detectors whose alarms are exported one by one: an agent's series are bounded. `drift_alarm` has them all by cause.
MOST_SHOWN = 4


class AlarmBook:
    """The one writer of `AgentState.alarms` and of the metrics `drift_alarm` and `alarm_latched`."""

    def __init__(self, store: StateStore, bus: Bus, metrics: AgentMetrics) -> None:
        self._store, self._bus, self._metrics = store, bus, metrics
        self._count = 0
        self._exported: set[tuple[str, str]] = set()
        self._shown: dict[tuple[str, str], None] = {}

    @property
    def alarms(self) -> tuple[Latched, ...]:
        return self._store.state.alarms

    def show(self) -> None:
        """Set the metrics from what is latched. A detector is exported from its first alarm on, but no more than
        `MOST_SHOWN`: then those that are over longest make room."""
        by_detector = {(alarm.detector, alarm.verdict): None for alarm in self.alarms}
        self._shown = {each: None for each in self._shown if each not in by_detector} | by_detector
        for gone in list(self._shown)[:-MOST_SHOWN]:
            del self._shown[gone]
            if gone in self._exported:
                self._metrics.latched.remove(self._metrics.model, *gone)
        self._exported = set(self._shown)
        for detector, verdict in self._shown:
            value = 1 if (detector, verdict) in by_detector else 0
            self._metrics.latched.labels(self._metrics.model, detector, verdict).set(value)
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
        latched = tuple(
            Latched(alarm_id, detector, cause.verdict, said, now, cause.severity, cause.replay, _shares(cause.evidence))
            for detector, said in found
        )
        self._store.update(alarms=(*self.alarms, *latched))
        self._metrics.alarms.labels(self._metrics.model, cause.verdict).inc(len(latched))
        self.show()
        said = ALARM_RAISED.of(alarm=alarm_id, detector=cause.detector, verdict=cause.verdict, severity=cause.severity)
        log.warning("alarm (%s), verdict %s: %s", cause.severity, cause.verdict, cause.message, extra=said)
        self._bus.emit(AlarmRaised(alarm_id, cause, evidence, capture))
        return alarm_id

    def clear(self, why: str = "cleared by a person") -> tuple[Latched, ...]:
        """Unlatch all; returns what was latched."""
        cleared = self.alarms
        self._unlatch(cleared, why)
        return cleared

    def end(self, detector: str, why: str) -> None:
        """What a warning was about is over, and says so itself: a camera that delivers again, inputs as they were."""
        self._unlatch(tuple(alarm for alarm in self.alarms if alarm.detector == detector), why)

    def _unlatch(self, alarms: tuple[Latched, ...], why: str) -> None:
        if not alarms:
            return
        self._store.update(alarms=tuple(alarm for alarm in self.alarms if alarm not in alarms))
        self.show()
        for each in alarms:
            said = ALARM_CLEARED.of(alarm=each.id, detector=each.detector, verdict=each.verdict)
            log.info("alarm %s has ended: %s", each.detector, why, extra=said)
        self._bus.emit(AlarmCleared(alarms, why))


def _shares(evidence: Mapping[str, float]) -> dict[str, float]:
    """The decomposition's terms, where the change of the loss was decomposed."""
    return {name: evidence[name] for name in TERMS if name in evidence}
