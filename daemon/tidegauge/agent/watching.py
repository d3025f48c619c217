"""The watching phase: shadow samples of a healthy camera feed the detectors of their light context, and input drift."""

from __future__ import annotations

from tidegauge.agent import reference
from tidegauge.agent.acceptance import Frozen, context_rules
from tidegauge.agent.alarms import AlarmBook
from tidegauge.agent.config import AgentConfig
from tidegauge.agent.contexts import Contexts, ContextStatus
from tidegauge.agent.inputs import InputWatch
from tidegauge.agent.samples import Belongs, Sample
from tidegauge.agent.scene import SceneWatch
from tidegauge.agent.state import StateStore
from tidegauge.attribution import DATA
from tidegauge.bundles.manifest import Cause
from tidegauge.clocks import monotonic
from tidegauge.detectors.acceptance import Accepted
from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.distance import Distance, DistanceFromAcceptance
from tidegauge.metrics import BOUNDS, LIGHT_CONTEXTS, STREAMS, AgentMetrics

#: Samples between two looks at the distance from acceptance.
LOOK = 16


class Watching:
    """What belongs to one accepted reference; `active` while there is one."""

    def __init__(
        self, config: AgentConfig, store: StateStore, alarms: AlarmBook, scene: SceneWatch, metrics: AgentMetrics
    ) -> None:
        self._config, self._store, self._alarms = config, store, alarms
        self._scene, self._metrics = scene, metrics
        self._contexts: Contexts | None = None
        self._distance: DistanceFromAcceptance | None = None
        self.distance: Distance | None = None
        self._samples = 0
        self.inputs = InputWatch(None, config.input_drift, monotonic())

    @property
    def active(self) -> bool:
        return self._contexts is not None

    def take_up(self, belongs: Belongs) -> None:
        """The stored reference with its evidence, where there is one."""
        state = self._store.state
        if state.accepted is not None:
            self._contexts = Contexts(context_rules(self._config), state.contexts, state.watching)
            self._measure_from(state.accepted)
            self._look_after(reference.load(self._store.folder, belongs))
            self._say_evidence(self._contexts)

    def start(self, frozen: Frozen) -> None:
        """A new reference, and no evidence."""
        self._contexts = Contexts(context_rules(self._config), frozen.contexts)
        self._contexts.collect(frozen.samples)
        self._measure_from(frozen.accepted)
        self._look_after(frozen.inputs)
        self._say_evidence(self._contexts)

    def stop(self) -> None:
        self._contexts = None
        self._measure_from(None)
        self._look_after(None)

    def clear(self) -> None:
        """Evidence to zero, the reference kept."""
        self.inputs.clear()
        if self._contexts is not None:
            self._contexts.clear()
            self._store.update(watching=self._contexts.states())
            self._say_evidence(self._contexts)

    def update(self, sample: Sample) -> list[Alarm]:
        """One sample. What is held out, and why, is counted."""
        contexts = self._contexts
        if contexts is None:
            raise RuntimeError("a sample to watch, and no reference")
        judged, warning = self.inputs.update(monotonic(), sample)
        if judged:
            self._warn_of_inputs(warning)
        if why := self._held_out(contexts, sample):
            self._metrics.held_out.labels(self._metrics.model, why).inc()
        if why in ("light_changing", "reference"):
            return []
        self._say_distance(sample.loss)
        alarms = contexts.update(sample, self.inputs.limit(sample))
        self._say_evidence(contexts)
        if contexts.changed or judged:
            now = monotonic()
            self._store.update(watching=contexts.states(), contexts=contexts.accepted(), inputs=self.inputs.states(now))
        return alarms

    def evidence(self) -> dict[str, tuple[float, float]]:
        """By detector, of the light context that is nearest to its limit."""
        return {} if self._contexts is None else self._contexts.evidence()

    def status(self) -> dict[str, ContextStatus]:
        return {} if self._contexts is None else self._contexts.status()

    def _held_out(self, contexts: Contexts, sample: Sample) -> str:
        """Why this sample is not tested; empty where it is. One of a context without a reference is collected."""
        if not sample.settled:
            return "light_changing"
        if any(alarm.verdict == "reference" for alarm in self._alarms.alarms):
            return "reference"  # it can't accuse anybody while it is at fault itself
        return "" if contexts.testable(sample.context) else "uncommissioned"

    def _measure_from(self, accepted: Accepted | None) -> None:
        self._distance, self.distance, self._samples = None, None, 0
        if accepted is not None:
            self._distance = DistanceFromAcceptance(accepted)
        self._metrics.distance.clear()

    def _say_distance(self, loss: float) -> None:
        """The mean loss of the last day against acceptance's; its interval is looked at every so many samples."""
        assert self._distance is not None  # there is one wherever there are contexts
        self._distance.update(monotonic(), loss)
        self._samples += 1
        if self._samples % LOOK:
            return
        self.distance = self._distance.found()
        if self.distance is not None:
            found = self.distance.difference
            for bound, value in zip(BOUNDS, (found.low, found.high), strict=True):
                self._metrics.distance.labels(self._metrics.model, bound).set(value)

    def _look_after(self, inputs: reference.InputReference | None) -> None:
        self._scene.references = {} if inputs is None else inputs.camera
        self.inputs = InputWatch(inputs, self._config.input_drift, monotonic(), self._store.state.inputs)

    def _say_evidence(self, contexts: Contexts) -> None:
        metrics = self._metrics
        evidence = contexts.evidence()
        for name, (log_evidence, limit) in ((name, evidence[name]) for name in STREAMS if name in evidence):
            metrics.evidence.labels(metrics.model, name).set(log_evidence)
            metrics.evidence_limit.labels(metrics.model, name).set(limit)
        for name, count in contexts.observations().items():
            if name in evidence and name in STREAMS:
                metrics.evidence_observations.labels(metrics.model, name).set(count)
        for context, status in contexts.status().items():
            if context in LIGHT_CONTEXTS:
                metrics.block.labels(metrics.model, context).set(status.block)

    def _warn_of_inputs(self, warning: Alarm | None) -> None:
        """Input drift is a warning, apart: it ends when a later window looks as acceptance did."""
        if warning is None:
            if self.inputs.drifted is None:
                self._alarms.end("input_drift", "the inputs look like those of acceptance again")
        elif not self._alarms.is_latched(warning.detector):
            said = f"{warning.message}. {DATA.sentence}"
            cause = Cause(warning.detector, DATA.fault, (), warning.evidence, said, "warning")
            self._alarms.latch([(warning.detector, warning.message)], cause, None, capture=False)
