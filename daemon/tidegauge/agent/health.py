"""Progress, not pings (DESIGN §12.5): the agent is healthy while its loop moves and the pipeline is inside the deadline
of its declared state. A camera that is unplugged or an accelerator that is given up is such a state: it raises alarms,
and must not end the agent, which still has a spool to send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from tidegauge.clocks import Monotonic, monotonic

if TYPE_CHECKING:
    from tidegauge.agent.camera import CameraService
    from tidegauge.agent.capture import CaptureService
    from tidegauge.agent.config import AgentConfig
    from tidegauge.agent.pipeline import PipelineService
    from tidegauge.agent.state import StateStore

State = Literal["starting", "running", "no_camera", "capturing", "backing_off", "stopped_alarmed", "stuck"]
#: The loop counts as stuck when its one-second tick is so late.
STUCK_SECONDS = 6.0
#: Beyond each deadline, which has handlers of its own that act first.
GRACE_SECONDS = 10.0


class Verdict(NamedTuple):
    state: State
    ok: bool
    sentence: str


class Health:
    """`judge()` may be called from another thread: it reads single values."""

    def __init__(
        self,
        config: AgentConfig,
        store: StateStore,
        camera: CameraService,
        pipeline: PipelineService,
        capture: CaptureService,
    ) -> None:
        self._config, self._store = config, store
        self._camera, self._pipeline, self._capture = camera, pipeline, capture
        self.ticked: Monotonic = monotonic()

    def reconfigure(self, config: AgentConfig) -> None:
        """Deadlines of other settings, from now on."""
        self._config = config

    def judge(self, now: Monotonic | None = None) -> Verdict:
        """The declared state, and whether it is inside its deadline."""
        now = monotonic() if now is None else now
        late = now - self.ticked
        if late > STUCK_SECONDS:
            return Verdict("stuck", False, f"the event loop has been stuck for {late:.0f} s")
        began = self._capture.began
        if began is not None:
            return _within("capturing", now - began, self._capture.allowed_seconds, "a capture is under way")
        stage = self._pipeline.stage
        if stage.name == "stopped":
            return Verdict("stopped_alarmed", True, "the accelerator is given up until the alarm is cleared")
        if stage.name == "waiting":
            return Verdict("no_camera", True, "no application hands over frames (`camera.kind` is tap)")
        since = now - stage.since
        if stage.name == "backing_off":
            return _within("backing_off", since, stage.seconds, "a new pipeline worker waits for its time")
        if stage.name != "running":
            return _within("starting", since, max(stage.seconds, GRACE_SECONDS), "the pipeline worker is starting")
        return self._running(now)

    def _running(self, now: Monotonic) -> Verdict:
        config, frame = self._config, self._camera.last_frame
        last_run = self._pipeline.last_run
        run_age = now - (self._pipeline.stage.since if last_run is None else last_run)
        silent = config.camera.read_deadline
        if frame is not None and now - frame <= silent:
            return _within("running", run_age, silent + config.runtime.run_timeout, "device runs of frames")
        if not self._store.state.golden:
            return Verdict("no_camera", True, "no frames, and no golden tensor to run yet")
        return _within("no_camera", run_age, config.golden.interval + config.runtime.run_timeout, "golden runs only")


def _within(state: State, age: float, allowed: float, what: str) -> Verdict:
    ok = age <= allowed + GRACE_SECONDS
    return Verdict(state, ok, f"{what}, {age:.0f} s {'of' if ok else 'instead of'} at most {allowed:.0f} s")
