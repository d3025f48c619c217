"""The monitor: from measured pairs to suspicion and input warnings. No I/O of its own; it is driven by events.

Two phases: `Accepting` collects the healthy pair and freezes the reference, or fails; `Watching` feeds the detectors.
Invariants and the known-answer test guard in both. What a detector finds goes to `Verdicts`, which says who is at
fault; what a faulty camera shows goes nowhere.
"""

from __future__ import annotations

import logging

import msgspec

from tidegauge.agent.acceptance import Frozen
from tidegauge.agent.accepting import Accepting
from tidegauge.agent.alarms import AlarmBook
from tidegauge.agent.belonging import Belonging
from tidegauge.agent.bundling import Identity
from tidegauge.agent.bus import Bus
from tidegauge.agent.contexts import ContextStatus
from tidegauge.agent.events import (
    AlarmCleared,
    AlarmRaised,
    CaptureEnded,
    FrameProcessed,
    GoldenChecked,
    GoldenRoundEnded,
    GoldenWanted,
    LossArrived,
    PhaseChanged,
    PipelineUp,
    ShadowUp,
)
from tidegauge.agent.samples import sample_of
from tidegauge.agent.scene import SceneWatch
from tidegauge.agent.state import Latched, StateStore
from tidegauge.agent.verdicts import Verdicts
from tidegauge.agent.watching import Watching
from tidegauge.clocks import Stamp
from tidegauge.detectors import invariants
from tidegauge.detectors.acceptance import Rejected
from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.distance import Distance
from tidegauge.errors import TidegaugeError
from tidegauge.log_kinds import REFERENCE_VOID
from tidegauge.metrics import AgentMetrics
from tidegauge.profile import Profile

log = logging.getLogger(__name__)


class AcceptanceStatus(msgspec.Struct, frozen=True):
    """`state` running, accepted or failed; `left` seconds until its predicted end; `accepted_at` where it has ended.

    `why` it has failed, else empty.
    """

    state: str
    progress: float
    left: float | None
    accepted_at: Stamp | None
    why: str = ""


class Monitor:
    """Registers its handlers on the bus; `begin()` before anything runs."""

    def __init__(
        self,
        profile: Profile,
        store: StateStore,
        alarms: AlarmBook,
        scene: SceneWatch,
        accepting: Accepting,
        watching: Watching,
        verdicts: Verdicts,
        bus: Bus,
        metrics: AgentMetrics,
    ) -> None:
        self._profile, self._store, self._alarms, self._scene = profile, store, alarms, scene
        self._accepting, self._watching, self._verdicts = accepting, watching, verdicts
        self._bus, self._metrics = bus, metrics
        self._belonging = Belonging(store)
        self._broken_invariant = ""
        self._golden_mismatch = ""
        bus.on(LossArrived, self._on_loss)
        bus.on(FrameProcessed, self._on_frame)
        bus.on(GoldenChecked, self._on_golden)
        bus.on(GoldenRoundEnded, self._on_round)
        bus.on(PipelineUp, lambda event: self._runtime_known(self._belonging.device(event.ready)))
        bus.on(ShadowUp, lambda event: self._runtime_known(self._belonging.reference(event.ready)))
        for kind in (AlarmRaised, AlarmCleared, CaptureEnded):
            bus.on(kind, lambda _: self._say_phase())

    # --- start, and what a reference belongs to ---

    def begin(self, identity: Identity) -> None:
        """Take up the stored reference if it belongs to what runs now; else start a new acceptance."""
        self._alarms.show()
        if changed := self._belonging.begin(identity):
            self._void(changed)
        self._watching.take_up(self._belonging.belongs)
        if self._watching.active:
            self._metrics.acceptance.labels(self._metrics.model).set(1)
        digest = identity.artifacts_sha256[:12]
        runtime = (self._profile.runtime, identity.reference_runtime or "cpu")
        self._metrics.artifact.clear()  # one at a time: also where it was another one up to now
        self._metrics.artifact.labels(self._metrics.model, digest, *runtime).set(1)
        self._scene.adopt()
        self._say_phase()

    def _runtime_known(self, changed: str) -> None:
        """A side has said what computes there."""
        if changed:
            self._void(changed)
        self._begin_acceptance()
        self._say_phase()

    def _begin_acceptance(self) -> None:
        """Once both sides have told what computes, so that it is known what the samples belong to."""
        if self._belonging.complete and not self._watching.active and not self._accepting.begun:
            self._accepted_or_not(self._accepting.begin(self._belonging.belongs))

    def _void(self, changed: str) -> None:
        """What was accepted belongs to something that no longer runs: a new acceptance, to be compared with it."""
        said = REFERENCE_VOID.of(changed=changed)
        log.warning("%s changed: the accepted reference is void, a new acceptance starts", changed, extra=said)
        state = self._store.state
        self._alarms.clear(f"{changed} changed")
        self._store.update(previous=state.accepted or state.previous, change=changed, latency=None, traces=None)
        self._forget()

    def _forget(self) -> None:
        """No reference, no evidence; acceptance from its first sample."""
        self._watching.stop()
        self._verdicts.clear()
        self._verdicts.golden_evidence.clear()
        self._golden_mismatch = ""
        self._accepting.forget()
        self._begin_acceptance()

    def _say_phase(self) -> None:
        if any(alarm.severity == "critical" for alarm in self._store.state.alarms):
            self._bus.emit(PhaseChanged("alarmed", 1.0))
        elif self._watching.active:
            self._bus.emit(PhaseChanged("watching", 1.0))
        else:
            self._bus.emit(PhaseChanged("acceptance", self._accepting.progress))

    # --- what a person asks for ---

    def clear(self) -> tuple[Latched, ...]:
        """Evidence to zero, the reference kept. Returns the alarms that were latched."""
        self._verdicts.clear()
        self._watching.clear()
        cleared = self._alarms.clear()
        self._say_phase()
        return cleared

    def holding(self) -> str:
        """What is wrong at this moment, as far as it is known: a symptom or a golden mismatch; else empty."""
        suspects, recent = self._verdicts.suspicion.suspects, self._verdicts.recent
        if suspects:
            return f"an alarm waits for its verdict ({suspects[0].message})"
        if self._broken_invariant:
            return self._broken_invariant
        if self._golden_mismatch:
            return self._golden_mismatch
        if recent and recent[-1].measured.symptoms:
            return f"the newest shadow sample shows {', '.join(recent[-1].measured.symptoms)}"
        return ""

    def rebaseline(self) -> None:
        """Forget the reference and start a new acceptance. Raises TidegaugeError while something is wrong."""
        why = self.holding()
        if why:
            raise TidegaugeError(
                f"no new acceptance: {why}",
                "cure the device first (a new reference must not be taken from a wrong one), then ask again",
            )
        self._store.update(previous=None, change="")
        self._forget()
        self.clear()

    # --- what others may know ---

    def acceptance_status(self) -> AcceptanceStatus:
        """How far acceptance is, and when it will end at the pace it has had."""
        state, progress = self._store.state, self._accepting.progress
        if state.accepted is not None:
            return AcceptanceStatus("accepted", 1.0, None, state.accepted_at)
        if self._accepting.failed:
            return AcceptanceStatus("failed", progress, None, None, self._accepting.failed)
        return AcceptanceStatus("running", progress, self._accepting.left, None)

    @property
    def distance(self) -> Distance | None:
        """Of the last day's mean loss from acceptance's; None while too little is known."""
        return self._watching.distance

    def evidence(self) -> dict[str, tuple[float, float]]:
        """Log evidence and its limit by detector, of the context nearest to it; empty before anything is accepted."""
        return self._watching.evidence()

    def contexts(self) -> dict[str, ContextStatus]:
        """By light context: what it has collected, or what it is tested by."""
        return self._watching.status() if self._watching.active else self._accepting.status()

    @property
    def judged_inputs(self) -> tuple[str, ...]:
        """Light contexts whose inputs are compared with those of acceptance."""
        return self._watching.inputs.contexts

    # --- events ---

    def _on_frame(self, event: FrameProcessed) -> None:
        """Invariants: every frame."""
        alarm = invariants.check(event.done.outputs)
        self._broken_invariant = alarm.message if alarm is not None else ""
        if alarm is not None:
            self._verdicts.suspect(alarm)

    def _on_loss(self, event: LossArrived) -> None:
        evidence, scene, model = event.evidence, event.scene, self._metrics.model
        if evidence.measured.empty:
            self._metrics.empty.labels(model).inc()
        if event.forced:
            self._verdicts.suspicion.forced_pair_came()
        if scene.problem or self._scene.scene.problem:
            # Also where the camera has got worse since: it may have been a fault's first frame.
            self._metrics.held_out.labels(model, "camera").inc()
            return
        self._verdicts.recent.append(evidence)
        if event.forced:
            return
        sample = sample_of(evidence, scene, self._profile)
        if self._watching.active:
            for alarm in self._watching.update(sample):
                self._verdicts.suspect(alarm)
        elif self._accepting.begun and not self._accepting.failed:
            self._accepted_or_not(self._accepting.update(evidence, sample))
            self._say_phase()

    def _accepted_or_not(self, outcome: Frozen | Rejected | None) -> None:
        """What a sample, a golden tensor or the journal has led to."""
        if isinstance(outcome, Rejected):
            self._verdicts.suspect(Alarm("acceptance", outcome.reason, outcome.evidence))
        elif isinstance(outcome, Frozen):
            worse = self._accepting.freeze(outcome)
            self._watching.start(outcome)
            if worse is not None:
                self._verdicts.blame_change(worse)
            self._bus.emit(GoldenWanted("a new reference was accepted"))

    def _on_golden(self, event: GoldenChecked) -> None:
        self._verdicts.golden_evidence[event.index] = event.evidence
        if not self._watching.active and not self._accepting.failed:
            self._accepted_or_not(self._accepting.golden_loss(event.index, event.evidence.measured.loss))

    def _on_round(self, event: GoldenRoundEnded) -> None:
        model = self._metrics.model
        for side, wrong in (("device", event.device), ("reference", event.reference)):
            self._metrics.known_answer.labels(model, side, "ok").inc(event.checked - len(wrong))
            self._metrics.known_answer.labels(model, side, "mismatch").inc(len(wrong))
        if event.checked:
            self._golden_mismatch = "; ".join(alarm.message for alarm in event.alarms)
        self._verdicts.round_ended(event, self._watching.inputs)
