"""The camera's health and light as the agent watches them; times are arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegauge.agent.alarms import AlarmBook
from tidegauge.agent.bus import Bus
from tidegauge.agent.events import AlarmCleared, AlarmRaised, CameraFinished, FrameDelivered
from tidegauge.agent.scene import Mix, SceneWatch
from tidegauge.agent.state import StateStore
from tidegauge.agent.watch_config import CameraHealthConfig, ContextsConfig
from tidegauge.clocks import Monotonic
from tidegauge.detectors.camera import CameraReference, FrameLook
from tidegauge.detectors.contexts import Light
from tidegauge.detectors.sight import Sight
from tidegauge.metrics import AgentMetrics

EDGES = tuple(float(i % 5) for i in range(192))
GOOD = Sight(FrameLook(200.0, 0.0, 30.0, EDGES), Light(120.0, 30.0))
BLACK = Sight(FrameLook(3.0, 0.0, 1.0, EDGES), Light(2.0, 1.0))
DIM = Sight(FrameLook(90.0, 0.0, 20.0, EDGES), Light(30.0, 20.0))


class Watched:
    """A scene with its own alarms, and what was said on the bus."""

    def __init__(self, folder: Path) -> None:
        self.bus, self.metrics = Bus(), AgentMetrics("m")
        self.book = AlarmBook(StateStore(folder), self.bus, self.metrics)
        self.scene = SceneWatch(CameraHealthConfig(), ContextsConfig(), self.book, self.bus, self.metrics)
        self.raised: list[AlarmRaised] = []
        self.cleared: list[AlarmCleared] = []
        self.bus.on(AlarmRaised, self.raised.append)
        self.bus.on(AlarmCleared, self.cleared.append)
        self.second = 0

    def frames(self, seconds: int, sight: Sight | None) -> None:
        for _ in range(seconds):
            self.second += 1
            self.scene.take(FrameDelivered(self.second, sight), Monotonic(self.second))
            self.scene.judge(Monotonic(self.second))

    def silence(self, seconds: int) -> None:
        for _ in range(seconds):
            self.second += 1
            self.scene.judge(Monotonic(self.second))

    def problem(self) -> str:
        return self.scene.at(Monotonic(self.second)).problem

    def gauge(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value("tidegauge_camera_problem", {"problem": name})


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_black_camera_is_a_warning_of_class_camera_that_ends_by_itself(watched: Watched) -> None:
    watched.frames(20, GOOD)
    watched.frames(1, BLACK)
    assert watched.problem() == "black", "no frame to judge a device by, from the first one on"
    assert watched.raised == []
    watched.frames(60, BLACK)
    [alarm] = watched.raised
    assert (alarm.cause.detector, alarm.cause.verdict, alarm.cause.severity) == ("camera_black", "camera", "warning")
    assert not alarm.capture
    assert watched.scene.faults == ("black",)
    assert watched.gauge("black") == 1
    watched.frames(50, GOOD)
    assert watched.problem() == ""
    assert watched.cleared == [], "it may come back"
    watched.frames(20, GOOD)
    assert [each.alarms[0].detector for each in watched.cleared] == ["camera_black"]
    assert "has not been black for" in watched.cleared[0].why
    assert watched.scene.faults == ()
    assert watched.gauge("black") == 0


def test_frozen_is_no_frame_and_a_quiet_picture_is_none(watched: Watched) -> None:
    watched.frames(30, GOOD)
    watched.frames(30, None)  # delivered, not looked at
    assert watched.raised == []
    watched.silence(11)
    assert [each.cause.detector for each in watched.raised] == ["camera_frozen"]
    assert watched.problem() == "frozen"


def test_before_the_first_sign_of_the_camera_and_after_its_end_nothing_is_expected(watched: Watched) -> None:
    watched.silence(100)
    assert watched.raised == []
    watched.frames(5, GOOD)
    watched.bus.emit(CameraFinished())
    watched.silence(100)
    assert watched.raised == []
    assert watched.problem() == ""


def test_light_changes_after_its_hold_and_a_fault_changes_no_light(watched: Watched) -> None:
    watched.frames(10, GOOD)
    watched.frames(100, DIM)
    now = watched.scene.at(Monotonic(watched.second))
    assert (now.context, now.changing) == ("day", True)
    watched.frames(30, DIM)
    now = watched.scene.at(Monotonic(watched.second))
    assert (now.context, now.changing) == ("low_light", False)
    watched.frames(300, BLACK)
    assert watched.scene.at(Monotonic(watched.second)).context == "low_light"
    assert watched.metrics.registry.get_sample_value("tidegauge_light_context", {"context": "low_light"}) == 1


def test_dusk_is_no_blur_and_its_light_is_recognised(watched: Watched) -> None:
    """The night's frames have a tenth of the day's sharpness: by the day's view they would be blurred for ever."""
    watched.scene.references = {"day": CameraReference(30.0, EDGES), "low_light": CameraReference(3.0, EDGES)}
    night = Sight(FrameLook(60.0, 0.0, 3.0, EDGES), Light(25.0, 15.0))
    watched.frames(30, GOOD)
    watched.frames(1500, night)
    assert watched.raised == []
    now = watched.scene.at(Monotonic(watched.second))
    assert (now.context, now.changing, now.problem) == ("low_light", False, "")
    out_of_focus = Sight(FrameLook(60.0, 0.0, 0.4, EDGES), Light(25.0, 15.0))
    watched.frames(1, out_of_focus)
    assert watched.problem() == "blurred"
    watched.frames(620, out_of_focus)
    assert [each.cause.detector for each in watched.raised] == ["camera_blurred"]


def test_a_fault_latched_before_a_restart_ends_too(watched: Watched, tmp_path: Path) -> None:
    watched.frames(5, GOOD)
    watched.silence(15)
    again = Watched(tmp_path)
    again.scene.adopt()
    assert again.scene.faults == ("frozen",)
    again.scene.judge(Monotonic(10.0**9))
    assert again.scene.faults == ()


def test_the_mix_of_run_and_skipped_samples_is_compared() -> None:
    mix = Mix()
    assert mix.distance is None
    for _ in range(30):
        mix.add("day", run=True)
    assert mix.distance is None
    for _ in range(10):
        mix.add("day", run=False)
    assert mix.distance == 0
    for _ in range(30):
        mix.add("infrared", run=False)
    assert mix.distance == pytest.approx(0.75)
