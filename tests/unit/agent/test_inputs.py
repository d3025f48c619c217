"""Inputs against those of acceptance: kinds, the unseen, windows, and what an alarm is decomposed by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tidegauge.agent import reference
from tidegauge.agent.inputs import InputWatch
from tidegauge.agent.reference import UNSEEN, InputReference, from_samples
from tidegauge.agent.samples import Belongs, Sample
from tidegauge.agent.watch_config import InputDriftConfig
from tidegauge.attribution import DATA, HARDER, MIXED, UNREACHED, WITHIN, resolve
from tidegauge.clocks import Monotonic
from tidegauge.detectors.camera import FrameLook

BELONGS = Belongs("a", "b", {})
CONFIG = InputDriftConfig(window=50, interval=100.0)
LOOK = FrameLook(200.0, 0.0, 30.0, tuple(float(i % 7) for i in range(192)))


def inputs(
    number: int, luma: float, context: str = "day", loss: float = 0.01, seed: int = 0, **more: float
) -> list[Sample]:
    rng = np.random.default_rng(seed)
    lumas = [float(each) for each in rng.normal(luma, 10, number)]
    return [Sample(loss, 1e-5, (), context, True, {"luma": each, **more}, LOOK) for each in lumas]


def seen() -> InputReference:
    return from_samples(BELONGS, inputs(300, 100, loss=0.01) + inputs(100, 20, "low_light", loss=0.05, seed=1))


def watch(samples: list[Sample], found: InputReference | None = None) -> InputWatch:
    watching = InputWatch(found or seen(), CONFIG, Monotonic(0))
    for second, sample in enumerate(samples):
        watching.update(Monotonic(2.0 * second), sample)
    return watching


def test_kinds_are_light_within_its_context_and_what_the_reference_finds() -> None:
    found = from_samples(BELONGS, inputs(100, 100, count=2.0, confidence=0.9) + inputs(100, 20, "infrared", count=0.0))
    assert (
        found.kind_of("day", {"luma": 100.0, "count": 2.0, "confidence": 0.9}) == "day, luma 1, count 1, confidence 2"
    )
    assert found.kind_of("infrared", {"luma": 5.0, "count": 0.0}) == "infrared, luma 0, count 0"
    assert found.kind_of("day", {"luma": 250.0, "count": 2.0}) == UNSEEN
    assert sum(each.samples for each in found.kinds.values()) == 200
    assert set(found.features["day"]) == {"luma", "count"}, "a confidence that not every input has is no feature"


def test_a_day_of_other_inputs_is_a_warning_and_one_like_acceptance_is_none() -> None:
    watching = InputWatch(seen(), CONFIG, Monotonic(0))
    alarms = []
    for second, sample in enumerate(inputs(200, 100, seed=5) + inputs(200, 118, seed=6)):
        judged, alarm = watching.update(Monotonic(2.0 * second), sample)
        alarms += [] if alarm is None else [(second, alarm)]
        if not judged:
            assert alarm is None
    assert alarms
    assert alarms[0][0] >= 200
    assert alarms[0][1].detector == "input_drift"
    assert watching.drifted is not None
    assert watching.contexts == ("day", "low_light")


def test_the_warning_is_over_when_a_later_window_looks_as_before() -> None:
    watching = watch(inputs(100, 130, seed=5))
    assert watching.drifted is not None
    for second, sample in enumerate(inputs(120, 100, seed=6)):
        watching.update(Monotonic(300 + 2.0 * second), sample)
    assert watching.drifted is None


def test_windows_go_on_after_a_restart() -> None:
    whole = InputWatch(seen(), CONFIG, Monotonic(0))
    before = InputWatch(seen(), CONFIG, Monotonic(0))
    stream = inputs(45, 130, seed=5)
    for second, sample in enumerate(stream[:20]):
        before.update(Monotonic(2.0 * second), sample)
        whole.update(Monotonic(2.0 * second), sample)
    after = InputWatch(seen(), CONFIG, Monotonic(1000), before.states(Monotonic(40)))
    for second, sample in enumerate(stream[20:], 20):
        after.update(Monotonic(960 + 2.0 * second), sample)
        whole.update(Monotonic(2.0 * second), sample)
    assert after.states(Monotonic(1050)) == whole.states(Monotonic(90))


def test_too_few_reference_inputs_are_not_judged() -> None:
    watching = watch(inputs(400, 200, "day"), from_samples(BELONGS, inputs(40, 100)))
    assert watching.contexts == ()
    assert watching.drifted is None


def test_inputs_like_none_before_change_at_once_for_a_verdict() -> None:
    assert not watch(inputs(20, 100, seed=3)).changed
    assert watch(inputs(20, 220, seed=3)).changed
    assert not watch(inputs(5, 220, seed=3)).changed, "five inputs are no change"


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (inputs(64, 100, loss=0.3, seed=4), WITHIN),
        (inputs(64, 220, loss=0.3, seed=4), HARDER),
        (inputs(64, 20, "low_light", loss=0.05, seed=4), HARDER),
        (inputs(32, 20, "low_light", loss=0.3, seed=4) + inputs(32, 100, loss=0.25, seed=2), WITHIN),
    ],
    ids=["device", "never seen", "more night", "device in every light"],
)
def test_a_paired_alarm_is_decomposed(now: list[Sample], expected: object) -> None:
    found = watch(now).decomposition()
    assert found is not None
    assert resolve(UNREACHED, found) == expected
    # Where the inputs have changed, a rise within the coarse kinds may be theirs: it accuses nobody.
    assert resolve(MIXED, found) == (MIXED if expected == WITHIN else expected)
    assert resolve(DATA, found) == DATA, "what is decided already stays"


def test_without_a_rise_or_enough_samples_nothing_is_resolved() -> None:
    assert watch(inputs(4, 100)).decomposition() is None
    assert InputWatch(None, CONFIG, Monotonic(0)).decomposition() is None
    assert resolve(UNREACHED, None) == UNREACHED
    calm = watch(inputs(64, 100, loss=0.0)).decomposition()
    assert resolve(UNREACHED, calm) == UNREACHED


def test_the_reference_of_inputs_is_kept_with_what_it_belongs_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference.save(tmp_path, seen())
    assert reference.load(tmp_path, BELONGS) == seen()
    assert reference.judged_contexts(tmp_path, 50) == ("day", "low_light")
    assert reference.load(tmp_path, Belongs("other", "b", {})) is None
    assert "belongs to another reference" in caplog.text
    (tmp_path / "inputs.json").write_bytes(b"{")
    assert reference.load(tmp_path, BELONGS) is None
    assert reference.judged_contexts(tmp_path) == ()


def test_a_camera_that_moves_is_not_judged_by_its_view() -> None:
    rng = np.random.default_rng(3)
    moving = [
        Sample(0.0, None, (), "day", True, {"luma": 1.0}, FrameLook(200.0, 0.0, 30.0, tuple(rng.random(192).tolist())))
        for _ in range(60)
    ]
    assert not from_samples(BELONGS, moving).camera["day"].judges_cover
    assert from_samples(BELONGS, inputs(60, 100)).camera["day"].judges_cover
    assert from_samples(BELONGS, inputs(5, 100)).camera == {}
