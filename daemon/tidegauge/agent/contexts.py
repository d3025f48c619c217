"""The reference of each light context, and its detectors.

A context has a reference of its own, from its own samples; one with too few of them collects, and is not tested. Each
context's detectors take the same α for an observation, so that all of them together have the rate of one stream.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

import msgspec

from tidegauge.agent.samples import Sample
from tidegauge.agent.streams import Streams, StreamsState
from tidegauge.detectors.acceptance import Acceptance, AcceptanceRules, Accepted, Rejected
from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.blocks import FEWEST, correlation_time
from tidegauge.detectors.contexts import WORDS

log = logging.getLogger(__name__)

#: Losses from which the correlation time is estimated again, and after how many new ones.
MEMORY, AGAIN = 512, 64


class ContextStatus(msgspec.Struct, frozen=True):
    """`samples` of `needed`: while they are fewer the context collects. `reference` once it is tested.

    `block`: samples in an observation now, as it may have grown. `correlation_time` in samples: of acceptance, then as
    estimated since, None while there are too few. `evidence` by detector: log evidence and its limit.
    """

    samples: int
    needed: int
    reference: Accepted | None
    failed: str
    block: int
    correlation_time: float | None
    evidence: dict[str, tuple[float, float]]


class Context:
    """One light context after the acceptance: its detectors, or the samples that it still collects."""

    def __init__(
        self, name: str, rules: AcceptanceRules, accepted: Accepted | None, state: StreamsState | None
    ) -> None:
        self.name, self._rules, self.accepted = name, rules, accepted
        self.streams = None if accepted is None else Streams(accepted, state)
        self._collecting = Acceptance(rules)
        self.collected = 0
        self.failed = ""
        self._losses: deque[float] = deque(maxlen=MEMORY)
        self.correlation_time: float | None = None

    def collect(self, sample: Sample) -> Accepted | Rejected | None:
        """One sample more of a context that is not tested yet; its reference, or why there can be none."""
        if self.failed:
            return None
        self.collected += 1
        outcome = self._collecting.update(sample.loss, sample.nmse, sample.symptoms)
        if isinstance(outcome, Accepted):
            self.accepted, self.streams = outcome, Streams(outcome, None)
        elif isinstance(outcome, Rejected):
            self.failed = outcome.reason
        return outcome

    def update(self, sample: Sample, limit: float | None = None) -> list[Alarm]:
        """Feed the detectors of a context that is tested. `limit`: m0 of the sample's kind of input, if it has one."""
        assert self.streams is not None  # the caller has asked
        self._losses.append(sample.loss)
        if len(self._losses) >= AGAIN and self.streams.taken % AGAIN == 0:
            self.correlation_time = correlation_time(self._losses)
        alarms = self.streams.update(sample.loss, sample.nmse, limit)
        for name, block in self.streams.grown:
            log.warning(
                "%s: the %s is stickier than acceptance saw; an observation is now %d samples long",
                WORDS[self.name],
                name,
                block,
            )
        return alarms

    def clear(self) -> None:
        """Evidence to zero; the reference, and the length of the blocks, stay."""
        if self.streams is not None:
            self.streams.clear()

    def status(self) -> ContextStatus:
        streams = self.streams
        return ContextStatus(
            samples=self.accepted.samples if self.accepted is not None else self.collected,
            needed=self._rules.samples,
            reference=self.accepted,
            failed=self.failed,
            block=0 if streams is None else streams.block,
            correlation_time=self.correlation_time,
            evidence={} if streams is None else streams.evidence(),
        )


class Contexts:
    """All contexts of one accepted reference. `changed` after an update that is worth storing."""

    def __init__(
        self, rules: AcceptanceRules, accepted: dict[str, Accepted], states: dict[str, StreamsState] | None = None
    ) -> None:
        self._rules = rules
        self.changed = False
        self._contexts = {name: Context(name, rules, each, (states or {}).get(name)) for name, each in accepted.items()}

    def collect(self, samples: Sequence[Sample]) -> None:
        """Samples of acceptance in contexts that have too few of them: they count."""
        for each in samples:
            if each.settled and not self._of(each.context).streams:
                self._of(each.context).collect(each)

    def testable(self, context: str) -> bool:
        return self._of(context).streams is not None

    def update(self, sample: Sample, limit: float | None = None) -> list[Alarm]:
        """One sample, of its context. A context that can't be accepted is an alarm, too. `limit` as in `Context`."""
        context = self._of(sample.context)
        if context.streams is not None:
            alarms = context.update(sample, limit)
            self.changed = context.streams.changed
            return [_named(alarm, context.name) for alarm in alarms]
        outcome = context.collect(sample)
        self.changed = outcome is not None
        if isinstance(outcome, Rejected):
            return [Alarm("acceptance", f"{WORDS[context.name]}: {outcome.reason}", outcome.evidence)]
        return []

    def clear(self) -> None:
        for context in self._contexts.values():
            context.clear()

    def accepted(self) -> dict[str, Accepted]:
        return {name: each.accepted for name, each in self._contexts.items() if each.accepted is not None}

    def states(self) -> dict[str, StreamsState]:
        return {name: each.streams.state() for name, each in self._contexts.items() if each.streams is not None}

    def evidence(self) -> dict[str, tuple[float, float]]:
        """By detector, of the context whose evidence is nearest to its limit."""
        found: dict[str, tuple[float, float]] = {}
        for context in self._contexts.values():
            if context.streams is None:
                continue
            for name, (value, limit) in context.streams.evidence().items():
                if name not in found or value / limit > found[name][0] / found[name][1]:
                    found[name] = (value, limit)
        return found

    def observations(self) -> dict[str, int]:
        """By detector, of all contexts: what the evidence of any of them is divided by to be an e-value.

        With shares tᵢ/t of its contexts as weights, a mean of Mᵢ/tᵢ is Σ Mᵢ / t, which is at least M/t of one.
        """
        found: dict[str, int] = {}
        for context in self._contexts.values():
            for name, count in ({} if context.streams is None else context.streams.observations()).items():
                found[name] = found.get(name, 0) + count
        return found

    def status(self) -> dict[str, ContextStatus]:
        return {name: each.status() for name, each in sorted(self._contexts.items())}

    def _of(self, name: str) -> Context:
        if name not in self._contexts:
            self._contexts[name] = Context(name, self._rules, None, None)
        return self._contexts[name]


def split(rules: AcceptanceRules, samples: Sequence[Sample]) -> tuple[dict[str, Accepted], str]:
    """The references of those contexts that have samples enough; else why one of them can't be accepted.

    `rules`: of a context, with the samples that it needs. All of a context's samples make its reference.
    """
    found: dict[str, Accepted] = {}
    for name in sorted({each.context for each in samples}):
        own = [each for each in samples if each.context == name and each.settled]
        if len(own) < max(rules.samples, FEWEST):
            continue
        acceptance = Acceptance(msgspec.structs.replace(rules, samples=len(own)))
        outcome: Accepted | Rejected | None = None
        for each in own:
            outcome = acceptance.update(each.loss, each.nmse, each.symptoms)
            if outcome is not None:
                break
        if isinstance(outcome, Rejected):
            return {}, f"{WORDS[name]}: {outcome.reason}"
        if outcome is not None:
            found[name] = outcome
    return found, ""


def _named(alarm: Alarm, context: str) -> Alarm:
    return msgspec.structs.replace(alarm, message=f"{WORDS[context]}: {alarm.message}")
