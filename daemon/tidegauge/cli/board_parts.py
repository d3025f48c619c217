"""The agent's own parts that watch an accepted reference, for evaluations: they may not import the agent themselves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from tidegauge.agent.contexts import Contexts, split
from tidegauge.agent.events import Evidence, Scene
from tidegauge.agent.inputs import InputWatch
from tidegauge.agent.reference import InputReference, from_samples
from tidegauge.agent.samples import Belongs, Sample, sample_of
from tidegauge.agent.watch_config import ContextsConfig, InputDriftConfig
from tidegauge.attribution import Decomposition
from tidegauge.clocks import Monotonic
from tidegauge.detectors.acceptance import Acceptance, AcceptanceRules, Accepted, Rejected, kind_limit
from tidegauge.detectors.alarm import Alarm
from tidegauge.evaluation.stack import WINDOW_INTERVAL, Frozen, Seen
from tidegauge.pipeline.messages import LossMeasured
from tidegauge.profile import Output, Preprocess, Profile


class AgentWatch:
    """As the agent's watching phase, without its metrics, store and alarm book."""

    def __init__(
        self, output: Output, rules: AcceptanceRules, contexts: dict[str, Accepted], inputs: InputReference
    ) -> None:
        self._output = output
        self._contexts = Contexts(rules, contexts)
        self._inputs = InputWatch(inputs, InputDriftConfig(interval=WINDOW_INTERVAL), Monotonic(0.0))

    def update(self, now: float, seen: Seen) -> tuple[list[Alarm], Alarm | None]:
        sample = as_sample(self._output, seen)
        _, warning = self._inputs.update(Monotonic(now), sample)
        limit = self._inputs.limit(sample)
        return (self._contexts.update(sample, limit) if sample.settled else []), warning

    @property
    def changed(self) -> bool:
        return self._inputs.changed

    def decomposition(self) -> Decomposition | None:
        return self._inputs.decomposition()


def freeze(output: Output, rules: AcceptanceRules, seen: Sequence[Seen]) -> Frozen | Rejected:
    """What the agent freezes after these samples. Raises ValueError where they are too few for an outcome."""
    acceptance, samples = Acceptance(rules), [as_sample(output, each) for each in seen]
    outcome: Accepted | Rejected | None = None
    for sample in samples:
        outcome = acceptance.update(sample.loss, sample.nmse, sample.symptoms)
        if outcome is not None:
            break
    if outcome is None:
        raise ValueError(f"{len(samples)} samples are too few for an acceptance")
    if isinstance(outcome, Rejected):
        return outcome
    of_context = msgspec.structs.replace(rules, samples=min(ContextsConfig().samples, rules.samples), independent=0)
    contexts, why = split(of_context, samples)
    if why:
        return Rejected(why, {})
    inputs = from_samples(Belongs("", "", {}), samples, partial(kind_limit, rules, outcome))
    return Frozen(outcome, inputs.camera, inputs.features, lambda: AgentWatch(output, of_context, contexts, inputs))


def as_sample(output: Output, seen: Seen) -> Sample:
    """The sample as the agent makes it of the shadow worker's answer."""
    measured = LossMeasured(
        sample_id=0,
        slot=0,
        generation=0,
        frame_id=0,
        golden=-1,
        loss=seen.measured.loss,
        errors=(seen.measured.errors,),
        symptoms=seen.measured.symptoms,
        reference_digest="",
        cpu_seconds=0.0,
        features=seen.measured.features,
        summary=seen.measured.summary,
    )
    profile = Profile("evaluated", "onnx", "", "", Preprocess(width=1, height=1), output)
    scene = Scene(seen.context, not seen.settled, "", seen.look)
    return sample_of(Evidence(measured, "", (), (), ()), scene, profile)
