"""Light contexts change with hysteresis, and a context without a reference is not tested."""

from __future__ import annotations

import msgspec
import pytest

from tidegauge.detectors.contexts import Commissioning, ContextState, Light, LightContext

DAY, DUSK, NIGHT, INFRARED = Light(120, 20), Light(60, 15), Light(30, 12), Light(80, 0.5)


def test_the_first_frame_decides() -> None:
    for light, context in ((DAY, "day"), (NIGHT, "low_light"), (INFRARED, "infrared")):
        assert LightContext().update(0, light) == context


def test_a_change_must_hold() -> None:
    context = LightContext(hold=100)
    context.update(0, DAY)
    assert [context.update(t, NIGHT) for t in (10, 60, 109)] == ["day"] * 3
    assert context.changing
    assert context.update(110, NIGHT) == "low_light"
    assert not context.changing


def test_a_passing_shadow_changes_nothing() -> None:
    context = LightContext(hold=100)
    for start in range(0, 1000, 100):
        assert context.update(start, DAY) == "day"
        assert context.update(start + 50, NIGHT) == "day"
        assert context.update(start + 99, DAY) == "day"


@pytest.mark.parametrize(("before", "stays"), [(DAY, "day"), (NIGHT, "low_light")])
def test_dusk_keeps_the_context_that_is(before: Light, stays: str) -> None:
    context = LightContext(hold=1)
    context.update(0, before)
    assert {context.update(t, DUSK) for t in range(1, 50)} == {stays}


def test_infrared_ends_with_colour_only() -> None:
    context = LightContext(hold=1)
    context.update(0, INFRARED)
    assert {context.update(t, Light(80, 3)) for t in range(1, 20)} == {"infrared"}
    assert [context.update(t, DAY) for t in (20, 21)] == ["infrared", "day"]


def test_a_bright_picture_at_the_highest_gain_is_low_light() -> None:
    assert LightContext().update(0, Light(120, 20, gain=0.95)) == "low_light"
    assert LightContext().update(0, Light(120, 20, gain=0.3)) == "day"


def test_a_restart_keeps_the_context() -> None:
    first, second = LightContext(hold=100), LightContext(hold=100)
    first.update(0, DAY)
    first.update(50, NIGHT)
    second.restore(msgspec.json.decode(msgspec.json.encode(first.state()), type=ContextState), now=7000)
    assert second.update(7050, NIGHT) == "day"
    assert second.update(7100, NIGHT) == "low_light"


def test_too_few_samples_are_not_tested() -> None:
    commissioning = Commissioning(fewest=3)
    for _ in range(3):
        assert not commissioning.testable("day")
        commissioning.collect("day")
    assert commissioning.testable("day")
    assert not commissioning.testable("infrared")
