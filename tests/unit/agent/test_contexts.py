"""Each light context has its own reference; one with too few samples collects and raises nothing."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tidegauge.agent.contexts import Contexts, split
from tidegauge.agent.samples import Sample
from tidegauge.agent.streams import StreamsState
from tidegauge.detectors.acceptance import AcceptanceRules, Accepted

RULES = AcceptanceRules(samples=60, block=2, alpha=0.001, gap=1.0)


def sample(loss: float, context: str = "day", *, settled: bool = True) -> Sample:
    return Sample(loss, 1e-5, (), context, settled, {})


def healthy(count: int, context: str, mean: float = 0.01, seed: int = 0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [sample(float(loss), context) for loss in rng.beta(2, 2 / mean - 2, count)]


def accepted() -> dict[str, Accepted]:
    found, why = split(RULES, healthy(80, "day") + healthy(80, "infrared", 0.05, 1) + healthy(20, "low_light"))
    assert why == ""
    return found


def test_contexts_with_enough_samples_have_a_reference_of_their_own() -> None:
    found = accepted()
    assert sorted(found) == ["day", "infrared"]
    assert found["day"].mean == pytest.approx(0.01, abs=0.004)
    assert found["infrared"].mean == pytest.approx(0.05, abs=0.01)
    assert found["infrared"].m0 > found["day"].m0


def test_night_has_its_own_limit_and_is_no_fault_by_day() -> None:
    contexts = Contexts(RULES, accepted())
    for each in healthy(400, "infrared", 0.05, 2):
        assert contexts.update(each) == []
    found = [alarm for each in healthy(80, "day", 0.3, 3) for alarm in contexts.update(each)]
    assert found[0].detector == "loss"
    assert found[0].message.startswith("daylight: ")


def test_a_device_worse_on_the_same_kinds_is_found_though_easier_inputs_hide_it_from_the_mean() -> None:
    """Acceptance saw easy inputs (loss 0.01) and hard ones (0.2); now only easy ones come, at 0.08."""
    mixed = [each for pair in zip(healthy(80, "day"), healthy(80, "day", 0.2, 1), strict=True) for each in pair]
    found, _ = split(RULES, mixed)
    contexts = Contexts(RULES, found)
    alarms = [alarm for each in healthy(300, "day", 0.08, 2) for alarm in contexts.update(each, 0.04)]
    assert {alarm.detector for alarm in alarms} == {"loss_by_kind"}
    assert alarms[0].message.startswith("daylight: loss_by_kind has been above its limit 0.040")
    contexts.clear()
    hard = [alarm for each in healthy(300, "day", 0.2, 3) for alarm in contexts.update(each, 0.25)]
    assert {alarm.detector for alarm in hard} == {"loss"}, "harder inputs are no fault of the device"
    contexts.clear()
    assert all(
        alarm.detector != "loss_by_kind" for each in healthy(300, "day", 0.5, 4) for alarm in contexts.update(each)
    )
    assert contexts.evidence()["loss_by_kind"][0] == 0, "inputs of no known kind are not in it"


def test_a_context_with_too_few_samples_collects_then_tests() -> None:
    contexts = Contexts(RULES, accepted())
    contexts.collect(healthy(20, "low_light"))
    assert not contexts.testable("low_light")
    assert contexts.status()["low_light"].samples == 20
    for each in healthy(39, "low_light", seed=5):  # 59 in all: one is lacking, whatever they say
        assert contexts.update(each) == []
    assert not contexts.testable("low_light")
    for each in healthy(60, "low_light", seed=4):  # from 60 on, as soon as the bound on their mean leaves room
        assert contexts.update(each) == []
        if contexts.testable("low_light"):
            break
    assert contexts.changed
    assert 60 <= contexts.accepted()["low_light"].samples < 110
    assert any(contexts.update(each) for each in healthy(80, "low_light", 0.5, 6))


def test_a_fault_in_a_context_that_collects_is_no_alarm_of_its_detectors_but_fails_its_acceptance() -> None:
    contexts = Contexts(RULES, accepted())
    found = [alarm for each in healthy(60, "low_light", 0.5) for alarm in contexts.update(each)]
    assert [alarm.detector for alarm in found] == ["acceptance"]
    assert found[0].message.startswith("low light: ")
    assert not contexts.testable("low_light")
    assert "can no longer stay below" in contexts.status()["low_light"].failed


def test_a_context_that_is_wrong_from_the_first_frame_fails_the_whole_acceptance() -> None:
    found, why = split(RULES, healthy(200, "day") + healthy(60, "infrared", 0.5))
    assert found == {}
    assert why.startswith("infrared light: ")


def test_samples_of_changing_light_belong_to_no_reference() -> None:
    dusk = [sample(0.01, "day", settled=False) for _ in range(100)]
    assert split(RULES, dusk) == ({}, "")


def test_a_restart_changes_nothing_and_clearing_keeps_the_reference() -> None:
    whole, before = Contexts(RULES, accepted()), Contexts(RULES, accepted())
    stream = healthy(33, "day", 0.06, 7) + healthy(21, "infrared", 0.06, 8)
    limits = [0.05, 0.2, None] * 18  # of the samples' kinds
    for each, limit in zip(stream, limits, strict=True):
        whole.update(each, limit)
    for each, limit in zip(stream[:30], limits[:30], strict=True):
        before.update(each, limit)
    stored = msgspec.json.decode(msgspec.json.encode(before.states()), type=dict[str, StreamsState])
    after = Contexts(RULES, before.accepted(), stored)
    for each, limit in zip(stream[30:], limits[30:], strict=True):
        after.update(each, limit)
    assert after.states() == whole.states()
    assert after.evidence() == whole.evidence()
    assert after.evidence()["loss"][0] > 0
    assert after.evidence()["loss_by_kind"][0] > 0
    after.clear()
    assert after.evidence()["loss"][0] == 0
    assert after.accepted() == whole.accepted()


def test_a_stream_stickier_than_its_block_grows_it_says_so_and_keeps_it(caplog: pytest.LogCaptureFixture) -> None:
    rng, level = np.random.default_rng(1), 0.01
    contexts = Contexts(RULES, accepted())
    for _ in range(1500):
        if rng.random() < 1 / 40:  # a scene of forty samples on average
            level = float(rng.beta(2, 198))
        contexts.update(sample(level))
    status = contexts.status()["day"]
    assert status.block > 2
    assert "stickier than acceptance saw" in caplog.text
    assert status.correlation_time is not None
    assert status.correlation_time > 10  # acceptance had said 0
    again = Contexts(RULES, contexts.accepted(), contexts.states())
    again.clear()
    assert again.status()["day"].block == status.block


def test_evidence_shown_is_that_of_the_context_nearest_to_its_limit() -> None:
    contexts = Contexts(RULES, accepted())
    for each in healthy(6, "infrared", 0.5, 9):
        contexts.update(each)
    assert contexts.evidence()["loss"] == contexts.status()["infrared"].evidence["loss"]


def test_observations_are_those_of_all_contexts_since_the_evidence_was_zero() -> None:
    contexts = Contexts(RULES, accepted())
    assert contexts.observations()["loss"] == 0
    for context, count in (("day", 10), ("infrared", 6)):
        for each in healthy(count, context, 0.5, 9):
            contexts.update(each)
    blocks = {name: status.block for name, status in contexts.status().items()}
    assert contexts.observations()["loss"] == 10 // blocks["day"] + 6 // blocks["infrared"] > 0
    contexts.clear()
    assert contexts.observations()["loss"] == 0
