"""What `tidegauge status` shows: one document, put together from all parts when somebody asks."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING

import msgspec

from tidegauge import __version__
from tidegauge.agent.contexts import ContextStatus
from tidegauge.agent.health import Health
from tidegauge.agent.monitor import AcceptanceStatus
from tidegauge.agent.state import Latched
from tidegauge.clocks import monotonic
from tidegauge.detectors.acceptance import Accepted
from tidegauge.detectors.distance import Distance
from tidegauge.detectors.rates import ClassRate, detection, stack_rates, stream_rate

if TYPE_CHECKING:
    from tidegauge.agent.camera import CameraService
    from tidegauge.agent.capture import CaptureService
    from tidegauge.agent.config import AgentConfig
    from tidegauge.agent.monitor import Monitor
    from tidegauge.agent.pipeline import PipelineService
    from tidegauge.agent.reload import Reload
    from tidegauge.agent.remote_log import RemoteLogServer
    from tidegauge.agent.replaced import Replaced
    from tidegauge.agent.reporting import Reporting
    from tidegauge.agent.scene import SceneWatch
    from tidegauge.agent.shadow import ShadowService
    from tidegauge.agent.state import StateStore
    from tidegauge.link.uplink import Uplink
    from tidegauge.metrics import AgentMetrics
    from tidegauge.spool.store import Spool

#: Disagreements whose time to be found is told.
DISAGREEMENTS = (0.2, 0.5)


class WorkerStatus(msgspec.Struct, frozen=True):
    """`pid` None while there is no process; `restarts` since the agent's start, those for captures included."""

    name: str
    pid: int | None
    generation: int
    restarts: int
    state: str


class ReferenceStatus(msgspec.Struct, frozen=True):
    """The accepted reference. `hours`: mean time until a disagreement of that share is found, None for never.

    `gap`: seconds between samples on average, as gap and CPU budget allow on this board; the hours are with it.
    """

    m0: float
    mean: float
    block: int
    alpha: float
    hours: dict[str, float | None]
    gap: float


class ShadowStatus(msgspec.Struct, frozen=True):
    """`gap`: seconds between samples on average that gap and CPU budget allow. `waiting`: why the newest sample that
    was due could not be taken, empty where it was; `results`: all since the start. `held_out`: measured samples that
    fed no paired detector, by reason. `mix_distance`: total variation between the light contexts of samples that were
    run and of those that were skipped, None while one of them has none.
    """

    gap: float
    waiting: str
    results: dict[str, int]
    held_out: dict[str, int]
    mix_distance: float | None


class Evidence(msgspec.Struct, frozen=True):
    """Logarithms."""

    value: float
    limit: float


class CaptureStatus(msgspec.Struct, frozen=True):
    """`results`, `refusals`: counts since start. `step` of one under way, else empty. `last`: how one ended."""

    results: dict[str, int]
    refusals: dict[str, int]
    step: str
    last: str


class LinkStatus(msgspec.Struct, frozen=True):
    """`answer_age`: seconds since the collector last answered, None for never.

    `broker_age`: seconds since the broker last answered anything, None without a connection: it decides `connected`.
    `error`, `fault`: the present fault and its kind (`link.errors.KINDS`); `denied`: what the broker forbade last;
    empty for none. `held`: why no blob may go now, empty where they may. `renewal`: what a person must do for the
    next certificate, empty for nothing. `answers_signed`: whether only answers count that a pinned key has signed;
    `answers_dropped`: how many did not count since the start, by `link.answers.Fault`; `dropped_last`: what was wrong
    with the last one.
    """

    connected: bool
    answer_age: float | None
    bundles_sent: int
    error: str
    broker_age: float | None = None
    fault: str = ""
    denied: str = ""
    held: str = ""
    renewal: str = ""
    answers_signed: bool = False
    answers_dropped: dict[str, int] = {}
    dropped_last: str = ""


class SpoolStatus(msgspec.Struct, frozen=True):
    """`faults`: what was wrong with its disk, its files or the clock since the start, by name (`spool.faults`)."""

    bundles: int
    bytes: int
    limit: int
    faults: dict[str, int] = {}


class CameraStatus(msgspec.Struct, frozen=True):
    """`frame_age`: seconds since the last frame, None for never. `problem`: empty while it delivers.

    `faults`: conditions that have held for long enough; `condition`: one that holds now, for long enough or not; else
    empty. `light`: the light context.
    """

    description: str
    frame_age: float | None
    problem: str
    faults: tuple[str, ...]
    condition: str
    light: str


class ConfigurationStatus(msgspec.Struct, frozen=True):
    """`taken_at`: wall clock when agent.toml was last read and found right.

    `problem`: why it is not taken as it is now; `waiting`: keys whose values wait for a restart; `files`: what is wrong
    with replaced model or artifacts. Empty for nothing.
    """

    path: str
    taken_at: float
    problem: str
    waiting: tuple[str, ...]
    files: str


class StatusReport(msgspec.Struct, frozen=True):
    """All of it. `holding`: a symptom or golden mismatch at this moment, which forbids `rebaseline`; else empty.

    `deterministic`: whether the device repeats its bits, as acceptance found it, None before it was asked.
    `rates`: false alarms a year of each part of the stack, at most, once a reference is accepted. `judged_inputs`:
    light contexts whose inputs are looked after. `distance`: of the last day's mean loss from acceptance's, since the
    agent's start, None while too little is known.
    `last_end`: how the newest worker that held a session ended out of turn, by TIDL cause and cure; empty for none.
    """

    device: str
    model: str
    version: str
    virtual: bool
    session: int
    phase: str
    progress: float
    health: str
    healthy: bool
    health_sentence: str
    acceptance: AcceptanceStatus
    reference: ReferenceStatus | None
    deterministic: bool | None
    contexts: dict[str, ContextStatus]
    judged_inputs: tuple[str, ...]
    rates: tuple[ClassRate, ...]
    shadow: ShadowStatus
    evidence: dict[str, Evidence]
    alarms: tuple[Latched, ...]
    holding: str
    accelerator: str
    suspect: bool
    replaced_today: int
    captures: CaptureStatus
    link: LinkStatus
    spool: SpoolStatus
    workers: tuple[WorkerStatus, ...]
    camera: CameraStatus
    last_end: str = ""
    configuration: ConfigurationStatus | None = None
    distance: Distance | None = None


class Observer:
    """Reads the parts; changes nothing."""

    def __init__(
        self,
        config: AgentConfig,
        model: str,
        store: StateStore,
        camera: CameraService,
        pipeline: PipelineService,
        shadow: ShadowService,
        monitor: Monitor,
        capture: CaptureService,
        reporting: Reporting,
        uplink: Uplink,
        spool: Spool,
        health: Health,
        scene: SceneWatch,
        remote_log: RemoteLogServer,
        metrics: AgentMetrics,
        reload: Reload,
        replaced: Replaced,
    ) -> None:
        self._reload, self._replaced = reload, replaced
        self._config, self._model, self._store = config, model, store
        self._camera, self._pipeline, self._shadow, self._monitor = camera, pipeline, shadow, monitor
        self._capture, self._reporting, self._uplink, self._spool = capture, reporting, uplink, spool
        self._health, self._scene, self._metrics = health, scene, metrics
        self._remote_log = remote_log

    def report(self) -> StatusReport:
        """The present state. Looks into the spool's folder: call it from a thread where that may block."""
        state, health = self._store.state, self._health.judge()
        phase, progress = self._reporting.phase
        ready = self._pipeline.ready
        return StatusReport(
            device=self._config.device,
            model=self._model,
            version=__version__,
            virtual=self._reporting.virtual,
            session=state.session,
            phase=phase,
            progress=progress,
            health=health.state,
            healthy=health.ok,
            health_sentence=health.sentence,
            acceptance=self._monitor.acceptance_status(),
            reference=self._reference(),
            deterministic=state.deterministic,
            contexts=self._monitor.contexts(),
            judged_inputs=self._monitor.judged_inputs,
            rates=self._rates(),
            shadow=self._shadow_status(),
            distance=self._monitor.distance,
            evidence={name: Evidence(*pair) for name, pair in self._monitor.evidence().items()},
            alarms=state.alarms,
            holding=self._monitor.holding(),
            accelerator=ready.offload.provider if ready is not None else self._pipeline.stage.name,
            suspect=self._pipeline.suspect,
            replaced_today=len(state.restarts),
            captures=CaptureStatus(
                dict(self._capture.results),
                {reason.value: count for reason, count in self._capture.refusals.items()},
                self._capture.step,
                self._capture.last,
            ),
            link=self._link(),
            spool=self._spool_status(),
            workers=self._workers(),
            camera=self._camera_status(),
            last_end=self._pipeline.endings.last,
            configuration=self._configuration(),
        )

    def _configuration(self) -> ConfigurationStatus:
        reload = self._reload
        return ConfigurationStatus(
            str(reload.path), reload.taken_at, reload.problem, reload.waiting, self._replaced.problem
        )

    def _shadow_status(self) -> ShadowStatus:
        shadow, metrics = self._shadow, self._metrics
        return ShadowStatus(
            shadow.gap, shadow.waiting, metrics.sample_counts(), metrics.held_out_counts(), shadow.mix.distance
        )

    def _camera_status(self) -> CameraStatus:
        camera, scene = self._camera, self._scene.scene
        age = _age(camera.last_frame)
        return CameraStatus(camera.description, age, camera.problem, self._scene.faults, scene.problem, scene.context)

    def _rates(self) -> tuple[ClassRate, ...]:
        state = self._store.state
        if state.accepted is None:
            return ()
        return rates_of(
            state.accepted, state.contexts, len(self._monitor.judged_inputs), self._config.input_drift.interval
        )

    def _reference(self) -> ReferenceStatus | None:
        accepted = self._store.state.accepted
        if accepted is None:
            return None
        gap = self._shadow.gap
        return ReferenceStatus(
            accepted.m0, accepted.mean, accepted.block, accepted.alpha, hours_to_find(accepted, gap), gap
        )

    def _link(self) -> LinkStatus:
        state = self._uplink.state
        return LinkStatus(
            state.connected,
            _age(state.last_answer_monotonic),
            state.bundles_sent,
            state.error,
            state.broker_age,
            state.fault,
            state.denied,
            self._uplink.held,
            state.renewal,
            state.pinned,
            {reason: count for reason, count in state.dropped.items() if count},
            state.dropped_last,
        )

    def _spool_status(self) -> SpoolStatus:
        usage = self._spool.usage()
        faults = {fault.value: count for fault, count in self._spool.faults.items() if count}
        return SpoolStatus(usage.bundles, usage.bytes, self._spool.limits.max_mib << 20, faults)

    def _workers(self) -> tuple[WorkerStatus, ...]:
        camera, pipeline, shadow = self._camera, self._pipeline, self._shadow
        rows: list[tuple[str, int | None, int, Callable[[], str]]] = [
            ("camera", camera.pid, camera.generation, lambda: camera.problem or "running"),
            ("pipeline", pipeline.pid, pipeline.generation, lambda: pipeline.stage.name),
            ("shadow", shadow.pid, shadow.generation, lambda: "running" if shadow.ready is not None else "starting"),
        ]
        server = self._remote_log
        if server.configured:
            rows.append(("remote_log", server.pid, server.generation, lambda: server.problem or "running"))
        return tuple(WorkerStatus(name, pid, n, max(0, n - 1), said()) for name, pid, n, said in rows)


def _age(moment: float | None) -> float | None:
    return None if moment is None else max(0.0, monotonic() - moment)


def hours_to_find(accepted: Accepted, gap: float) -> dict[str, float | None]:
    """Mean hours until a disagreement of each share is found, with samples every `gap` seconds; None for never."""
    hours: dict[str, float | None] = {}
    for share in DISAGREEMENTS:
        found = detection(accepted.m0, accepted.alpha, accepted.block, gap, share, accepted.correlation_time)
        hours[f"{share:g}"] = found.hours if isfinite(found.hours) else None
    return hours


def rates_of(accepted: Accepted, contexts: dict[str, Accepted], judged: int, interval: float) -> tuple[ClassRate, ...]:
    """False alarms a year, by part, of a board with these references; `judged` contexts of inputs.

    The contexts share the samples, and each takes the α of its own block: their streams together have the rate of the
    one with the most.
    """
    references = list(contexts.values()) or [accepted]
    most = max(stream_rate(each.alpha, each.block, each.gap) for each in references)
    return stack_rates(most, judged, interval)
