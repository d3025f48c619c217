"""What the agent tells the collector: its status, alarms as they change, decoded results."""

from __future__ import annotations

from typing import Literal

from tidegauge import __version__
from tidegauge.agent import vitals
from tidegauge.agent.belonging import BOARD, SDK
from tidegauge.agent.bus import Bus
from tidegauge.agent.config import AgentConfig
from tidegauge.agent.events import (
    AlarmCleared,
    AlarmRaised,
    BundleSealed,
    CaptureEnded,
    FrameProcessed,
    LossArrived,
    PhaseChanged,
    PipelineUp,
)
from tidegauge.agent.state import AgentState, StateStore
from tidegauge.clocks import monotonic, stamp
from tidegauge.link.uplink import Uplink
from tidegauge.link.wire import AlarmChange, Result, Status
from tidegauge.metrics import AgentMetrics
from tidegauge.profile import Profile
from tidegauge.spool.store import Spool

#: A smaller step of the progress is not worth a message.
PROGRESS_STEP = 0.01


class Reporting:
    """Turns events into publications. Holds the status as it was last said."""

    def __init__(
        self,
        config: AgentConfig,
        profile: Profile,
        store: StateStore,
        uplink: Uplink,
        spool: Spool,
        bus: Bus,
        metrics: AgentMetrics,
    ) -> None:
        self._config, self._profile, self._store = config, profile, store
        self._uplink, self._spool, self._metrics = uplink, spool, metrics
        self._phase, self._progress, self.virtual = "starting", 0.0, False
        self._detail: dict[str, float] = {}
        self._capture = ""
        self._next_result = 0.0
        bus.on(PhaseChanged, self._on_phase)
        bus.on(PipelineUp, self._on_pipeline)
        bus.on(AlarmRaised, self._on_alarm)
        bus.on(AlarmCleared, self._on_cleared)
        bus.on(LossArrived, self._on_loss)
        bus.on(FrameProcessed, self._on_frame)
        bus.on(BundleSealed, lambda _: uplink.wake())
        bus.on(CaptureEnded, self._on_capture)
        uplink.fresh_status = self._status
        self._say()

    def reconfigure(self, config: AgentConfig) -> None:
        """Other results, from now on."""
        self._config = config

    @property
    def phase(self) -> tuple[str, float]:
        """The agent's phase and its progress."""
        return self._phase, self._progress

    def _say(self) -> None:
        self._uplink.set_status(self._status())

    def _status(self) -> Status:
        state = self._store.state
        alarms = state.alarms
        return Status(
            state="online",
            session=state.session,
            version=__version__,
            virtual=self.virtual,
            model=self._profile.name,
            phase=self._phase,
            progress=round(self._progress, 3),
            alarm=", ".join(alarm.detector for alarm in alarms),
            detail={**vitals.read(self._metrics), **self._detail},
            sdk=state.runtime.get(f"{BOARD}{SDK}", ""),
            artifacts=state.network,
            acceptance=_acceptance(state),
        )

    def _on_phase(self, event: PhaseChanged) -> None:
        if event.phase == self._phase and abs(event.progress - self._progress) < PROGRESS_STEP:
            return  # the next change adds up with this one
        self._phase, self._progress = event.phase, event.progress
        self._say()

    def _on_pipeline(self, event: PipelineUp) -> None:
        self.virtual = event.ready.offload.virtual
        self._metrics.build.clear()
        self._metrics.build.labels(__version__, "yes" if self.virtual else "no").set(1)
        self._say()

    def _on_loss(self, event: LossArrived) -> None:
        self._detail = {"loss": round(event.evidence.measured.loss, 6)}

    def _on_capture(self, event: CaptureEnded) -> None:
        self._detail = {**self._detail, f"capture_{event.result}": 1.0}
        self._say()

    def _on_alarm(self, event: AlarmRaised) -> None:
        now = stamp()
        cause = event.cause
        self._uplink.publish_alarm(
            AlarmChange(
                id=event.id,
                active=True,
                detector=cause.detector,
                verdict=cause.verdict,
                symptoms=cause.symptoms,
                message=cause.message,
                wall=now.wall,
                boot_id=now.boot_id,
                uptime=now.uptime,
                evidence=cause.evidence,
            )
        )
        self._say()

    def _on_cleared(self, event: AlarmCleared) -> None:
        now = stamp()
        for alarm in {each.id: each for each in reversed(event.alarms)}.values():
            self._uplink.publish_alarm(
                AlarmChange(
                    id=alarm.id,
                    active=False,
                    detector=alarm.detector,
                    verdict=alarm.verdict,
                    symptoms=(),
                    message=event.why,
                    wall=now.wall,
                    boot_id=now.boot_id,
                    uptime=now.uptime,
                )
            )
        self._say()

    def _on_frame(self, event: FrameProcessed) -> None:
        results = self._config.results
        now = monotonic()
        if not results.mqtt or now < self._next_result:
            return
        self._next_result = now + results.mqtt_interval
        done = event.done
        self._uplink.publish_result(Result(done.frame_id, stamp().wall, self._profile.name, done.summary, done.doubts))


def _acceptance(state: AgentState) -> Literal["", "running", "accepted", "failed"]:
    """As it stands; one that has failed is an alarm until somebody clears it."""
    if not state.artifacts:
        return ""
    if any(alarm.detector == "acceptance" for alarm in state.alarms):
        return "failed"
    return "running" if state.accepted is None else "accepted"
