"""The pipeline and the camera of a board whose application runs the model itself (`camera.kind = "tap"`).

In the place of frames that the agent runs there are frames that an application hands over, as many a second as
`camera.frames_per_second` says. Golden tensors are run by the application, and for a capture it closes its session;
what it can't do is refused in a sentence. That no application is there is no fault of the accelerator: no worker is
replaced for it, and the watchdog is fed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidegauge.agent.backoff import Backoff
from tidegauge.agent.bus import Bus
from tidegauge.agent.camera import GRACE_SECONDS, CameraService
from tidegauge.agent.config import AgentConfig
from tidegauge.agent.doubts import doubts
from tidegauge.agent.endings import Endings
from tidegauge.agent.events import CameraDown, CameraUp, FrameDelivered, FrameProcessed, PipelineUp, SampleLost
from tidegauge.agent.pipeline import SAMPLE_SLOTS, PipelineService, PipelineUnavailable
from tidegauge.agent.preconditions import Refused
from tidegauge.agent.state import StateStore
from tidegauge.agent.workers import Worker, WorkerEnded
from tidegauge.camera.config import CameraConfig
from tidegauge.clocks import monotonic
from tidegauge.log_kinds import APPLICATION_DOWN, APPLICATION_UP, WORKER_ENDED
from tidegauge.metrics import AgentMetrics, Refusal
from tidegauge.pipeline.messages import PipelineReady, RunTensor, TensorDone
from tidegauge.pipeline.ring import Ring
from tidegauge.profile import Profile
from tidegauge.tap.messages import (
    Attached,
    Detached,
    FrameMissed,
    FrameTaken,
    Held,
    HoldNext,
    NotPaused,
    Pause,
    Paused,
    Resume,
    RunAsked,
    StartTap,
    TakeFrame,
    TapAnswer,
    TapEvent,
    TensorMissed,
)

log = logging.getLogger(__name__)

#: The application's own camera may keep its loop from looking at what the agent says for so long, beside a run.
LOOP_SECONDS = 5.0
#: What no later start of the worker can cure.
INCURABLE = frozenset({"open_failed"})


class TapCamera(CameraService):
    """What the application hands over, as a camera."""

    async def run(self) -> None:
        await asyncio.Event().wait()

    def reconfigure(self, camera: CameraConfig) -> None:
        """Another rate, from the next frame on."""
        self._camera = camera

    @property
    def period(self) -> float:
        return 1.0 / self._camera.frames_per_second

    @property
    def patience(self) -> float:
        return self._camera.read_timeout

    def came(self, generation: int, description: str) -> None:
        self.generation, self.description, self.problem = generation, description, ""
        self._metrics.camera_problem.labels("down").set(0)
        self._bus.emit(CameraUp(generation, description))

    def gone(self, sentence: str) -> None:
        if sentence != self.problem:
            log.warning("tap: %s", sentence, extra=APPLICATION_DOWN.of())
        self.problem = sentence
        self._metrics.camera_problem.labels("down").set(1)
        self._bus.emit(CameraDown(sentence))

    def delivered(self, taken: FrameTaken) -> None:
        if self.problem:
            self.came(self.generation, self.description)
        self.last_frame = monotonic()
        self._metrics.frames.inc(taken.frames)
        self._metrics.frames_dropped.labels("pipeline_busy").inc(taken.dropped)
        self._bus.emit(FrameDelivered(taken.done.frame_id, taken.sight))


class TapPipeline(PipelineService):
    """`run()` for ever: the tap's worker, and whatever application attaches itself to it."""

    def __init__(
        self,
        profile: Profile,
        config: AgentConfig,
        store: StateStore,
        endings: Endings,
        bus: Bus,
        metrics: AgentMetrics,
        logs: Path,
    ) -> None:
        super().__init__(profile, config, "", store, endings, bus, metrics, logs)
        self.camera = TapCamera(config.camera, config.supervision, self, bus, metrics, logs)
        self._tap_socket = config.camera.source
        runtime = config.runtime
        self._closing = runtime.stop_timeout + LOOP_SECONDS
        #: Longer than any capture: until then the application keeps its session closed without a further word.
        self._longest = 2 * runtime.start_timeout + config.capture.timeout + 2 * self._closing
        self._application: Attached | None = None
        self._answer: asyncio.Future[TapAnswer] | None = None
        self._pause_wanted: asyncio.Future[str] | None = None
        self._resume_wanted = self._closed = False
        self._hold = self._hold_told = False
        self._held: Held | None = None
        self._known: PipelineReady | None = None
        self._starts = 0
        self._enter("waiting", 0.0)

    # --- what the others call ---

    @property
    def cannot_pause(self) -> str:
        application = self._application
        if self._held is not None or application is None or (application.pauses and application.runs):
            return ""
        cure = "give its tap `run`, `close` and `open`"
        if not application.waits:
            cure += ", or let it call `before_opening` at its start, for a capture at the next one"
        return (
            f"the application {application.name}, pid {application.pid}, holds a TIDL session that would be traced too,"
            f" and does not close it for a capture: {cure} (docs/tap.md)"
        )

    @property
    def hold_next(self) -> Callable[[], None] | None:
        waits = bool(self.cannot_pause) and self._application is not None and self._application.waits
        return self._keep_next if waits else None

    def _keep_next(self) -> None:
        self._hold = True
        self._wake.set()

    @property
    def held(self) -> bool:
        return self._held is not None

    @property
    def described(self) -> PipelineReady | None:
        return self._known if self.held else self.ready

    def pids(self) -> set[int]:
        """The application's too, once nothing speaks against its pause: it holds no session during the capture."""
        found = super().pids()
        if self._held is not None:
            found.add(self._held.pid)
        if self._application is not None and not self.cannot_pause:
            found.add(self._application.pid)
        return found

    async def pause(self) -> None:
        """Let the application close its session. Returns when it has said so. Raises Refused, and then it goes on.

        One that waits at its start has none.
        """
        if self.held:
            return
        if self.cannot_pause:
            raise Refused(Refusal.OTHER_CLIENT, self.cannot_pause)
        self._pause_wanted = asyncio.get_running_loop().create_future()
        self._wake.set()
        refused = await self._pause_wanted
        if refused:
            raise Refused(Refusal.OTHER_CLIENT, refused)

    def resume(self) -> None:
        self._resume_wanted = True
        self._wake.set()

    # --- the worker ---

    async def run(self) -> None:
        limits, runtime = self._supervision, self._runtime
        backoff = Backoff(limits.restart_first, limits.restart_most, limits.healthy)
        while True:
            self._starts += 1
            worker: Worker[TapEvent] = await Worker.start(
                "pipeline",
                "tidegauge.tap.worker",
                TapEvent,
                {},
                self._logs,
                leave=runtime.stop_timeout,
                terminate=runtime.kill_timeout,
            )
            self._pid = worker.pid
            backoff.started(monotonic())
            try:
                await self._served(worker)
            except WorkerEnded as error:
                error.refuse_start(self._starts, INCURABLE)
                log.warning("tap: %s", error, extra=WORKER_ENDED.of(worker="tap", reason=error.kind))
                self._metrics.restarts.labels(self._metrics.model, error.kind).inc()
                self._lose(str(error))
            finally:
                await worker.stop(at_once=True)
                self._pid = None
            await asyncio.sleep(backoff.delay(monotonic()))

    async def _served(self, worker: Worker[TapEvent]) -> None:
        await worker.send(StartTap(self._profile, self._tap_socket, SAMPLE_SLOTS, self.generation))
        self._hold_told = False
        tasks = [asyncio.create_task(self._listen(worker)), asyncio.create_task(self._drive(worker))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises WorkerEnded
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._held = None
            self._end_waiting("the tap's worker went down")

    async def _listen(self, worker: Worker[TapEvent]) -> None:
        while True:
            event, fd = await worker.receive()
            if isinstance(event, Attached) and fd is not None:
                self._attach(event, fd)
            elif isinstance(event, Detached):
                self._lose(event.sentence)
            elif isinstance(event, Held):
                self._begin_held(event)
            elif isinstance(event, TapAnswer) and self._answer is not None and not self._answer.done():
                self._answer.set_result(event)

    def _attach(self, event: Attached, fd: int) -> None:
        self._forget_generation()
        self._application, self.ready, self._known = event, event.ready, event.ready
        self._held = None  # one that would wait no longer
        self.ring = Ring(event.ready.ring, fd)
        self.generation = event.ready.generation
        self._closed = False
        self._proven()
        lacks = "" if event.runs and event.pauses else "; it takes no part in golden tests or captures"
        said = APPLICATION_UP.of(application=event.name, application_pid=event.pid)
        log.info("tap: %s, pid %d, has an open session%s", event.name, event.pid, lacks, extra=said)
        self.camera.came(self.generation, f"frames of {event.name}, pid {event.pid}")
        self._bus.emit(PipelineUp(event.ready))
        self._wake.set()

    def _begin_held(self, event: Held) -> None:
        self._held, self._hold = event, False
        self._enter("paused", 0.0)
        if refused := self.on_held(event.seconds):
            log.warning("tap: no capture at the start of %s, pid %d: %s", event.name, event.pid, refused)
            self.resume()
        else:
            log.info("tap: %s, pid %d, waits with its session for a capture", event.name, event.pid)

    def _lose(self, sentence: str) -> None:
        self._application = None
        self._forget_generation()
        self._enter("waiting", 0.0)
        self.camera.gone(sentence)

    def _end_waiting(self, why: str) -> None:
        if self._pause_wanted is not None and not self._pause_wanted.done():
            self._pause_wanted.set_result(why)
        self._pause_wanted = None

    # --- one command at a time ---

    async def _drive(self, worker: Worker[TapEvent]) -> None:
        due = monotonic()
        while True:
            self._wake.clear()
            if self._pause_wanted is not None:
                await self._paused(worker)
            elif self._resume_wanted:
                self._resume_wanted = False
                await worker.send(Resume())
                if self._closed or self._held is not None:
                    self._enter("waiting", 0.0)
                self._held = None
            elif self._hold and not self._hold_told:
                self._hold_told = True
                await worker.send(HoldNext())
            elif self.ready is None or self._closed:
                await self._wake.wait()
            elif self._requests:
                await self._run_tensor(worker)
            elif (left := due - monotonic()) <= 0:
                # The clock's own type is of its readings; mypy takes the sum for a bare float.
                due = monotonic() + self.camera.period  # type: ignore[assignment]
                await self._take_frame(worker)
            else:
                await self._woken_or(left)

    async def _woken_or(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return  # the next frame is due

    async def _asked(self, worker: Worker[TapEvent], command: msgspec.Struct, seconds: float) -> TapAnswer:
        answer: asyncio.Future[TapAnswer] = asyncio.get_running_loop().create_future()
        self._answer = answer
        await worker.send(command)
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                return await answer
        except TimeoutError as error:
            raise WorkerEnded("hung", f"the tap's worker gave no answer in {seconds + GRACE_SECONDS:g} s") from error

    async def _take_frame(self, worker: Worker[TapEvent]) -> None:
        self._frame_id += 1
        said = doubts(self._store.state.alarms)
        patience = self.camera.patience
        command = TakeFrame(self._frame_id, patience, self.choose_sample(), said)
        taken = await self._asked(worker, command, patience)
        if isinstance(taken, FrameMissed):
            self._bus.emit(SampleLost(taken.sample_slot))
            if self.ready is not None:
                self._enter("waiting", 0.0)
                self.camera.gone(f"the application has handed over no frame for {patience:g} s")
        elif isinstance(taken, FrameTaken):
            if self.stage.name != "running":
                self._enter("running", self._runtime.run_timeout)
            self._metrics.inferences.labels(self._metrics.model).inc(max(0, taken.frames - 1))  # `_account` counts one
            self.camera.delivered(taken)
            self._account(taken.done)
            self._bus.emit(FrameProcessed(taken.done))

    async def _run_tensor(self, worker: Worker[TapEvent]) -> None:
        request = self._requests.popleft()
        seconds = self._runtime.run_timeout + LOOP_SECONDS
        try:
            tensor = RunTensor(self._frame_id, request.path, request.sample_slot)
            done = await self._asked(worker, RunAsked(tensor, seconds), seconds)
        except WorkerEnded as error:
            if not request.answer.done():
                request.answer.set_exception(PipelineUnavailable(str(error)))
            raise
        if request.answer.done():
            return
        if isinstance(done, TensorDone):
            self._progressed()
            request.answer.set_result(done)
        else:
            sentence = done.sentence if isinstance(done, TensorMissed) else "the tap's worker answered out of turn"
            request.answer.set_exception(PipelineUnavailable(sentence))

    async def _paused(self, worker: Worker[TapEvent]) -> None:
        wanted, self._pause_wanted = self._pause_wanted, None
        answer = await self._asked_to_pause(worker, wanted)
        if wanted is None or wanted.done():
            return
        if isinstance(answer, Paused):
            self._closed = True
            self._forget_generation()
            self._enter("paused", 0.0)
            self._metrics.restarts.labels(self._metrics.model, "capture").inc()
            wanted.set_result("")
        else:
            wanted.set_result(answer.sentence if isinstance(answer, NotPaused) else "the tap answered out of turn")

    async def _asked_to_pause(self, worker: Worker[TapEvent], wanted: asyncio.Future[str] | None) -> TapAnswer:
        try:
            return await self._asked(worker, Pause(self._closing, self._longest), self._closing)
        except WorkerEnded as error:
            if wanted is not None and not wanted.done():
                wanted.set_result(str(error))
            raise
