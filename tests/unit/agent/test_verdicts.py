"""From a detector's alarm to one latched alarm with its verdict, its decomposition and what a replay showed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tidegauge.agent.alarms import AlarmBook
from tidegauge.agent.bus import Bus
from tidegauge.agent.config import AgentConfig
from tidegauge.agent.events import AlarmRaised, Evidence, GoldenRoundEnded, GoldenWanted, Replayed
from tidegauge.agent.inputs import InputWatch
from tidegauge.agent.reference import from_samples
from tidegauge.agent.samples import Belongs, Sample
from tidegauge.agent.state import StateStore
from tidegauge.agent.verdicts import Verdicts
from tidegauge.agent.watch_config import InputDriftConfig
from tidegauge.camera.config import CameraConfig
from tidegauge.clocks import Monotonic, monotonic
from tidegauge.detectors.acceptance import Accepted, worse_than
from tidegauge.detectors.alarm import Alarm
from tidegauge.link.config import LinkConfig
from tidegauge.metrics import AgentMetrics
from tidegauge.pipeline.messages import LossMeasured

ACCEPTED = Accepted(
    m0=0.05,
    mean=0.01,
    lower95=0.0,
    upper95=0.03,
    nmse_quantile=1e-4,
    exceedance_m0=0.15,
    correlation_time=1.0,
    block=4,
    alpha=0.001,
    samples=100,
    gap=1.0,
)
LOSS = Alarm("loss", "loss has been above its limit", {"observation": 0.4})
STEADY = Replayed("d", ("d", "d"), "r", ("r", "r"))


class Services:
    """Stands for golden and shadow service: keeps what it is asked for."""

    def __init__(self) -> None:
        self.replayed: list[Evidence] = []
        self.forced = 0

    def replay_next(self, evidence: Evidence) -> None:
        self.replayed.append(evidence)

    def force_next(self) -> None:
        self.forced += 1


def pair(loss: float, symptoms: tuple[str, ...] = ()) -> Evidence:
    return Evidence(LossMeasured(1, 0, 1, 1, -1, loss, (), symptoms, "r", 0.1), "d", (b"i",), (b"o",), (b"o",))


def inputs(luma: float, loss: float, count: int = 64, context: str = "day") -> InputWatch:
    """Watched inputs after an acceptance around luma 100 whose loss was 0.01."""
    rng = np.random.default_rng(1)
    accepted = [Sample(0.01, 1e-5, (), "day", True, {"luma": float(x)}) for x in rng.normal(100, 10, 300)]
    watch = InputWatch(from_samples(Belongs("a", "m", {}), accepted), InputDriftConfig(), Monotonic(0))
    for second, x in enumerate(rng.normal(luma, 10, count)):
        watch.update(Monotonic(second), Sample(loss, 1e-5, (), context, True, {"luma": float(x)}))
    return watch


class Judged:
    def __init__(self, folder: Path) -> None:
        self.store, self.bus, self.metrics = StateStore(folder), Bus(), AgentMetrics("m")
        self.store.update(accepted=ACCEPTED)
        self.services = Services()
        fakes: Any = (self.services, self.services)
        config = AgentConfig("d", "s", "p", CameraConfig("synthetic", "x"), LinkConfig())
        book = AlarmBook(self.store, self.bus, self.metrics)
        self.verdicts = Verdicts(config, self.store, book, *fakes, self.bus, self.metrics)
        self.raised: list[AlarmRaised] = []
        self.wanted: list[GoldenWanted] = []
        self.bus.on(AlarmRaised, self.raised.append)
        self.bus.on(GoldenWanted, self.wanted.append)

    def round(
        self,
        watch: InputWatch,
        device: Sequence[int] = (),
        reference: Sequence[int] = (),
        replay: Replayed | None = STEADY,
        checked: int = 3,
    ) -> None:
        """A golden round that began after the suspicion, with a pair measured meanwhile."""
        self.verdicts.suspicion.forced_pair_came()
        sides = (("device", device), ("reference", reference))
        alarms = tuple(Alarm(f"known_answer_{side}", "…", {}) for side, wrong in sides if wrong)
        ended = GoldenRoundEnded(monotonic(), checked, tuple(device), tuple(reference), alarms, "", replay)
        self.verdicts.round_ended(ended, watch)

    def one(self) -> AlarmRaised:
        [raised] = self.raised
        return raised


@pytest.fixture
def judged(tmp_path: Path) -> Judged:
    return Judged(tmp_path)


@pytest.mark.parametrize(
    ("luma", "loss", "symptoms", "replay", "expected"),
    [
        (100.0, 0.4, (), STEADY, ("accelerator", "critical", "undecided")),
        (220.0, 0.4, (), STEADY, ("data", "warning", "undecided")),
        (220.0, 0.4, ("saturated_high",), STEADY, ("data", "warning", "undecided")),
        (100.0, 0.4, (), Replayed("d", ("x", "d"), "r", ("r", "r")), ("accelerator", "critical", "not_reproducible")),
        (220.0, 0.4, (), Replayed("d", ("x", "d"), "r", ("r", "r")), ("accelerator", "critical", "not_reproducible")),
        (100.0, 0.4, (), Replayed("d", ("d", "d"), "r", ("r", "q")), ("reference", "critical", "undecided")),
        (100.0, 0.4, (), None, ("accelerator", "critical", "")),
    ],
    ids=[
        "same inputs",
        "inputs never seen",
        "inputs never seen and saturated",
        "does not repeat itself",
        "does not repeat itself on inputs never seen",
        "reference does not repeat itself",
        "no replay",
    ],
)
def test_a_paired_alarm_whose_stored_inputs_come_out_right(
    judged: Judged,
    luma: float,
    loss: float,
    symptoms: tuple[str, ...],
    replay: Replayed | None,
    expected: tuple[str, str, str],
) -> None:
    judged.verdicts.recent.append(pair(0.2, symptoms))
    judged.verdicts.suspect(LOSS)
    assert [each.measured.loss for each in judged.services.replayed] == [0.2]
    judged.round(inputs(luma, loss), replay=replay)
    cause = judged.one().cause
    assert (cause.verdict, cause.severity, cause.replay) == expected
    [latched] = judged.store.state.alarms
    assert (latched.verdict, latched.severity, latched.replay) == expected
    assert latched.terms["device_change"] + latched.terms["input_mix"] + latched.terms["unknown"] == pytest.approx(0.39)
    assert cause.evidence["device_change"] == latched.terms["device_change"]
    told = judged.metrics.registry.get_sample_value
    labels = {"model": "m", "term": "device_change"}
    assert told("tidegauge_drift_loss_change_ratio", labels) == latched.terms["device_change"]
    assert told("tidegauge_drift_alarm", {"model": "m", "cause": expected[0]}) == 1


def test_a_wrong_known_answer_is_the_accelerator_whatever_the_inputs_do(judged: Judged) -> None:
    judged.verdicts.suspect(LOSS)
    judged.verdicts.golden_evidence[1] = pair(0.6)
    judged.round(inputs(220, 0.4), device=(1,))
    cause = judged.one().cause
    assert (cause.verdict, cause.severity) == ("accelerator", "critical")
    assert {each.detector for each in judged.store.state.alarms} == {"loss", "known_answer_device"}
    assert judged.one().capture


def test_a_wrong_reference_accuses_itself(judged: Judged) -> None:
    judged.verdicts.suspect(LOSS)
    judged.round(inputs(100, 0.4), reference=(0,))
    assert judged.one().cause.verdict == "reference"


def test_more_of_a_harder_light_is_data(judged: Judged) -> None:
    rng = np.random.default_rng(1)
    day = [Sample(0.0, 1e-5, (), "day", True, {"luma": float(x)}) for x in rng.normal(100, 10, 300)]
    night = [Sample(0.2, 1e-5, (), "infrared", True, {"luma": float(x)}) for x in rng.normal(30, 10, 30)]
    watch = InputWatch(from_samples(Belongs("a", "m", {}), day + night), InputDriftConfig(), Monotonic(0))
    for second, sample in enumerate([*night, *night]):
        watch.update(Monotonic(second), sample)
    judged.verdicts.suspect(LOSS)
    judged.round(watch)
    cause = judged.one().cause
    assert (cause.verdict, cause.severity) == ("data", "warning")
    assert cause.evidence["input_mix"] > 0.9 * (cause.evidence["input_mix"] + abs(cause.evidence["device_change"]))


def test_larger_tensor_errors_on_other_inputs_are_data_while_the_loss_is_as_it_was(judged: Judged) -> None:
    judged.verdicts.suspect(Alarm("nmse", "nmse has been above its limit", {}))
    judged.round(inputs(220, 0.01))
    cause = judged.one().cause
    assert (cause.verdict, cause.severity) == ("data", "warning")
    assert "the answers agree" in cause.message
    judged.verdicts.suspect(LOSS)
    judged.round(inputs(100, 0.4))
    assert judged.raised[1].cause.verdict == "accelerator"


def test_an_alarm_waits_for_a_round_that_began_after_it(judged: Judged) -> None:
    before = monotonic()
    judged.verdicts.suspect(LOSS)
    judged.verdicts.suspicion.forced_pair_came()
    judged.verdicts.round_ended(GoldenRoundEnded(before, 3, (), (), (), ""), inputs(100, 0.4))
    assert judged.raised == []
    assert len(judged.wanted) == 2
    judged.round(inputs(100, 0.4))
    assert judged.one().cause.detector == "loss"


def test_what_is_latched_is_not_suspected_again_and_captured_once_for_a_verdict(judged: Judged) -> None:
    judged.verdicts.suspect(LOSS)
    judged.round(inputs(100, 0.4))
    judged.verdicts.suspect(LOSS)
    assert judged.verdicts.suspicion.suspects == []
    assert judged.services.forced == 1


def test_a_change_that_cost_accuracy_is_named_at_once(judged: Judged) -> None:
    worse = Accepted(0.12, 0.1, 0.08, 0.11, 1e-4, 0.15, 1.0, 4, 0.001, 100, 1.0)
    alarm = worse_than(ACCEPTED, worse, "the artifacts")
    assert alarm is not None
    judged.verdicts.recent.append(pair(0.1))
    judged.verdicts.blame_change(alarm)
    raised = judged.one()
    assert raised.capture
    assert raised.evidence is not None
    assert raised.cause.message.startswith("the upgrade (the artifacts) cost accuracy, 0.090 ± 0.028")
    assert "go back to what ran before" in raised.cause.message


def test_a_round_that_began_before_the_alarms_were_cleared_says_nothing(judged: Judged) -> None:
    wrong = (Alarm("known_answer_device", "…", {}),)
    under_way = GoldenRoundEnded(monotonic(), 3, (0,), (), wrong, "", None)
    judged.verdicts.clear()
    judged.verdicts.round_ended(under_way, inputs(100.0, 0.01))
    assert judged.raised == []
    judged.round(inputs(100.0, 0.01), device=(0,))
    assert judged.one().cause.detector == "known_answer_device"
