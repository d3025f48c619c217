"""The pipeline service: keeps a pipeline worker alive, feeds it frames and golden tensors, one at a time.

A hung device run can't be cancelled, so each run has a deadline and the worker is replaced when it is missed. A capture
stops the worker in order (`pause`) and starts a new one (`resume`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidegauge.agent.backoff import Backoff
from tidegauge.agent.bus import Bus
from tidegauge.agent.config import RuntimeConfig
from tidegauge.agent.events import FrameProcessed, PipelineDown, PipelineUp, SampleLost
from tidegauge.agent.workers import Worker, WorkerEnded
from tidegauge.clocks import monotonic
from tidegauge.metrics import AgentMetrics
from tidegauge.pipeline.messages import (
    AttachFrames,
    FrameDone,
    FrameSkipped,
    PipelineEvent,
    PipelineReady,
    RunFrame,
    RunTensor,
    StartPipeline,
    TensorDone,
)
from tidegauge.pipeline.ring import Ring
from tidegauge.profile import Profile

log = logging.getLogger(__name__)

SAMPLE_SLOTS = 4
#: What the profile or the configuration says can't be. A device that won't open may yet (firmware still booting).
INCURABLE = frozenset({"profile_mismatch", "results_socket"})


class PipelineUnavailable(Exception):
    """The request could not be run: the pipeline is down, or went down under it."""


class PendingFrame(msgspec.Struct, frozen=True):
    """A picture waiting in a slot of the camera's ring."""

    generation: int
    slot: int
    captured: float


class _Request(msgspec.Struct):
    path: str
    sample_slot: int
    answer: asyncio.Future[TensorDone]


class _Frames(msgspec.Struct, frozen=True):
    """The camera's ring, and how to give a slot back."""

    attach: AttachFrames
    ring: Ring
    free: Callable[[int], None]


class PipelineService:
    """`run()` for ever. `choose_sample` decides, before a frame is run, into which sample slot it is copied (or -1)."""

    def __init__(
        self, profile: Profile, runtime: RuntimeConfig, results_socket: str, bus: Bus, metrics: AgentMetrics, logs: Path
    ) -> None:
        self._profile, self._runtime, self._socket = profile, runtime, results_socket
        self._bus, self._metrics, self._logs = bus, metrics, logs
        self.choose_sample: Callable[[], int] = lambda: -1
        self.generation = 0
        self.ring: Ring | None = None
        self.ready: PipelineReady | None = None
        self._frames: _Frames | None = None
        self._attached = -1
        self._pending: PendingFrame | None = None
        self._requests: deque[_Request] = deque()
        self._frame_id = 0
        self._wake = asyncio.Event()
        self._allowed = asyncio.Event()
        self._allowed.set()
        self._down = asyncio.Event()
        self._down.set()
        self._pausing = asyncio.Event()
        self._up = asyncio.Event()
        self._pid: int | None = None

    # --- what the others call ---

    def attach_frames(self, attach: AttachFrames, ring: Ring, free: Callable[[int], None]) -> None:
        """A camera worker has come up."""
        self.detach_frames()
        self._frames = _Frames(attach, ring, free)
        self._wake.set()

    def detach_frames(self) -> None:
        """The camera worker is gone, and its ring with it."""
        if self._frames is not None:
            self._frames.ring.close()
        self._frames = None
        self._pending = None
        self._attached = -1

    def offer(self, frame: PendingFrame) -> None:
        """A new picture. The newest wins: an older one still waiting is dropped and counted."""
        if self._pending is not None:
            self._metrics.frames_dropped.labels("pipeline_busy" if self.ready else "pipeline_down").inc()
            self._free(self._pending)
        self._pending = frame
        self._wake.set()

    async def run_tensor(self, path: Path, sample_slot: int) -> TensorDone:
        """A device run of a raw input tensor, ahead of waiting frames. Raises PipelineUnavailable."""
        if self.ready is None:
            raise PipelineUnavailable("the pipeline is down")
        request = _Request(str(path), sample_slot, asyncio.get_running_loop().create_future())
        self._requests.append(request)
        self._wake.set()
        return await request.answer

    async def pause(self) -> None:
        """Stop the worker in order and keep it down. Returns when its process is gone."""
        self._allowed.clear()
        self._pausing.set()
        await self._down.wait()

    def resume(self) -> None:
        self._pausing.clear()
        self._allowed.set()

    async def until_up(self) -> None:
        """Wait until a worker has completed its first run."""
        await self._up.wait()

    def pids(self) -> set[int]:
        """The worker that may hold a session now."""
        return set() if self._pid is None else {self._pid}

    # --- one generation after another ---

    async def run(self) -> None:
        backoff = Backoff()
        while True:
            await self._allowed.wait()
            self.generation += 1
            self._down.clear()
            worker: Worker[PipelineEvent] = await Worker.start(
                "pipeline", "tidegauge.pipeline.worker", PipelineEvent, {}, self._logs
            )
            hung = False
            self._pid = worker.pid
            try:
                await self._serve(worker, backoff)
            except WorkerEnded as error:
                error.refuse_start(self.generation, INCURABLE)
                hung = error.kind == "hung"
                self._report_end(error)
            finally:
                self._forget_generation()
                await worker.stop(at_once=hung)
                self._pid = None
                self._down.set()
            if self._allowed.is_set():
                await asyncio.sleep(backoff.delay(monotonic()))

    def _report_end(self, error: WorkerEnded) -> None:
        log.warning("pipeline: %s", error)
        self._metrics.inference_errors.labels(self._metrics.model).inc()
        self._metrics.restarts.labels(self._metrics.model, error.kind).inc()
        self._bus.emit(PipelineDown(error.kind, str(error)))

    def _forget_generation(self) -> None:
        self.ready = None
        self._up.clear()
        self._attached = -1
        if self.ring is not None:
            self.ring.close()
            self.ring = None
        while self._requests:
            answer = self._requests.popleft().answer
            if not answer.done():
                answer.set_exception(PipelineUnavailable("the pipeline went down"))
        if self._pending is not None:
            self._metrics.frames_dropped.labels("pipeline_down").inc()
            self._free(self._pending)
            self._pending = None

    async def _serve(self, worker: Worker[PipelineEvent], backoff: Backoff) -> None:
        start = StartPipeline(self.generation, self._profile, self._runtime.module, SAMPLE_SLOTS, self._socket)
        await worker.send(start)
        ready, fd = await worker.receive(self._runtime.start_timeout)
        if not isinstance(ready, PipelineReady) or fd is None:
            raise WorkerEnded("failed", "the pipeline worker answered out of turn")
        self.ring = Ring(ready.ring, fd)
        self.ready = ready
        self._up.set()
        backoff.started(monotonic())
        log.info("pipeline: %s is up, offloaded to %s", ready.runtime, ready.offload.provider)
        self._bus.emit(PipelineUp(ready))
        while not self._pausing.is_set():
            await self._attach(worker)
            if not await self._run_next(worker):
                self._wake.clear()
                await self._woken(worker)
        self._metrics.restarts.labels(self._metrics.model, "capture").inc()

    async def _woken(self, worker: Worker[PipelineEvent]) -> None:
        """Wait for work, for a pause, or for the worker's unexpected end."""
        tasks = [
            asyncio.create_task(self._wake.wait()),
            asyncio.create_task(self._pausing.wait()),
            asyncio.create_task(worker.receive()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[2].done():
                tasks[2].result()  # raises WorkerEnded
                raise WorkerEnded("failed", "the pipeline worker spoke without being asked")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _attach(self, worker: Worker[PipelineEvent]) -> None:
        frames = self._frames
        if frames is not None and frames.attach.generation != self._attached:
            await worker.send(frames.attach, frames.ring.fd)
            self._attached = frames.attach.generation

    async def _run_next(self, worker: Worker[PipelineEvent]) -> bool:
        """Run one request or one frame, and wait for its answer. False when there was nothing to do."""
        if self._requests:
            await self._run_request(worker, self._requests.popleft())
            return True
        frame, self._pending = self._pending, None
        if frame is None:
            return False
        if self._frames is None or frame.generation != self._frames.attach.generation:
            self._metrics.frames_dropped.labels("stale_generation").inc()
            return True
        self._frame_id += 1
        sample = self.choose_sample()
        run = RunFrame(self._frame_id, frame.generation, frame.slot, frame.captured, sample)
        await worker.send(run)
        done, _ = await worker.receive(self._runtime.run_timeout)
        if isinstance(done, FrameSkipped):
            self._metrics.frames_dropped.labels("stale_generation").inc()
            self._bus.emit(SampleLost(done.sample_slot))
            return True
        if not isinstance(done, FrameDone):
            raise WorkerEnded("failed", f"the pipeline worker answered a frame with {type(done).__name__}")
        self._free(frame)
        self._account(done)
        self._bus.emit(FrameProcessed(done))
        return True

    async def _run_request(self, worker: Worker[PipelineEvent], request: _Request) -> None:
        try:
            await worker.send(RunTensor(self._frame_id, request.path, request.sample_slot))
            done, _ = await worker.receive(self._runtime.run_timeout)
        except WorkerEnded as error:
            if not request.answer.done():
                request.answer.set_exception(PipelineUnavailable(str(error)))
            raise
        if not isinstance(done, TensorDone):
            raise WorkerEnded("failed", f"the pipeline worker answered a tensor with {type(done).__name__}")
        if not request.answer.done():
            request.answer.set_result(done)

    def _account(self, done: FrameDone) -> None:
        metrics, model = self._metrics, self._metrics.model
        metrics.inferences.labels(model).inc()
        metrics.inference_seconds.labels(model).observe(done.device_seconds)
        metrics.progress.labels(model).set(monotonic())
        for stats in done.outputs[: metrics.outputs_limit]:
            metrics.saturated.labels(model, stats.name, "low").set(stats.low_share)
            metrics.saturated.labels(model, stats.name, "high").set(stats.high_share)

    def _free(self, frame: PendingFrame) -> None:
        if self._frames is not None and frame.generation == self._frames.attach.generation:
            self._frames.free(frame.slot)
