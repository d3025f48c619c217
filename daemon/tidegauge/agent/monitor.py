"""The monitor: from measured pairs to latched alarms with a verdict. No I/O of its own; it is driven by events.

Two phases: `acceptance` collects the healthy pair and freezes the reference, or fails; `watching` feeds the detectors.
Invariants and the known-answer test guard in both. A detector's alarm becomes an alarm of the agent only after a golden
round has told device and reference apart (DESIGN §6.4), or has failed to.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque

import msgspec

from tidegauge.agent.alarms import AlarmBook
from tidegauge.agent.bundling import Identity
from tidegauge.agent.bus import Bus
from tidegauge.agent.candidates import GoldenCandidates
from tidegauge.agent.config import AgentConfig
from tidegauge.agent.events import (
    CaptureEnded,
    Evidence,
    FrameProcessed,
    GoldenChecked,
    GoldenRoundEnded,
    GoldenWanted,
    LossArrived,
    PhaseChanged,
)
from tidegauge.agent.golden import GoldenService
from tidegauge.agent.shadow import ShadowService
from tidegauge.agent.state import Golden, Latched, StateStore
from tidegauge.agent.streams import Streams
from tidegauge.agent.suspicion import Suspicion
from tidegauge.attribution import Observables, attribute
from tidegauge.bundles.manifest import Cause
from tidegauge.clocks import Stamp, monotonic, stamp
from tidegauge.detectors import invariants
from tidegauge.detectors.acceptance import Acceptance, AcceptanceRules, Accepted, Rejected, worse_than
from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.rates import detection
from tidegauge.errors import TidegaugeError
from tidegauge.metrics import AgentMetrics
from tidegauge.profile import Profile

log = logging.getLogger(__name__)


class AcceptanceStatus(msgspec.Struct, frozen=True):
    """`state` running, accepted or failed; `left` seconds until its predicted end; `accepted_at` where it has ended."""

    state: str
    progress: float
    left: float | None
    accepted_at: Stamp | None


#: Pairs kept to choose the one to capture from: the worst of the newest.
RECENT = 8


class Monitor:
    """Registers its handlers on the bus; `begin()` before anything runs."""

    def __init__(
        self,
        config: AgentConfig,
        profile: Profile,
        store: StateStore,
        alarms: AlarmBook,
        golden: GoldenService,
        shadow: ShadowService,
        bus: Bus,
        metrics: AgentMetrics,
    ) -> None:
        self._config, self._profile, self._store, self._alarms = config, profile, store, alarms
        self._golden, self._shadow, self._bus, self._metrics = golden, shadow, bus, metrics
        self._acceptance = Acceptance(rules(config))
        self._streams: Streams | None = None
        self._failed = False
        self._recent: deque[Evidence] = deque(maxlen=RECENT)
        self._candidates = GoldenCandidates()
        self._golden_evidence: dict[int, Evidence] = {}
        self._suspicion = Suspicion()
        self._broken_invariant = ""
        self._golden_mismatch = ""
        self._acceptance_began = monotonic()
        bus.on(LossArrived, self._on_loss)
        bus.on(FrameProcessed, self._on_frame)
        bus.on(GoldenChecked, self._on_golden)
        bus.on(GoldenRoundEnded, self._on_round)
        bus.on(CaptureEnded, lambda _: self._say_phase())

    # --- start ---

    def begin(self, identity: Identity) -> None:
        """Take up the stored reference if it belongs to what runs now; else start a new acceptance."""
        state = self._store.state
        same = (state.artifacts, state.model) == (identity.artifacts_sha256, identity.model)
        model = self._metrics.model
        if not same:
            if state.artifacts:
                log.warning("artifacts or model have changed: the accepted reference is void, a new acceptance starts")
            self._store.update(
                artifacts=identity.artifacts_sha256,
                model=identity.model,
                accepted=None,
                previous=state.accepted or state.previous,
                golden=(),
                streams=None,
                alarms=(),
                latency=None,
                traces=None,
            )
            self._golden.forget_others()
        self._alarms.show()
        accepted = self._store.state.accepted
        if accepted is not None:
            self._streams = Streams(accepted, self._store.state.streams)
            self._metrics.acceptance.labels(model).set(1)
        digest = identity.artifacts_sha256[:12]
        self._metrics.artifact.labels(model, digest, self._profile.runtime, identity.reference_runtime or "cpu").set(1)
        self._say_phase()

    def _say_phase(self) -> None:
        if self._store.state.alarms:
            self._bus.emit(PhaseChanged("alarmed", 1.0))
        elif self._streams is not None:
            self._bus.emit(PhaseChanged("watching", 1.0))
        else:
            self._bus.emit(PhaseChanged("acceptance", self._acceptance.progress))

    # --- what a person asks for ---

    def clear(self) -> tuple[Latched, ...]:
        """Evidence to zero, the reference kept. Returns the alarms that were latched."""
        accepted = self._store.state.accepted
        self._suspicion = Suspicion()
        self._recent.clear()
        if accepted is not None:
            self._streams = Streams(accepted, None)
            self._say_evidence(self._streams)
        self._store.update(streams=None)
        cleared = self._alarms.clear()
        self._say_phase()
        return cleared

    def holding(self) -> str:
        """What is wrong at this moment, as far as it is known: a symptom or a golden mismatch; else empty."""
        if self._suspicion.suspects:
            return f"an alarm waits for its verdict ({self._suspicion.suspects[0].message})"
        if self._broken_invariant:
            return self._broken_invariant
        if self._golden_mismatch:
            return self._golden_mismatch
        if self._recent and self._recent[-1].measured.symptoms:
            return f"the newest shadow sample shows {', '.join(self._recent[-1].measured.symptoms)}"
        return ""

    def rebaseline(self) -> None:
        """Forget the reference and start a new acceptance. Raises TidegaugeError while something is wrong."""
        why = self.holding()
        if why:
            raise TidegaugeError(
                f"no new acceptance: {why}",
                "cure the device first (a new reference must not be taken from a wrong one), then ask again",
            )
        self._store.update(accepted=None, accepted_at=None, previous=None, golden=(), streams=None)
        self._golden.forget_others()
        self._acceptance = Acceptance(rules(self._config))
        self._acceptance_began = monotonic()
        self._streams, self._failed = None, False
        self._candidates, self._golden_evidence = GoldenCandidates(), {}
        model = self._metrics.model
        self._metrics.acceptance.labels(model).set(0)
        self._metrics.acceptance_failed.labels(model).set(0)
        self.clear()

    def acceptance_status(self) -> AcceptanceStatus:
        """How far acceptance is, and when it will end at the pace it has had."""
        state, progress = self._store.state, self._acceptance.progress
        if state.accepted is not None:
            return AcceptanceStatus("accepted", 1.0, None, state.accepted_at)
        if self._failed:
            return AcceptanceStatus("failed", progress, None, None)
        elapsed = monotonic() - self._acceptance_began
        whole = self._config.acceptance.samples * self._config.shadow.gap_mean
        left = elapsed * (1 - progress) / progress if progress > 0.02 else whole * (1 - progress)
        return AcceptanceStatus("running", progress, left, None)

    def evidence(self) -> dict[str, tuple[float, float]]:
        """Log evidence and its limit by detector; empty before anything is accepted."""
        return {} if self._streams is None else self._streams.evidence()

    # --- invariants: every frame ---

    def _on_frame(self, event: FrameProcessed) -> None:
        alarm = invariants.check(event.done.outputs)
        self._broken_invariant = alarm.message if alarm is not None else ""
        if alarm is not None:
            self._suspect(alarm)

    # --- losses ---

    def _on_loss(self, event: LossArrived) -> None:
        evidence = event.evidence
        self._recent.append(evidence)
        if event.forced:
            self._suspicion.forced_pair_came()
        else:
            if self._streams is not None:
                self._watch(self._streams, evidence)
            elif not self._failed:
                self._accept(evidence)

    def _accept(self, evidence: Evidence) -> None:
        measured = evidence.measured
        self._consider_as_golden(evidence)
        outcome = self._acceptance.update(measured.loss, self._nmse(evidence), measured.symptoms)
        self._metrics.acceptance.labels(self._metrics.model).set(self._acceptance.progress)
        if isinstance(outcome, Accepted):
            self._freeze(outcome)
        elif isinstance(outcome, Rejected):
            self._reject(Alarm("acceptance", outcome.reason, outcome.evidence))
        self._say_phase()

    def _watch(self, streams: Streams, evidence: Evidence) -> None:
        alarms = streams.update(evidence.measured.loss, self._nmse(evidence))
        self._say_evidence(streams)
        if streams.changed:
            self._store.update(streams=streams.state())
        for alarm in alarms:
            self._suspect(alarm)

    def _say_evidence(self, streams: Streams) -> None:
        model = self._metrics.model
        for name, (log_evidence, limit) in streams.evidence().items():
            self._metrics.evidence.labels(model, name).set(log_evidence)
            self._metrics.evidence_limit.labels(model, name).set(limit)

    def _nmse(self, evidence: Evidence) -> float | None:
        for errors in evidence.measured.errors:
            if errors.output == self._profile.output.name:
                return errors.nmse
        return None

    def _freeze(self, accepted: Accepted) -> None:
        golden = tuple(
            self._golden_of(index, e) for index, e in enumerate(self._candidates.chosen(self._config.golden.count))
        )
        previous = self._store.state.previous
        self._store.update(accepted=accepted, accepted_at=stamp(), previous=None, golden=golden, streams=None)
        self._golden.forget_others()
        self._streams = Streams(accepted, None)
        if previous is not None and (alarm := worse_than(previous, accepted)) is not None:
            self._suspect(alarm)
        for share in (0.2, 0.5):
            found = detection(
                accepted.m0, accepted.alpha, accepted.block, accepted.gap, share, accepted.correlation_time
            )
            log.info("a disagreement of %.0f %% is found in %.2g hours on average", 100 * share, found.hours)
        log.info(
            "accepted: mean loss %.4f, limit m0 %.4f, block of %d samples", accepted.mean, accepted.m0, accepted.block
        )
        self._bus.emit(GoldenWanted("a new reference was accepted"))

    def _reject(self, alarm: Alarm) -> None:
        self._failed = True
        self._metrics.acceptance_failed.labels(self._metrics.model).set(1)
        self._suspect(alarm)

    # --- golden tensors ---

    def _consider_as_golden(self, evidence: Evidence) -> None:
        if self._candidates.consider(evidence):
            self._store.update(golden=(self._golden_of(0, evidence),))

    def _golden_of(self, index: int, evidence: Evidence) -> Golden:
        sha256 = hashlib.sha256(b"".join(evidence.inputs)).hexdigest()
        golden = Golden(index, sha256, evidence.digest, evidence.measured.reference_digest)
        self._golden.keep(golden, evidence.inputs)
        return golden

    def _on_golden(self, event: GoldenChecked) -> None:
        self._golden_evidence[event.index] = event.evidence
        if self._streams is not None or self._failed:
            return
        rejected = self._acceptance.golden(event.index, event.evidence.measured.loss)
        if rejected is not None:
            self._reject(Alarm("acceptance", rejected.reason, rejected.evidence))

    def _on_round(self, event: GoldenRoundEnded) -> None:
        model = self._metrics.model
        for side, wrong in (("device", event.device), ("reference", event.reference)):
            self._metrics.known_answer.labels(model, side, "ok").inc(event.checked - len(wrong))
            self._metrics.known_answer.labels(model, side, "mismatch").inc(len(wrong))
        if event.checked:
            self._golden_mismatch = "; ".join(alarm.message for alarm in event.alarms)
        for alarm in event.alarms:
            self._suspect(alarm)
        if self._suspicion.round_ended(event):
            self._conclude(event)
        elif self._suspicion.suspects:
            self._bus.emit(GoldenWanted("an alarm waits for a golden round that began after it"))

    # --- from a detector's alarm to an alarm of the agent ---

    def _suspect(self, alarm: Alarm) -> None:
        if self._alarms.is_latched(alarm.detector):
            return
        if not self._suspicion.add(alarm, monotonic()):
            return
        log.warning("%s: %s", alarm.detector, alarm.message)
        self._shadow.force_next()
        self._bus.emit(GoldenWanted(alarm.detector))

    def _conclude(self, golden: GoldenRoundEnded) -> None:
        """Give every suspect its verdict, latch them as one alarm, and say so."""
        suspects = self._suspicion.take()
        verdict = attribute(self._observables(suspects, golden))
        evidence = self._evidence_for(suspects, golden)
        first = suspects[0]
        cause = Cause(
            detector=first.detector,
            verdict=verdict.fault,
            symptoms=evidence.measured.symptoms if evidence is not None else (),
            evidence={key: value for each in suspects for key, value in each.evidence.items()},
            message=f"{'; '.join(each.message for each in suspects)}. {verdict.sentence}",
        )
        found = [(each.detector, each.message) for each in suspects]
        self._alarms.latch(found, cause, evidence, capture=not self._captured(verdict.fault))
        self._say_phase()

    def _captured(self, fault: str) -> bool:
        """Whether a latched alarm of this verdict has had its capture: further detectors see the same fault."""
        taken = {each.cause for each in self._store.state.captures}
        return any(alarm.verdict == fault and alarm.detector in taken for alarm in self._alarms.alarms)

    def _observables(self, suspects: list[Alarm], golden: GoldenRoundEnded) -> Observables:
        """What attribution looks at. While nothing is accepted, a golden loss above the limit is a wrong answer."""
        names = {each.detector for each in suspects} | {each.detector for each in self._store.state.alarms}
        known = golden.checked > 0
        limit = self._config.golden.max_loss or self._config.acceptance.max_loss
        far = any(each.measured.loss > limit for each in self._golden_evidence.values())
        device_wrong = bool(golden.device) or (self._streams is None and far)
        return Observables(
            golden_device=None if not known else not device_wrong,
            golden_reference=None if not known else not golden.reference,
            paired=bool(names & {"loss", "nmse", "acceptance"}),
            invariant="invariant" in names,
            input_drift=False,
            saturation=self._saturated(),
            camera_ok=True,
            accepted=self._streams is not None,
        )

    def _saturated(self) -> bool:
        """Whether the newest pair is saturated well beyond its reference."""
        if not self._recent:
            return False
        return bool({"saturated_low", "saturated_high"} & set(self._recent[-1].measured.symptoms))

    def _evidence_for(self, suspects: list[Alarm], golden: GoldenRoundEnded) -> Evidence | None:
        """The pair to capture from: a golden one that is wrong, or for privacy; else the worst of the newest."""
        wrong = [self._golden_evidence[index] for index in golden.device if index in self._golden_evidence]
        only_golden = self._config.capture.privacy == "golden"
        pool = wrong if only_golden or all(each.detector.startswith("known_answer") for each in suspects) else []
        if only_golden and not pool:
            pool = list(self._golden_evidence.values())
        if not pool and not only_golden:
            pool = [*self._recent, *wrong]
        return max(pool, key=lambda each: each.measured.loss, default=None)


def rules(config: AgentConfig) -> AcceptanceRules:
    """What the acceptance goes by, from the keys of four tables."""
    acceptance, detector = config.acceptance, config.detector
    return AcceptanceRules(
        samples=acceptance.samples,
        max_loss=acceptance.max_loss,
        golden_max_loss=config.golden.max_loss,
        tolerance=acceptance.tolerance,
        minimum=acceptance.minimum,
        symptom_samples=acceptance.symptom_samples,
        nmse_quantile=acceptance.nmse_quantile,
        gap=config.shadow.gap_mean,
        false_alarms_per_year=detector.false_alarms_per_year,
        block=detector.block,
        alpha=detector.alpha,
    )
