"""A capture that waits for the application's next start, with stand-ins for pipeline and privacy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tidegauge.agent.events import AlarmRaised, Evidence
from tidegauge.agent.pipeline import PipelineUnavailable
from tidegauge.agent.preconditions import Refused
from tidegauge.agent.put_off import PutOff
from tidegauge.bundles.manifest import Cause
from tidegauge.metrics import Refusal


class Pipeline:
    on_held: Any = None
    held = 0

    def __init__(self) -> None:
        self.hold_next: Callable[[], None] | None = self._hold

    def _hold(self) -> None:
        self.held += 1


class Private:
    """Hides a pair by marking it, or refuses."""

    refusal: Exception | None = None

    async def for_capture(self, evidence: Evidence) -> Evidence:
        if self.refusal is not None:
            raise self.refusal
        return msgspec.structs.replace(evidence, hidden=True)


class Case:
    def __init__(self) -> None:
        self.pipeline, self.private = Pipeline(), Private()
        self.state = SimpleNamespace(artifacts="a")
        self.taken: list[AlarmRaised] = []
        store: Any = SimpleNamespace(state=self.state)
        pipeline: Any = self.pipeline
        private: Any = self.private
        self.put_off = PutOff(pipeline, private, store, lambda: 100.0, self.taken.append)

    def add(self, name: str = "loss") -> str:
        measured: Any = None
        evidence = Evidence(measured, "digest", (b"in",), (b"out",), (b"ref",))
        alarm = AlarmRaised(f"1-{name}", Cause(name, "accelerator", (), {}, "it differs"), evidence)
        return asyncio.run(self.put_off.add(alarm))


def test_it_is_taken_at_the_next_start_of_the_pair_that_privacy_allows() -> None:
    case = Case()
    said = case.add()
    assert "put off until its next start" in said
    assert "`before_opening` of 100 s" in said
    assert case.pipeline.held == 1
    assert case.pipeline.on_held(100.0) == ""
    (taken,) = case.taken
    assert taken.evidence is not None
    assert taken.evidence.hidden
    assert case.pipeline.on_held(100.0) == "none was put off", "it is taken once"


def test_the_newest_alarm_counts() -> None:
    case = Case()
    case.add("first")
    case.add("second")
    assert case.pipeline.on_held(600.0) == ""
    assert [each.cause.detector for each in case.taken] == ["second"]


def test_one_who_waits_too_short_is_told_how_long_and_asked_again() -> None:
    case = Case()
    case.add()
    assert "waits for 60 s only, and a capture may take 100 s" in case.pipeline.on_held(60.0)
    assert case.taken == []
    assert case.pipeline.held == 2
    assert case.pipeline.on_held(100.0) == ""


def test_other_artifacts_make_it_void() -> None:
    case = Case()
    case.add()
    case.state.artifacts = "b"
    assert "other artifacts" in case.pipeline.on_held(600.0)
    assert case.pipeline.on_held(600.0) == "none was put off"
    assert case.taken == []


def test_an_application_that_never_waits_is_asked_for_nothing() -> None:
    case = Case()
    case.pipeline.hold_next = None
    assert case.add() == ""
    assert case.pipeline.held == 0


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (Refused(Refusal.NO_EVIDENCE, "there is no golden tensor yet"), "no golden tensor"),
        (PipelineUnavailable("it runs no tensors"), "runs no tensors"),
        (TimeoutError(), "took too long"),
    ],
)
def test_what_privacy_forbids_is_not_put_off(refusal: Exception, words: str) -> None:
    case = Case()
    case.private.refusal = refusal
    said = case.add()
    assert "nor can it be taken at its next start" in said
    assert words in said
    assert case.pipeline.held == 0
    assert case.pipeline.on_held(600.0) == "none was put off"
