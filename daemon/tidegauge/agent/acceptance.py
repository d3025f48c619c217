"""The acceptance as the agent runs it: samples in a journal, golden candidates, and in the end one frozen reference.

It ends when the samples of all light contexts together make a reference, or fail. Each context that has samples enough
then has a reference of its own; the others go on collecting while the agent watches.
"""

from __future__ import annotations

import logging
from functools import partial

import msgspec

from tidegauge.agent.candidates import Spans
from tidegauge.agent.config import AgentConfig
from tidegauge.agent.contexts import split
from tidegauge.agent.reference import InputReference, from_samples
from tidegauge.agent.samples import Belongs, Journal, Sample
from tidegauge.clocks import Monotonic
from tidegauge.detectors.acceptance import Acceptance, AcceptanceRules, Accepted, Rejected, kind_limit
from tidegauge.detectors.noise import Noise, noise

log = logging.getLogger(__name__)


class Frozen(msgspec.Struct, frozen=True):
    """What an acceptance has ended with: of all samples, of each light context with enough, and of the inputs."""

    accepted: Accepted
    contexts: dict[str, Accepted]
    inputs: InputReference
    samples: tuple[Sample, ...]

    def noise(self) -> dict[str, Noise]:
        """How far each output of the healthy device is from the reference's."""
        names = sorted({name for each in self.samples for name in each.errors})
        return {name: noise([each.errors[name] for each in self.samples if name in each.errors]) for name in names}


class AcceptanceRun:
    """One acceptance from its first sample to its outcome. `restore` takes up what the journal holds."""

    def __init__(self, config: AgentConfig, journal: Journal, now: Monotonic) -> None:
        self._rules = rules(config)
        self._context_rules = context_rules(config)
        self._journal = journal
        self._acceptance = Acceptance(self._rules)
        self._samples: list[Sample] = []
        self._ranges = Spans()
        self._began, self._restored = now, 0
        self._belongs: Belongs | None = None
        self.failed = ""

    @property
    def begun(self) -> bool:
        """Whether it is known what its samples belong to."""
        return self._belongs is not None

    def restore(self, belongs: Belongs) -> Frozen | Rejected | None:
        """Begin, with the samples that an earlier run of the agent collected for the same artifacts and runtimes.

        A failed acceptance fails again by its own samples.
        """
        self._belongs = belongs
        outcome: Frozen | Rejected | None = None
        for sample in self._journal.load(belongs):
            outcome = self._take(sample)
        self._restored = len(self._samples)
        if self._samples:
            log.info("acceptance goes on after %d samples of an earlier run", len(self._samples))
        else:
            self._journal.start(belongs)
        return outcome

    def update(self, sample: Sample) -> Frozen | Rejected | None:
        """One shadow sample of a healthy camera. Of its ranges only what widens those before is kept: a network has
        hundreds of tensors, and the union is what the golden set is measured by."""
        sample = msgspec.structs.replace(sample, ranges=self._ranges.widened(sample.ranges))
        self._journal.add(sample)
        return self._take(sample)

    def golden(self, index: int, loss: float) -> Rejected | None:
        """The loss on a golden tensor."""
        outcome = self._acceptance.golden(index, loss)
        if outcome is not None:
            self.failed = outcome.reason
        return outcome

    @property
    def progress(self) -> float:
        return self._acceptance.progress

    def left(self, now: Monotonic) -> float:
        """Seconds until its predicted end, at the pace it has had since the agent's start."""
        taken, wanted = len(self._samples) - self._restored, self._rules.samples
        remaining = max(0, wanted - len(self._samples))
        gap = (now - self._began) / taken if taken >= 0.02 * wanted and taken else self._rules.gap
        return gap * remaining

    def counts(self) -> dict[str, int]:
        """Samples by light context."""
        found: dict[str, int] = {}
        for each in self._samples:
            found[each.context] = found.get(each.context, 0) + each.settled
        return found

    def _take(self, sample: Sample) -> Frozen | Rejected | None:
        self._samples.append(sample)
        self._ranges.widened(sample.ranges)
        outcome = self._acceptance.update(sample.loss, sample.nmse, sample.symptoms)
        if outcome is None:
            return None
        if isinstance(outcome, Accepted):
            contexts, why = split(self._context_rules, self._samples)
            if not why:
                return self._freeze(outcome, contexts)
            outcome = Rejected(why, {"mean_loss": outcome.mean, "samples": float(outcome.samples)})
        self.failed = outcome.reason
        return outcome

    def _freeze(self, accepted: Accepted, contexts: dict[str, Accepted]) -> Frozen:
        assert self._belongs is not None  # `restore` comes first
        limit = partial(kind_limit, self._rules, accepted)
        inputs = from_samples(self._belongs, self._samples, limit)
        return Frozen(accepted, contexts, inputs, tuple(self._samples))


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


def context_rules(config: AgentConfig) -> AcceptanceRules:
    """For one light context: as many samples as it needs, but no more than the whole acceptance takes."""
    samples = min(config.contexts.samples, config.acceptance.samples)
    # The whole acceptance has waited for scenes enough.
    return msgspec.structs.replace(rules(config), samples=samples, independent=0)
