"""The acceptance phase: samples to the acceptance, pairs to the golden set, and what both end with to the state."""

from __future__ import annotations

import logging

from tidegauge.agent import candidates, reference
from tidegauge.agent.acceptance import AcceptanceRun, Frozen, context_rules
from tidegauge.agent.config import AgentConfig
from tidegauge.agent.contexts import ContextStatus
from tidegauge.agent.events import Evidence
from tidegauge.agent.golden import GoldenService, golden_of
from tidegauge.agent.samples import Belongs, Journal, Sample
from tidegauge.agent.state import Candidate, StateStore
from tidegauge.clocks import monotonic, stamp
from tidegauge.detectors.acceptance import Rejected, worse_than
from tidegauge.detectors.alarm import Alarm
from tidegauge.log_kinds import ACCEPTED
from tidegauge.metrics import AgentMetrics

log = logging.getLogger(__name__)

Outcome = Frozen | Rejected | None


class Accepting:
    """One acceptance at a time. It begins when it is known what its samples belong to."""

    def __init__(self, config: AgentConfig, store: StateStore, golden: GoldenService, metrics: AgentMetrics) -> None:
        self._config, self._store, self._golden, self._metrics = config, store, golden, metrics
        self._journal = Journal(store.folder, store.disk)
        self._run = AcceptanceRun(config, self._journal, monotonic())

    @property
    def begun(self) -> bool:
        return self._run.begun

    @property
    def failed(self) -> str:
        """Why it has failed, else empty."""
        return self._run.failed

    @property
    def progress(self) -> float:
        return self._run.progress

    @property
    def left(self) -> float:
        """Seconds until its predicted end."""
        return self._run.left(monotonic())

    def begin(self, belongs: Belongs) -> Outcome:
        """Begin, or go on where an earlier run of the agent has stopped."""
        return self._said(self._run.restore(belongs))

    def forget(self) -> None:
        """No reference, no golden tensors, no samples; the next `begin` begins anew."""
        self._store.update(
            accepted=None,
            accepted_at=None,
            contexts={},
            golden=(),
            coverage={},
            noise={},
            deterministic=None,
            candidates=(),
            watching={},
            inputs={},
        )
        self._golden.forget_others()
        self._journal.remove()
        self._run = AcceptanceRun(self._config, self._journal, monotonic())
        self._metrics.acceptance.labels(self._metrics.model).set(0)
        self._metrics.acceptance_failed.labels(self._metrics.model).set(0)

    def update(self, evidence: Evidence, sample: Sample) -> Outcome:
        """One shadow sample of a healthy camera."""
        self._consider_as_golden(evidence, sample.context)
        return self._said(self._run.update(sample))

    def golden_loss(self, index: int, loss: float) -> Outcome:
        """The loss on a golden tensor."""
        return self._said(self._run.golden(index, loss))

    def freeze(self, frozen: Frozen) -> Alarm | None:
        """Make the reference durable. An alarm where it is worse than the one before the last change."""
        accepted, state = frozen.accepted, self._store.state
        golden = candidates.chosen(state.candidates, self._config.golden.count) or state.golden
        self._store.disk.attempt("how inputs looked", lambda: reference.save(self._store.folder, frozen.inputs))
        self._store.update(
            accepted=accepted,
            accepted_at=stamp(),
            gap=self._gap(frozen),
            contexts=frozen.contexts,
            previous=None,
            change="",
            golden=golden,
            coverage=candidates.coverage(golden, (each.ranges for each in frozen.samples)),
            noise=frozen.noise(),
            candidates=(),
            watching={},
            inputs={},
        )
        self._journal.remove()
        self._golden.forget_others()
        tested = ", ".join(frozen.contexts) or "none yet"
        log.info(
            "accepted: mean loss %.4f, limit m0 %.4f; light contexts tested: %s",
            accepted.mean,
            accepted.m0,
            tested,
            extra=ACCEPTED.of(mean_loss=accepted.mean, limit=accepted.m0),
        )
        return None if state.previous is None else worse_than(state.previous, accepted, state.change or "the change")

    def _gap(self, frozen: Frozen) -> float:
        """Mean seconds between samples that gap and CPU budget allow, at what these samples have cost."""
        cost = sum(each.cpu_seconds for each in frozen.samples) / len(frozen.samples)
        return max(self._config.shadow.gap_mean, cost / self._config.shadow.cpu_share)

    def status(self) -> dict[str, ContextStatus]:
        """What each light context has collected."""
        needed = context_rules(self._config).samples
        return {name: ContextStatus(count, needed, None, "", 0, None, {}) for name, count in self._run.counts().items()}

    def _said(self, outcome: Outcome) -> Outcome:
        self._metrics.acceptance.labels(self._metrics.model).set(self._run.progress)
        if isinstance(outcome, Rejected):
            self._metrics.acceptance_failed.labels(self._metrics.model).set(1)
        return outcome

    def _consider_as_golden(self, evidence: Evidence, context: str) -> None:
        level, run = candidates.level(evidence), self._run
        if candidates.roles(self._store.state.candidates, level, context):
            self._golden.offer(evidence, lambda pair: self._keep_as_golden(pair, level, context, run))

    def _keep_as_golden(self, evidence: Evidence, level: float, context: str, run: AcceptanceRun) -> None:
        """`level` and `context` are the frame's, whatever has been hidden in it since."""
        held = self._store.state.candidates
        taken = candidates.roles(held, level, context)
        if not taken or run is not self._run or self._store.state.accepted is not None:
            return  # meanwhile another had these roles, or acceptance ended
        golden = golden_of(evidence, self._golden.hiding)
        if not self._golden.keep(golden, evidence):
            return
        kept = tuple(each for each in held if each.role not in taken)
        first = {"golden": (golden,)} if candidates.FIRST in taken else {}  # the very first guards at once
        self._store.update(candidates=(*kept, *(Candidate(role, level, golden) for role in taken)), **first)
        self._golden.forget_others()
