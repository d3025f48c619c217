"""From a detector's alarm to an alarm of the agent: a golden round and a replay tell who is at fault (DESIGN §6.4)."""

from __future__ import annotations

import logging
from collections import deque

from tidegauge.agent.alarms import AlarmBook
from tidegauge.agent.bus import Bus
from tidegauge.agent.config import AgentConfig
from tidegauge.agent.events import Evidence, GoldenRoundEnded, GoldenWanted, Replayed
from tidegauge.agent.golden import GoldenService
from tidegauge.agent.inputs import InputWatch
from tidegauge.agent.shadow import ShadowService
from tidegauge.agent.state import StateStore
from tidegauge.agent.streams import LOSS, LOSS_BY_KIND, NMSE
from tidegauge.agent.suspicion import Suspicion
from tidegauge.attribution import (
    CHANGE,
    REPLAYS,
    TERMS,
    Observables,
    Replay,
    Verdict,
    attribute,
    judge_replay,
    resolve,
    terms,
)
from tidegauge.bundles.manifest import Cause
from tidegauge.clocks import Monotonic, monotonic
from tidegauge.detectors.alarm import Alarm
from tidegauge.metrics import AgentMetrics

log = logging.getLogger(__name__)

#: Detectors that compare device and reference on live inputs, those fed with samples first.
STATISTICAL = frozenset({LOSS, NMSE, LOSS_BY_KIND})
PAIRED = STATISTICAL | {"acceptance"}
#: Pairs kept to choose the one to capture from: the worst of the newest.
RECENT = 8


class Verdicts:
    """Holds what is suspected until a golden round that began after it has ended; then latches one alarm for all."""

    def __init__(
        self,
        config: AgentConfig,
        store: StateStore,
        alarms: AlarmBook,
        golden: GoldenService,
        shadow: ShadowService,
        bus: Bus,
        metrics: AgentMetrics,
    ) -> None:
        self._config, self._store, self._alarms = config, store, alarms
        self._golden, self._shadow, self._bus, self._metrics = golden, shadow, bus, metrics
        self.suspicion = Suspicion()
        self.recent: deque[Evidence] = deque(maxlen=RECENT)
        self.golden_evidence: dict[int, Evidence] = {}
        self._replay: Replayed | None = None
        self._cleared = Monotonic(0.0)

    def clear(self) -> None:
        self.suspicion = Suspicion()
        self.recent.clear()
        self._replay = None
        self._cleared = monotonic()

    def suspect(self, alarm: Alarm) -> None:
        """A detector has raised its alarm. One that is latched already says nothing new."""
        if self._alarms.is_latched(alarm.detector) or not self.suspicion.add(alarm, monotonic()):
            return
        log.warning("%s: %s", alarm.detector, alarm.message)
        if alarm.detector in PAIRED and (worst := self._worst()) is not None:
            self._golden.replay_next(worst)
        self._shadow.force_next()
        self._bus.emit(GoldenWanted(alarm.detector))

    def blame_change(self, alarm: Alarm) -> None:
        """A new acceptance after a change is worse than the one before it: no round has to tell who is at fault."""
        evidence = self._worst()
        symptoms = evidence.measured.symptoms if evidence is not None else ()
        cause = Cause(alarm.detector, CHANGE.fault, symptoms, alarm.evidence, f"{alarm.message}. {CHANGE.sentence}")
        self._alarms.latch([(alarm.detector, alarm.message)], cause, evidence)

    def round_ended(self, event: GoldenRoundEnded, inputs: InputWatch) -> None:
        """Give the verdict where this round was what it waited for. One that began before the alarms were cleared says
        nothing: the cure may have come while it ran."""
        if event.started < self._cleared:
            return
        for alarm in event.alarms:
            self.suspect(alarm)
        self._replay = event.replay or self._replay
        if self.suspicion.round_ended(event):
            self._conclude(event, inputs)
        elif self.suspicion.suspects:
            self._bus.emit(GoldenWanted("an alarm waits for a golden round that began after it"))

    def _conclude(self, golden: GoldenRoundEnded, inputs: InputWatch) -> None:
        """Give every suspect its verdict, latch them as one alarm, and say so."""
        suspects = self.suspicion.take()
        evidence = self._evidence_for(suspects, golden)
        replay = self._judge_replay(golden, evidence)
        verdict, shares = self._verdict(suspects, golden, inputs, replay)
        numbers = {key: value for each in suspects for key, value in each.evidence.items()} | shares
        said = [each.message for each in suspects]
        cause = Cause(
            detector=suspects[0].detector,
            verdict=verdict.fault,
            symptoms=evidence.measured.symptoms if evidence is not None else (),
            evidence=numbers,
            message=f"{'; '.join(said)}. {verdict.sentence}{f' {REPLAYS[replay]}' if replay else ''}",
            severity="warning" if verdict.severity == "warning" else "critical",
            replay=replay or "",
        )
        found = [(each.detector, each.message) for each in suspects]
        self._replay = None
        self._alarms.latch(found, cause, evidence, capture=not self._captured(verdict.fault))

    def _verdict(
        self, suspects: list[Alarm], golden: GoldenRoundEnded, inputs: InputWatch, replay: Replay | None
    ) -> tuple[Verdict, dict[str, float]]:
        """The verdict, and the decomposition's terms where the change of the loss was decomposed."""
        verdict = attribute(self._observables(suspects, golden, inputs))
        found = inputs.decomposition() if any(each.detector in STATISTICAL for each in suspects) else None
        names = {each.detector for each in suspects} | {each.detector for each in self._alarms.alarms}
        verdict = resolve(
            verdict,
            found,
            repeats=None if replay is None else replay != "not_reproducible",
            errors_only=names & PAIRED == {NMSE},
        )
        shares = {} if found is None else terms(found)
        for name in TERMS[:3]:
            if name in shares:
                self._metrics.change.labels(self._metrics.model, name).set(shares[name])
        return verdict, shares

    def _observables(self, suspects: list[Alarm], golden: GoldenRoundEnded, inputs: InputWatch) -> Observables:
        """What attribution looks at. While nothing is accepted, a golden loss above the limit is a wrong answer.

        `camera_ok` is true here: a frame of a faulty camera has fed no detector, so none of these alarms is its doing.
        """
        names = {each.detector for each in suspects} | {each.detector for each in self._alarms.alarms}
        known, accepted = golden.checked > 0, self._store.state.accepted is not None
        limit = self._config.golden.max_loss or self._config.acceptance.max_loss
        far = any(each.measured.loss > limit for each in self.golden_evidence.values())
        device_wrong = bool(golden.device) or (not accepted and far)
        replay = self._replay
        unsteady = replay is not None and any(each != replay.reference_live for each in replay.reference_again)
        return Observables(
            golden_device=None if not known else not device_wrong,
            golden_reference=None if not known else not (golden.reference or unsteady),
            paired=bool(names & PAIRED),
            invariant="invariant" in names,
            input_drift=inputs.changed,
            saturation=self._saturated(),
            camera_ok=True,
            accepted=accepted,
        )

    def _judge_replay(self, golden: GoldenRoundEnded, evidence: Evidence | None) -> Replay | None:
        """What the same input showed when it was run again; None where it was not."""
        replay, accepted = self._replay, self._store.state.accepted
        if replay is None or not replay.again or self._store.state.deterministic is False:
            return None
        near = accepted is not None and evidence is not None and evidence.measured.loss <= accepted.m0
        return judge_replay(replay.live, replay.again, None, near and not golden.device)

    def _captured(self, fault: str) -> bool:
        """Whether a latched alarm of this verdict has had its capture: further detectors see the same fault."""
        taken = {each.cause for each in self._store.state.captures}
        return any(alarm.verdict == fault and alarm.detector in taken for alarm in self._alarms.alarms)

    def _saturated(self) -> bool:
        """Whether the newest pair is saturated well beyond its reference."""
        return bool(self.recent and {"saturated_low", "saturated_high"} & set(self.recent[-1].measured.symptoms))

    def _worst(self) -> Evidence | None:
        return max(self.recent, key=lambda each: each.measured.loss, default=None)

    def _evidence_for(self, suspects: list[Alarm], golden: GoldenRoundEnded) -> Evidence | None:
        """The pair to capture from: a golden one that is wrong, or for privacy; else the worst of the newest."""
        wrong = [self.golden_evidence[index] for index in golden.device if index in self.golden_evidence]
        only_golden = self._config.capture.privacy == "golden"
        pool = wrong if only_golden or all(each.detector.startswith("known_answer") for each in suspects) else []
        if only_golden and not pool:
            pool = list(self.golden_evidence.values())
        if not pool and not only_golden:
            pool = [*self.recent, *wrong]
        return max(pool, key=lambda each: each.measured.loss, default=None)
