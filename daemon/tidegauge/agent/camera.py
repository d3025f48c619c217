"""The camera service: keeps a camera worker alive and hands its frames on."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from tidegauge.agent.backoff import Backoff
from tidegauge.agent.bus import Bus
from tidegauge.agent.config import SupervisionConfig
from tidegauge.agent.events import CameraDown, CameraFinished, CameraUp, FrameDelivered
from tidegauge.agent.frames import PendingFrame
from tidegauge.agent.pipeline import PipelineService
from tidegauge.agent.workers import Worker, WorkerEnded
from tidegauge.camera.config import CameraConfig
from tidegauge.clocks import Monotonic, monotonic
from tidegauge.log_kinds import CAMERA_UP, WORKER_ENDED
from tidegauge.metrics import AgentMetrics
from tidegauge.pipeline.messages import (
    AttachFrames,
    CameraEnded,
    CameraEvent,
    CameraReady,
    FrameDropped,
    FrameReady,
    SlotFree,
    StartCamera,
)
from tidegauge.pipeline.ring import Ring
from tidegauge.restartable import Restartable

log = logging.getLogger(__name__)

RING_SLOTS = 4
INCURABLE = frozenset({"open_failed", "no_pictures"})
#: Beyond the source's own time-outs, so that its own sentence arrives first.
GRACE_SECONDS = 3.0


class CameraService:
    """Runs for ever: worker after worker, each with a new ring, with back-off between failures."""

    worker_module = "tidegauge.camera.worker"

    def __init__(
        self,
        camera: CameraConfig,
        supervision: SupervisionConfig,
        pipeline: PipelineService,
        bus: Bus,
        metrics: AgentMetrics,
        logs: Path,
    ) -> None:
        self._supervision = supervision
        self._camera, self._pipeline, self._bus, self._metrics, self._logs = camera, pipeline, bus, metrics, logs
        self.generation = 0
        self.pid: int | None = None
        self.description, self.problem = "", ""
        self.last_frame: Monotonic | None = None
        self._wanted = camera
        self._restartable = Restartable()

    def reconfigure(self, camera: CameraConfig) -> None:
        """Open this camera in the place of the present one."""
        self._wanted = camera
        if camera != self._camera:
            self._restartable.restart()

    async def run(self) -> None:
        while await self._restartable.run(self._workers):
            log.info("camera: %s %s in the place of %s", self._wanted.kind, self._wanted.source, self._camera.source)
            self._camera = self._wanted

    async def _workers(self) -> None:
        limits = self._supervision
        backoff = Backoff(limits.restart_first, limits.restart_most, limits.healthy)
        while True:
            self.generation += 1
            worker: Worker[CameraEvent] = await Worker.start("camera", self.worker_module, CameraEvent, {}, self._logs)
            self.pid = worker.pid
            try:
                await self._serve(worker, backoff)
                break  # a source that ends has ended
            except WorkerEnded as error:
                if not self._camera.live:  # a network camera may come back; a file doesn't change by itself
                    error.refuse_start(self.generation, INCURABLE)
                log.warning("camera: %s", error, extra=WORKER_ENDED.of(worker="camera", reason=error.kind))
                self.problem = str(error)
                self._metrics.camera_problem.labels("down").set(1)
                self._metrics.worker_restarts.labels("camera", error.kind).inc()
                self._bus.emit(CameraDown(str(error)))
            finally:
                self._pipeline.detach_frames()
                await worker.stop(at_once=True)
                self.pid = None
            await asyncio.sleep(backoff.delay(monotonic()))
        await asyncio.Event().wait()  # only another source brings frames again

    async def _serve(self, worker: Worker[CameraEvent], backoff: Backoff) -> None:
        await worker.send(StartCamera(self.generation, self._camera, RING_SLOTS))
        ready, fd = await worker.receive(self._camera.open_timeout + GRACE_SECONDS)
        if not isinstance(ready, CameraReady) or fd is None:
            raise WorkerEnded("failed", "the camera worker answered out of turn")
        backoff.started(monotonic())
        said = CAMERA_UP.of(generation=self.generation)
        log.info("camera: %s, %d×%d", ready.description, ready.width, ready.height, extra=said)
        self._metrics.camera_problem.labels("down").set(0)
        self.description, self.problem = ready.description, ""
        ring = Ring(ready.ring, fd)
        freed: asyncio.Queue[int] = asyncio.Queue()
        attach = AttachFrames(self.generation, ready.width, ready.height, ready.ring)

        def free(slot: int) -> None:
            if not (freed.empty() and worker.post(SlotFree(slot))):
                freed.put_nowait(slot)

        self._pipeline.attach_frames(attach, ring, free)
        self._bus.emit(CameraUp(self.generation, ready.description))
        returning = asyncio.create_task(self._return_slots(worker, freed), name="camera slots")
        try:
            await self._receive(worker)
        finally:
            returning.cancel()
            await asyncio.gather(returning, return_exceptions=True)

    async def _receive(self, worker: Worker[CameraEvent]) -> None:
        while True:
            event, _ = await worker.receive(self._camera.read_deadline + GRACE_SECONDS)
            if isinstance(event, FrameReady):
                self._metrics.frames.inc()
                self.last_frame = monotonic()
                self._bus.emit(FrameDelivered(event.sequence, event.sight))
                self._pipeline.offer(PendingFrame(self.generation, event.slot, event.captured))
            elif isinstance(event, FrameDropped):
                self._metrics.frames_dropped.labels("camera_ring_full").inc(event.count)
            elif isinstance(event, CameraEnded):
                log.info("camera: the source has ended")
                self._bus.emit(CameraFinished())
                return

    async def _return_slots(self, worker: Worker[CameraEvent], freed: asyncio.Queue[int]) -> None:
        while True:
            try:
                await worker.send(SlotFree(await freed.get()))
            except WorkerEnded:
                return  # the receiving side reports it
