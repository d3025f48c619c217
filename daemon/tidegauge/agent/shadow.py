"""The shadow service: decides which frames become samples, has them measured, and copies the pairs out.

Sampling is decided before a frame is run, by a clock with jitter and a budget on measured CPU time: never by what the
output looks like, or the detectors would be fed a biased stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidegauge import board
from tidegauge.agent.backoff import Backoff
from tidegauge.agent.bus import Bus
from tidegauge.agent.config import AgentConfig
from tidegauge.agent.events import (
    Evidence,
    FrameProcessed,
    LossArrived,
    PipelineDown,
    PipelineUp,
    SampleLost,
    Scene,
    ShadowDown,
    ShadowUp,
)
from tidegauge.agent.pipeline import PipelineService, PipelineUnavailable
from tidegauge.agent.scene import Mix, SceneWatch
from tidegauge.agent.workers import Worker, WorkerEnded
from tidegauge.clocks import Monotonic, monotonic
from tidegauge.log_kinds import REFERENCE_UP, SAMPLE_FAILED, WORKER_ENDED
from tidegauge.metrics import AgentMetrics
from tidegauge.pipeline.layout import SampleLayout, sample_layout
from tidegauge.pipeline.messages import (
    AttachSamples,
    LossMeasured,
    MeasureSample,
    PipelineReady,
    SampleFailed,
    ShadowEvent,
    ShadowReady,
    StartShadow,
)
from tidegauge.profile import Profile
from tidegauge.restartable import Restartable
from tidegauge.shadow.budget import CpuBudget
from tidegauge.shadow.sampler import PoissonSampler
from tidegauge.shadow.stand_back import LatencyRise, Limits, Readings, why

log = logging.getLogger(__name__)

#: The reference can't be opened: no later attempt can.
INCURABLE = frozenset({"open_failed", "profile_mismatch"})


class ShadowUnavailable(Exception):
    """The sample could not be measured."""


class _Job(msgspec.Struct):
    """A filled slot waiting to be measured; `answer` where somebody waits for it (a golden run)."""

    slot: int
    frame_id: int
    digest: str
    golden: int = -1
    answer: asyncio.Future[Evidence] | None = None
    forced: bool = False
    scene: Scene = Scene()


class ShadowService:
    """Runs for ever: shadow worker after worker. Owns the slots of the sample ring."""

    def __init__(
        self,
        profile: Profile,
        config: AgentConfig,
        pipeline: PipelineService,
        scene: SceneWatch,
        bus: Bus,
        metrics: AgentMetrics,
        logs: Path,
        seed: int,
    ) -> None:
        self._profile, self._config, self._pipeline, self._scene = profile, config.shadow, pipeline, scene
        self._supervision = config.supervision
        self._bus, self._metrics, self._logs = bus, metrics, logs
        self._seed = seed
        self._restartable = Restartable()
        self._sampler = PoissonSampler(config.shadow.gap_mean, config.shadow.gap_floor, seed)
        self._budget = CpuBudget(config.shadow.cpu_share, config.shadow.cpu_window)
        self._limits = Limits(config.stand_back.temperature, config.stand_back.load, config.stand_back.latency_rise)
        self._latency = LatencyRise()
        self.mix = Mix()
        self.waiting = ""
        self._cpu_seconds, self._measured = 0.0, 0
        self._free: list[int] = []
        self._jobs: deque[_Job] = deque()
        self._wake = asyncio.Event()
        self._source: PipelineReady | None = None
        self._layout: SampleLayout | None = None
        self._attached = -1
        self._sample_id = 0
        self.wants_inner: Callable[[], bool] = lambda: False
        self._forced = False
        self._forced_slots: set[int] = set()
        self.generation = 0
        self.pid: int | None = None
        self.ready: ShadowReady | None = None
        pipeline.choose_sample = self._choose
        bus.on(PipelineUp, self._on_pipeline_up)
        bus.on(PipelineDown, lambda _: self._forget_samples())
        bus.on(FrameProcessed, self._on_frame)
        bus.on(SampleLost, self._on_lost)

    def reconfigure(self, config: AgentConfig) -> None:
        """Gaps, budget and limits from now on. A budget that stays keeps what it has saved."""
        new, old = config.shadow, self._config
        if (new.gap_mean, new.gap_floor) != (old.gap_mean, old.gap_floor):
            self._seed += 1
            self._sampler = PoissonSampler(new.gap_mean, new.gap_floor, self._seed)
        if (new.cpu_share, new.cpu_window) != (old.cpu_share, old.cpu_window):
            self._budget = CpuBudget(new.cpu_share, new.cpu_window)
        self._config = new
        self._limits = Limits(config.stand_back.temperature, config.stand_back.load, config.stand_back.latency_rise)

    def restart(self) -> None:
        """Replace the worker: the model's file is another one. What waits to be measured belongs to the old one."""
        self._forget_samples()
        self._restartable.restart()

    # --- slots and sampling ---

    def force_next(self) -> None:
        """Sample the next frame, whatever the clock says. Its loss is evidence, not an observation of a detector."""
        self._forced = True

    def _choose(self) -> int:
        now = monotonic()
        if not self._forced and not self._sampler.due(now):
            return -1
        if not self._forced and (reason := self._forbidden(now)):
            return self._skip(now, reason)
        if not self._free or self.ready is None:
            return self._skip(now, "skipped_no_slot")
        slot = self._free.pop()
        if self._forced:
            self._forced = False
            self._forced_slots.add(slot)
        else:
            self.waiting = ""
            self._sampler.taken(now)
        return slot

    def _forbidden(self, now: Monotonic) -> str:
        """Why no sample may be taken now; empty where one may. Nothing of it looks at the frame."""
        if not self._budget.allows(now):
            return "skipped_budget"
        readings = Readings(board.temperature(), board.load_per_core())
        reason = why(self._limits, readings, self._latency.factor)
        return f"skipped_{reason}" if reason is not None else ""

    def _skip(self, now: Monotonic, reason: str) -> int:
        self._sampler.skip(now)
        self.waiting = reason.removeprefix("skipped_")
        self._metrics.samples.labels(self._metrics.model, reason).inc()
        self._note_mix(run=False)
        return -1

    def _note_mix(self, *, run: bool) -> None:
        self.mix.add(self._scene.scene.context, run=run)
        if self.mix.distance is not None:
            self._metrics.mix_distance.labels(self._metrics.model).set(self.mix.distance)

    @property
    def gap(self) -> float:
        """Seconds between samples on average that gap and CPU budget allow, as the reference has cost up to now."""
        cost = self._cpu_seconds / self._measured if self._measured else 0.0
        return max(self._config.gap_mean, cost / self._config.cpu_share)

    def _on_pipeline_up(self, event: PipelineUp) -> None:
        self._forget_samples()
        self._source = event.ready
        self._layout = sample_layout(event.ready.inputs, event.ready.outputs)
        self._free = list(range(event.ready.ring.slots))
        self._wake.set()

    def _forget_samples(self) -> None:
        """The ring has gone: what lay in it can't be measured any more."""
        for job in self._jobs:
            self._metrics.samples.labels(self._metrics.model, "skipped_stale").inc()
            self._fail(job, "the pipeline was restarted")
        self._jobs.clear()
        self._forced_slots.clear()
        self._free = []
        self._source = None

    def _on_frame(self, event: FrameProcessed) -> None:
        self._latency.update(max(0.0, event.done.told - event.done.captured))
        if event.done.sample_slot >= 0:
            slot = event.done.sample_slot
            forced = slot in self._forced_slots
            self._forced_slots.discard(slot)
            self._jobs.append(
                _Job(slot, event.done.frame_id, event.done.digest, forced=forced, scene=self._scene.scene)
            )
            if not forced:
                self._note_mix(run=True)
            self._wake.set()

    def _on_lost(self, event: SampleLost) -> None:
        if event.slot >= 0:
            self._forced_slots.discard(event.slot)
            self._free.append(event.slot)
            self._metrics.samples.labels(self._metrics.model, "skipped_stale").inc()

    async def golden(self, path: Path, index: int, deadline: float) -> Evidence:
        """Run a golden tensor on both sides and measure it. Raises PipelineUnavailable or ShadowUnavailable."""
        async with asyncio.timeout(deadline):
            while not self._free:
                if self._source is None:
                    raise PipelineUnavailable("the pipeline is down")
                await asyncio.sleep(0.01)
            slot = self._free.pop()
            generation = self._pipeline.generation
            try:
                done = await self._pipeline.run_tensor(path, slot)
            except PipelineUnavailable:
                if generation == self._pipeline.generation and self._source is not None:
                    self._free.append(slot)
                raise
            answer: asyncio.Future[Evidence] = asyncio.get_running_loop().create_future()
            self._jobs.append(_Job(slot, -1, done.digest, index, answer))
            self._wake.set()
            return await answer

    # --- one generation after another ---

    async def run(self) -> None:
        while await self._restartable.run(self._workers):
            log.info("shadow: a new worker, for another model or other artifacts")

    async def _workers(self) -> None:
        limits = self._supervision
        backoff = Backoff(limits.restart_first, limits.restart_most, limits.healthy)
        while True:
            self.generation += 1
            self._attached = -1
            worker: Worker[ShadowEvent] = await Worker.start(
                "shadow", "tidegauge.shadow.worker", ShadowEvent, {}, self._logs
            )
            self.pid = worker.pid
            try:
                await self._serve(worker, backoff)
            except WorkerEnded as error:
                error.refuse_start(self.generation, INCURABLE)
                log.warning("shadow: %s", error, extra=WORKER_ENDED.of(worker="shadow", reason=error.kind))
                self._metrics.worker_restarts.labels("shadow", error.kind).inc()
                self._bus.emit(ShadowDown(str(error)))
            finally:
                self.ready = None
                await worker.stop(at_once=True)
                self.pid = None
            await asyncio.sleep(backoff.delay(monotonic()))

    async def _serve(self, worker: Worker[ShadowEvent], backoff: Backoff) -> None:
        await worker.send(StartShadow(self.generation, self._profile))
        ready, _ = await worker.receive(self._config.measure_timeout)
        if not isinstance(ready, ShadowReady):
            raise WorkerEnded("failed", "the shadow worker answered out of turn")
        self.ready = ready
        backoff.started(monotonic())
        said = REFERENCE_UP.of(runtime=ready.runtime, generation=self.generation)
        log.info("shadow: reference on %s", ready.runtime, extra=said)
        self._bus.emit(ShadowUp(ready))
        while True:
            if self._jobs:
                await self._measure(worker, self._jobs.popleft())
            else:
                self._wake.clear()
                await worker.until(self._wake)

    async def _measure(self, worker: Worker[ShadowEvent], job: _Job) -> None:
        source, ring, layout = self._source, self._pipeline.ring, self._layout
        if source is None or ring is None or layout is None:
            self._fail(job, "the pipeline went down")
            return
        generation = source.generation
        try:
            if self._attached != generation:
                await worker.send(AttachSamples(generation, source.inputs, source.outputs, source.ring), ring.fd)
                self._attached = generation
            self._sample_id += 1
            inner = self.wants_inner()
            await worker.send(MeasureSample(self._sample_id, job.slot, generation, job.frame_id, job.golden, inner))
            answer, _ = await worker.receive(self._config.measure_timeout)
        except WorkerEnded as error:
            self._fail(job, str(error))
            raise
        except asyncio.CancelledError:
            self._fail(job, "the shadow worker was replaced")
            raise
        if self._source is not source or self._pipeline.ring is not ring:
            self._metrics.samples.labels(self._metrics.model, "skipped_stale").inc()
            self._fail(job, "the pipeline was restarted")
            return
        self._finish(job, answer, layout)
        self._free.append(job.slot)

    def _finish(self, job: _Job, answer: ShadowEvent, layout: SampleLayout) -> None:
        model = self._metrics.model
        if isinstance(answer, SampleFailed):
            log.warning("shadow: %s", answer.problem, extra=SAMPLE_FAILED.of())
            self._metrics.samples.labels(model, "error").inc()
            self._fail(job, answer.problem)
            return
        if not isinstance(answer, LossMeasured):
            raise WorkerEnded("failed", f"the shadow worker answered a sample with {type(answer).__name__}")
        self._budget.charge(monotonic(), answer.cpu_seconds)
        self._cpu_seconds, self._measured = self._cpu_seconds + answer.cpu_seconds, self._measured + 1
        self._metrics.shadow_seconds.labels(model).observe(answer.cpu_seconds)
        evidence = self._copy(job, answer, layout)
        if job.answer is not None:
            if not job.answer.done():
                job.answer.set_result(evidence)
            return
        self._metrics.samples.labels(model, "ok").inc()
        self._metrics.loss.labels(model).observe(answer.loss)
        self._metrics.last_loss.labels(model).set(answer.loss)
        for errors in answer.errors:
            if errors.output == self._profile.output.name and errors.nmse is not None:
                self._metrics.nmse.labels(model).observe(errors.nmse)
        self._bus.emit(LossArrived(evidence, job.forced, job.scene))

    def _copy(self, job: _Job, measured: LossMeasured, layout: SampleLayout) -> Evidence:
        ring = self._pipeline.ring
        assert ring is not None  # checked by the caller in this same step of the loop
        groups = (layout.inputs, layout.device, layout.reference)
        inputs, device, reference = (tuple(ring.read(job.slot, region) for region in group) for group in groups)
        return Evidence(measured, job.digest, inputs, device, reference)

    @staticmethod
    def _fail(job: _Job, problem: str) -> None:
        if job.answer is not None and not job.answer.done():
            job.answer.set_exception(ShadowUnavailable(problem))
