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

from tidegauge.agent.bus import Bus
from tidegauge.agent.config import AgentConfig
from tidegauge.agent.core_restart import CoreRestart
from tidegauge.agent.doubts import doubts
from tidegauge.agent.endings import Endings
from tidegauge.agent.events import AcceleratorDown, FrameProcessed, PipelineUp, SampleLost
from tidegauge.agent.frame_account import FrameAccount
from tidegauge.agent.frames import FrameFeed, PendingFrame
from tidegauge.agent.ladder import GiveUp, Ladder, Retry
from tidegauge.agent.requests import TensorRequest
from tidegauge.agent.session_hold import SessionHold
from tidegauge.agent.stage import AcceleratorGone, Stage, during, symptoms_of
from tidegauge.agent.state import StateStore
from tidegauge.agent.workers import Worker, WorkerEnded
from tidegauge.clocks import Monotonic, monotonic
from tidegauge.log_kinds import PIPELINE_UP
from tidegauge.metrics import AgentMetrics
from tidegauge.pipeline.messages import (
    AttachFrames,
    FrameDone,
    FrameRan,
    FrameSkipped,
    PipelineEvent,
    PipelineReady,
    RunFrame,
    RunTensor,
    SessionOpened,
    StartPipeline,
    TensorDone,
)
from tidegauge.pipeline.ring import Ring
from tidegauge.profile import Profile

log = logging.getLogger(__name__)

SAMPLE_SLOTS = 4
REST_SECONDS = 0.25
#: What the profile or the configuration says can't be. A device that won't open may yet (firmware still booting).
INCURABLE = frozenset({"profile_mismatch", "results_socket"})


class PipelineUnavailable(Exception):
    """The request could not be run: the pipeline is down, or went down under it."""


class PipelineService(SessionHold):
    """`run()` for ever. `choose_sample` decides, before a frame is run, into which sample slot it is copied (or -1)."""

    def __init__(
        self,
        profile: Profile,
        config: AgentConfig,
        results_socket: str,
        store: StateStore,
        endings: Endings,
        bus: Bus,
        metrics: AgentMetrics,
        logs: Path,
    ) -> None:
        super().__init__()
        self._profile, self._runtime, self._socket = profile, config.runtime, results_socket
        self._supervision, self._store = config.supervision, store
        self._bus, self._metrics, self._logs = bus, metrics, logs
        self.endings = endings
        self._ladder = Ladder(config.supervision)
        self._core = CoreRestart(config.supervision, store, metrics)
        self._frames = FrameAccount(config.supervision.slow_factor, store, bus, metrics)
        self.stage = Stage("starting", monotonic(), self._opening_seconds)
        self.last_run: Monotonic | None = None
        self._progress = metrics.progress.labels(metrics.model)
        self.choose_sample: Callable[[], int] = lambda: -1
        self.generation = 0
        self.ring: Ring | None = None
        self._feed = FrameFeed(lambda reason: metrics.frames_dropped.labels(reason).inc())
        self._requests: deque[TensorRequest] = deque()
        self._frame_id = 0
        #: The worker while it has nothing to do and the pipeline's task waits: a frame is sent to it from `offer`.
        self._idle: Worker[PipelineEvent] | None = None
        self._wake, self._allowed, self._down = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._allowed.set()
        self._down.set()
        self._pausing, self._up, self._again = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._pid: int | None = None

    # --- what the others call ---

    def attach_frames(self, attach: AttachFrames, ring: Ring, free: Callable[[int], None]) -> None:
        """A camera worker has come up."""
        self._feed.attach(attach, ring, free)
        self._wake.set()

    def detach_frames(self) -> None:
        """The camera worker is gone, and its ring with it."""
        self._feed.detach()

    @property
    def has_camera(self) -> bool:
        return self._feed.source is not None

    def offer(self, frame: PendingFrame) -> None:
        """A new picture. The newest wins: an older one still waiting is dropped and counted."""
        if self._idle is not None and self._feed.sent and (done := self._idle.at_once(FrameDone)) is not None:
            self._finish(done)
        self._feed.offer(frame, "pipeline_busy" if self.ready else "pipeline_down")
        if not self._post_frame():
            self._wake.set()

    async def run_tensor(self, path: Path, sample_slot: int) -> TensorDone:
        """A device run of a raw input tensor, ahead of waiting frames. Raises PipelineUnavailable."""
        if self.ready is None:
            raise PipelineUnavailable("the pipeline is down")
        request = TensorRequest(str(path), sample_slot, asyncio.get_running_loop().create_future())
        self._requests.append(request)
        self._wake.set()
        return await request.answer

    async def pause(self) -> None:
        """Stop the worker in order and keep it down. Returns when its process is gone."""
        self._allowed.clear()
        self._pausing.set()
        self._wake.set()
        await self._down.wait()

    def resume(self) -> None:
        self._pausing.clear()
        self._allowed.set()

    async def until_up(self) -> None:
        """Wait until a worker has completed its first run."""
        await self._up.wait()

    @property
    def pid(self) -> int | None:
        return self._pid

    def pids(self) -> set[int]:
        return set() if self._pid is None else {self._pid}

    @property
    def _opening_seconds(self) -> float:
        return self._runtime.start_timeout + self._runtime.first_run_timeout

    @property
    def suspect(self) -> bool:
        """Something hung on the C7x, and no device run has been completed since."""
        return self._ladder.suspect

    def hung_elsewhere(self) -> None:
        """A traced run hung: the next generation is the one that is tried on a suspect C7x."""
        self._ladder.hung()
        self._metrics.accelerator_suspect.labels(self._metrics.model).set(1)

    def try_again(self) -> None:
        """A person has looked: it is tried from the start. How an older worker ends says nothing of the cure."""
        if self.stage.name in ("stopped", "starting", "backing_off"):
            self._store.update(restarts=())
            self._ladder.forgive()
            self._again.set()

    def stuck(self, sentence: str) -> None:
        self._enter("stopped", 0.0)
        self._metrics.accelerator_down.labels(self._metrics.model).set(1)
        self._bus.emit(AcceleratorDown(sentence, ("hung",)))

    # --- one generation after another ---

    async def run(self) -> None:
        while True:
            await self._allowed.wait()
            ended = await self._generation()
            if ended is None:
                self._ladder.paused()
                continue
            decision = self._account_end(ended)
            if isinstance(decision, GiveUp):
                await self._escalate(decision, ended)
            else:
                self._enter("backing_off", decision.delay)
                await asyncio.sleep(decision.delay)

    async def _generation(self) -> WorkerEnded | None:
        """One worker from start to end; what ended it, or None where it was stopped for a capture."""
        self.generation += 1
        self._down.clear()
        self._enter("starting", self._opening_seconds)
        follower = self.endings.follow(self._logs / "pipeline.log")
        limits = self._runtime
        worker: Worker[PipelineEvent] = await Worker.start(
            "pipeline",
            "tidegauge.pipeline.worker",
            PipelineEvent,
            {},
            self._logs,
            leave=limits.stop_timeout,
            terminate=limits.kill_timeout,
        )
        ended: WorkerEnded | None = None
        self._pid = worker.pid
        try:
            await self._serve(worker)
        except WorkerEnded as error:
            error.refuse_start(self.generation, INCURABLE)
            ended = error
        finally:
            self._forget_generation()
            how = await worker.stop(at_once=ended is not None and ended.kind.endswith("hung"), on_stuck=self.stuck)
            self._pid = None
            self._down.set()
        if ended is None and how == "killed":
            sentence = f"the pipeline worker did not close its session in {limits.stop_timeout:g} s"
            ended = WorkerEnded("stop_hung", sentence)
        return None if ended is None else self.endings.named(ended, follower)

    def _account_end(self, error: WorkerEnded) -> Retry | GiveUp:
        today = self.endings.of_pipeline(error)
        offloaded = error.kind != "not_offloaded"
        decision = self._ladder.ended(error.kind.endswith("hung"), monotonic(), today, offloaded)
        self._metrics.accelerator_suspect.labels(self._metrics.model).set(1 if self._ladder.suspect else 0)
        return decision

    async def _escalate(self, decision: GiveUp, error: WorkerEnded) -> None:
        """The next rung: restart the core where that is switched on and may help; else give up."""
        if decision.core and self._supervision.remoteproc:
            self._enter("backing_off", self._core.seconds)
            refused = await self._core.attempt(error.kind)
            if not refused:
                self._ladder.core_restarted()
                return
            decision = GiveUp(f"{decision.sentence} (its core was not restarted: {refused})")
        await self._give_up(decision, error)

    async def _give_up(self, decision: GiveUp, error: WorkerEnded) -> None:
        """Send nothing any more until a person says so; or end the agent, where it is configured to."""
        sentence = f"{decision.sentence}; the last one: {error}"
        self._enter("stopped", 0.0)
        self._metrics.accelerator_down.labels(self._metrics.model).set(1)
        self._bus.emit(AcceleratorDown(sentence, symptoms_of(error.kind)))
        if self._supervision.exit_when_down:
            raise AcceleratorGone(sentence, "reboot the board, then look at the worker's log and the remote log")
        self._again.clear()
        await self._again.wait()
        self._metrics.accelerator_down.labels(self._metrics.model).set(0)

    def _enter(self, name: str, seconds: float) -> None:
        """A new stage, which is to end within `seconds` (0: it has no end of its own)."""
        self.stage = Stage(name, monotonic(), seconds)

    def _forget_generation(self) -> None:
        self.ready = None
        self._up.clear()
        if self.ring is not None:
            self.ring.close()
            self.ring = None
        while self._requests:
            answer = self._requests.popleft().answer
            if not answer.done():
                answer.set_exception(PipelineUnavailable("the pipeline went down"))
        self._feed.lose("pipeline_down")

    async def _serve(self, worker: Worker[PipelineEvent]) -> None:
        start = StartPipeline(self.generation, self._profile, self._runtime.module, SAMPLE_SLOTS, self._socket)
        await worker.send(start)
        with during("create"):
            opened, _ = await worker.receive(self._runtime.start_timeout)
        if not isinstance(opened, SessionOpened):
            raise WorkerEnded("failed", "the pipeline worker answered out of turn")
        with during("first_run"):
            ready, fd = await worker.receive(self._runtime.first_run_timeout)
        if not isinstance(ready, PipelineReady) or fd is None:
            raise WorkerEnded("failed", "the pipeline worker answered out of turn")
        self.ring = Ring(ready.ring, fd)
        self.ready = ready
        self._proven()
        said = PIPELINE_UP.of(runtime=ready.runtime, provider=ready.offload.provider)
        log.info("pipeline: %s is up, offloaded to %s", ready.runtime, ready.offload.provider, extra=said)
        self._bus.emit(PipelineUp(ready))
        while self._feed.sent or not self._pausing.is_set():
            if not await self._run_next(worker):
                self._wake.clear()
                if not self._pausing.is_set():  # it may have been set, and have woken, in the meantime
                    self._idle = worker
                    try:
                        await worker.until(self._wake, lambda: bool(self._feed.sent))
                    finally:
                        self._idle = None
        self._enter("paused", 0.0)
        self._metrics.restarts.labels(self._metrics.model, "capture").inc()

    def _proven(self) -> None:
        """The new generation has completed device runs: its warm-up."""
        now = monotonic()
        self._up.set()
        self.last_run = now
        self._ladder.proven(now)
        self._metrics.accelerator_suspect.labels(self._metrics.model).set(0)
        self._metrics.accelerator_down.labels(self._metrics.model).set(0)  # a stuck one may have ended after all
        self._enter("running", self._runtime.run_timeout)

    async def _run_next(self, worker: Worker[PipelineEvent]) -> bool:
        """Run one request or one frame, and wait for its answer. False when there was nothing to do."""
        if not self._feed.sent:
            if self._requests:
                await self._run_request(worker, self._requests.popleft())
                return True
            if not await self._send_frame(worker):
                return False
        done, _ = await worker.receive(self._runtime.run_timeout)
        if isinstance(done, FrameRan):
            # The accelerator is free while the worker looks at the answer: the next frame is there when it has.
            if not self._requests and not self._pausing.is_set():
                await self._send_frame(worker)
            done, _ = await worker.receive(self._runtime.run_timeout)
        if not isinstance(done, FrameDone | FrameSkipped):
            raise WorkerEnded("failed", f"the pipeline worker answered a frame with {type(done).__name__}")
        self._finish(done)
        return True

    def _finish(self, done: FrameDone | FrameSkipped) -> None:
        frame = self._feed.answered()
        if isinstance(done, FrameSkipped):
            self._metrics.frames_dropped.labels("stale_generation").inc()
            self._bus.emit(SampleLost(done.sample_slot))
            return
        self._feed.free(frame)
        self._account(done)
        self._bus.emit(FrameProcessed(done))

    async def _send_frame(self, worker: Worker[PipelineEvent]) -> bool:
        """The waiting picture, after the ring that it lies in; False where there is none."""
        frame, source = self._feed.take(), self._feed.source
        if frame is None or source is None:
            return False
        if not self._feed.known:
            self._feed.known = True
            await worker.send(source.attach, source.ring.fd)
        await worker.send(self._command(frame))
        return True

    def _post_frame(self) -> bool:
        """Send the waiting picture at once, where the worker is idle and knows the ring; whether it is on its way.

        The pipeline's task waits on. Where frames never wait for each other, the answer is looked for when the next one
        comes, else after `REST_SECONDS`: a process that is woken once a frame costs half of one that is woken twice.
        """
        worker = self._idle
        if worker is None or not self._feed.known or self._feed.sent or self._requests or self._pausing.is_set():
            return False
        if (frame := self._feed.take()) is None:
            return False
        command = self._command(frame)
        if not worker.post(command):  # the task will meet the reason
            self._feed.give_back()
            self._bus.emit(SampleLost(command.sample_slot))
            return False
        worker.expect(self._runtime.run_timeout)
        if command.quiet and command.sample_slot < 0:
            worker.rest(min(REST_SECONDS, self._runtime.run_timeout / 2))
        return True

    def _command(self, frame: PendingFrame) -> RunFrame:
        self._frame_id += 1
        sample, said = self.choose_sample(), doubts(self._store.state.alarms)
        quiet = not self._feed.pressed
        return RunFrame(self._frame_id, frame.generation, frame.slot, frame.captured, sample, said, quiet)

    async def _run_request(self, worker: Worker[PipelineEvent], request: TensorRequest) -> None:
        try:
            await worker.send(RunTensor(self._frame_id, request.path, request.sample_slot))
            done, _ = await worker.receive(self._runtime.run_timeout)
        except WorkerEnded as error:
            if not request.answer.done():
                request.answer.set_exception(PipelineUnavailable(str(error)))
            raise
        if not isinstance(done, TensorDone):
            raise WorkerEnded("failed", f"the pipeline worker answered a tensor with {type(done).__name__}")
        self._progressed()
        if not request.answer.done():
            request.answer.set_result(done)

    def _account(self, done: FrameDone) -> None:
        self._progressed()
        self._frames.count(done)

    def _progressed(self) -> None:
        self.last_run = monotonic()
        self._progress.set(self.last_run)
