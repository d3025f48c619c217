"""What the camera shows: its health, and the light context that each shadow sample belongs to.

A fault of the camera is a warning of its own, which ends by itself when the fault is over: a network camera that
reboots must not need a person. What it shows meanwhile never feeds a paired detector.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from tidegauge.agent.alarms import AlarmBook
from tidegauge.agent.bus import Bus
from tidegauge.agent.events import CameraDown, CameraFinished, CameraUp, FrameDelivered, Scene
from tidegauge.agent.watch_config import CameraHealthConfig, ContextsConfig
from tidegauge.attribution import CAMERA
from tidegauge.bundles.manifest import Cause
from tidegauge.clocks import Monotonic, monotonic
from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.camera import (
    CONDITIONS,
    CameraHealth,
    CameraReference,
    FrameLook,
)
from tidegauge.detectors.contexts import LightContext
from tidegauge.detectors.defaults import Condition
from tidegauge.detectors.sight import judge
from tidegauge.metrics import LIGHT_CONTEXTS, AgentMetrics

PERIOD = 1.0
PREFIX = "camera_"


class SceneWatch:
    """`run()` beside the camera service. `references`: how frames of each context looked at acceptance."""

    def __init__(
        self,
        health: CameraHealthConfig,
        contexts: ContextsConfig,
        alarms: AlarmBook,
        bus: Bus,
        metrics: AgentMetrics,
    ) -> None:
        self._alarms, self._metrics = alarms, metrics
        self._hold = _holds(health)
        self._health: CameraHealth | None = None  # from the camera's first sign on: opening it has its own time-out
        self._light = LightContext(contexts.hold)
        self._look: FrameLook | None = None
        self._found: set[Condition] = set()
        self._finished = False
        self._seen_last: dict[str, Monotonic] = {}
        self.references: Mapping[str, CameraReference] = {}
        bus.on(FrameDelivered, lambda event: self.take(event, monotonic()))
        bus.on(CameraUp, self._on_camera)
        bus.on(CameraDown, self._on_camera)
        bus.on(CameraFinished, lambda _: self._finish())

    def reconfigure(self, health: CameraHealthConfig) -> None:
        """Hold times from now on, also for conditions that hold already."""
        self._hold.update(_holds(health))
        if self._health is not None:
            self._health.hold.update(self._hold)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            self.judge(monotonic())

    @property
    def scene(self) -> Scene:
        """At this moment."""
        return self.at(monotonic())

    def at(self, now: Monotonic) -> Scene:
        problem = next((name for name in CONDITIONS if name in self._found), "")
        if not problem and not self._finished and self._health is not None and not self._health.healthy(now):
            problem = "frozen"
        return Scene(self._light.context or "unknown", self._light.changing, problem, self._look)

    @property
    def faults(self) -> tuple[str, ...]:
        """Conditions that are faults: they have held for long enough."""
        latched = {alarm.detector for alarm in self._alarms.alarms}
        return tuple(name for name in CONDITIONS if PREFIX + name in latched)

    def take(self, event: FrameDelivered, now: Monotonic) -> None:
        """One frame. Those that were not looked at say only that the camera delivers."""
        health = self._expect(now)
        if event.sight is not None:
            self._look = event.sight.look
            self._found = judge(event.sight, self._light, now, self.references)
        self._raise(health.frame(now, event.sequence, self._found), now)

    def judge(self, now: Monotonic) -> None:
        """Also while no frame comes: what has held long enough, and what is over."""
        if not self._finished and self._health is not None:
            self._raise(self._health.alarms(now), now)
        for name in CONDITIONS:
            last = self._seen_last.get(PREFIX + name)
            if last is not None and now - last >= self._hold[name]:
                del self._seen_last[PREFIX + name]
                self._alarms.end(PREFIX + name, f"the camera has not been {name} for {now - last:.0f} s")
                self._metrics.camera_problem.labels(name).set(0)
        for context in LIGHT_CONTEXTS:
            self._metrics.light_context.labels(context).set(1 if context == self._light.context else 0)

    def adopt(self) -> None:
        """Faults that were latched before a restart end too, once they have not been seen for their time."""
        now = monotonic()
        for name in self.faults:
            self._seen_last.setdefault(PREFIX + name, now)

    def _raise(self, found: list[Alarm], now: Monotonic) -> None:
        for alarm in found:
            self._seen_last[alarm.detector] = now
            self._metrics.camera_problem.labels(alarm.detector.removeprefix(PREFIX)).set(1)
            if self._alarms.is_latched(alarm.detector):
                continue
            sentence = f"{alarm.message}. {CAMERA.sentence}"
            cause = Cause(alarm.detector, CAMERA.fault, (), alarm.evidence, sentence, "warning")
            self._alarms.latch([(alarm.detector, alarm.message)], cause, None, capture=False)

    def _on_camera(self, event: CameraUp | CameraDown) -> None:
        if isinstance(event, CameraUp):
            self._finished = False  # another one, in the place of one that had ended
        self._expect(monotonic())

    def _expect(self, now: Monotonic) -> CameraHealth:
        """Frames are expected from the first time on."""
        if self._health is None:
            self._health = CameraHealth(now, self._hold)
        return self._health

    def _finish(self) -> None:
        self._finished = True
        self._found = set()


def _holds(health: CameraHealthConfig) -> dict[Condition, float]:
    return {name: getattr(health, name) for name in CONDITIONS}


class Mix(msgspec.Struct):
    """Light contexts of samples that were run and of those that were skipped: a budget must not choose by content."""

    run: dict[str, int] = msgspec.field(default_factory=dict)
    skipped: dict[str, int] = msgspec.field(default_factory=dict)

    def add(self, context: str, *, run: bool) -> None:
        counts = self.run if run else self.skipped
        counts[context] = counts.get(context, 0) + 1

    @property
    def distance(self) -> float | None:
        """Total variation between the two, 0 to 1; None while one of them has none."""
        ran, left = sum(self.run.values()), sum(self.skipped.values())
        if not ran or not left:
            return None
        names = self.run.keys() | self.skipped.keys()
        return sum(abs(self.run.get(name, 0) / ran - self.skipped.get(name, 0) / left) for name in names) / 2
