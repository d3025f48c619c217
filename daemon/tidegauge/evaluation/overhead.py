"""What the monitor costs the product, on this machine: frames a second and latency, against the bare loop.

The processes are the product's own: the pipeline worker, the shadow worker, their rings and channels. The device is a
wait. All of it stands ready while one of the loops runs at a time, in turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from tidegauge.camera.folder import list_pictures, load_picture
from tidegauge.camera.synthetic import Clip
from tidegauge.clocks import Monotonic
from tidegauge.demo.settings import HEIGHT, MODEL, PHOTOS, WIDTH, profile
from tidegauge.errors import TidegaugeError
from tidegauge.evaluation import waiting_accelerator
from tidegauge.evaluation.bare_loop import BareEvent, Loop, LoopDone, LoopReady
from tidegauge.evaluation.product import Answers, Collect, Connected, ProductEvent, ReadAnswers
from tidegauge.pipeline.channel import AgentChannel, ChannelClosed
from tidegauge.pipeline.layout import Region, RingSpec
from tidegauge.pipeline.messages import (
    AttachFrames,
    AttachSamples,
    FrameDone,
    FrameRan,
    LossMeasured,
    MeasureSample,
    PipelineEvent,
    PipelineReady,
    RunFrame,
    SessionOpened,
    ShadowEvent,
    ShadowReady,
    StartPipeline,
    StartShadow,
    Stop,
)
from tidegauge.pipeline.preprocess import input_tensor
from tidegauge.pipeline.ring import Ring
from tidegauge.pipeline.spawn import spawn
from tidegauge.profile import Profile
from tidegauge.shadow.budget import CpuBudget
from tidegauge.tensors import TensorSpec
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.options import CompileOptions

Loops = Literal["bare loop", "bare loop again", "statistics only", "whole monitor"]
LOOPS: tuple[Loops, ...] = ("bare loop", "bare loop again", "statistics only", "whole monitor")
SLOTS, SAMPLE_SLOTS = 4, 2
#: The agent's defaults: share of a core, over a window that is shorter here so that it is in balance at once.
CPU_SHARE, CPU_WINDOW = 0.05, 20.0
START_SECONDS, RUN_SECONDS = 300.0, 60.0
#: Seconds that a sample has to end before the next loop begins; and at all, on a machine that is never idle.
PATIENCE, IDLE_SECONDS = 2.0, 3600.0
PRODUCT = "tidegauge.evaluation.product"
#: Frames of a measurement that are not counted.
WARM = 5


class Size(msgspec.Struct, frozen=True):
    """`rounds`, in each of which every loop runs `frames` frames; `device` seconds of a run."""

    rounds: int = 20
    frames: int = 150
    device: float = 1 / 30


class Run(NamedTuple):
    """Answers a second, and latencies of each from the picture to the client, seconds."""

    rate: float
    latencies: tuple[float, ...]

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.latencies, share))


class Measured(NamedTuple):
    """Runs of each loop, round by round. `samples`: measured in all; `shadow_cpu`: share of one core while it ran."""

    runs: dict[Loops, list[Run]]
    samples: int
    shadow_cpu: float


class _Worker:
    """A worker process with its channel; every answer has a deadline."""

    def __init__(self, process: asyncio.subprocess.Process, channel: AgentChannel[Any], log: Path) -> None:
        self._process, self.channel, self._log = process, channel, log

    async def ask(self, kind: type[Any], seconds: float = RUN_SECONDS) -> tuple[Any, int | None]:
        """The next message, which must be of this kind."""
        try:
            async with asyncio.timeout(seconds):
                message, fd = await self.channel.receive()
                while isinstance(message, SessionOpened):
                    message, fd = await self.channel.receive()
        except (ChannelClosed, TimeoutError) as error:
            raise TidegaugeError(f"a worker gave no answer; {self._said()}", "see its log above") from error
        if not isinstance(message, kind):
            raise TidegaugeError(f"a worker answered {message}; {self._said()}", "see its log above")
        return message, fd

    def _said(self) -> str:
        return f"its log ends: {self._log.read_text()[-500:]}"

    async def stop(self) -> None:
        with contextlib.suppress(ChannelClosed):  # it has left already
            await self.channel.send(Stop())
        try:
            await asyncio.wait_for(self._process.wait(), 10.0)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        self.channel.close()


@contextlib.asynccontextmanager
async def _worker(module: str, events: Any, folder: Path, device: float) -> AsyncIterator[_Worker]:
    log = folder / f"{module}.log"
    environment = {waiting_accelerator.SECONDS: repr(device)}
    process, channel = await spawn(module, events, environment=environment, log=log)
    worker = _Worker(process, channel, log)
    try:
        yield worker
    finally:
        await worker.stop()


def prepare(folder: Path) -> tuple[Profile, list[Any]]:
    """The demo's enhancer with artifacts, and pictures of its clip."""
    shown = profile(folder)
    clip = Clip([load_picture(path) for path in list_pictures(PHOTOS)], 2 * WIDTH, 2 * HEIGHT, 1)
    pictures = [clip.frame(number * 30) for number in range(SLOTS)]
    frames = [{"input": input_tensor(picture, shown.preprocess)} for picture in pictures]
    compile_model(MODEL, folder / "artifacts", frames, CompileOptions(calibration_frames=len(frames)))
    paths = {"model": str(MODEL), "artifacts": str(folder / "artifacts")}
    return msgspec.structs.replace(shown, **paths), pictures


def measure(size: Size, progress: Callable[[str], None] = lambda text: None) -> Measured:
    """Raises TidegaugeError where a worker fails."""
    with tempfile.TemporaryDirectory(prefix="tidegauge-bench-") as folder:
        return asyncio.run(_measure(Path(folder), size, progress))


async def _measure(folder: Path, size: Size, progress: Callable[[str], None]) -> Measured:
    shown, pictures = await asyncio.to_thread(prepare, folder)
    region = Region(TensorSpec("picture", pictures[0].shape, "uint8"), 0)
    frames = Ring.create(RingSpec(SLOTS, region.spec.nbytes), "tidegauge-bench")
    for slot, picture in enumerate(pictures):
        frames.array(slot, region)[...] = picture
    attach = AttachFrames(1, pictures[0].shape[1], pictures[0].shape[0], frames.spec)
    module = waiting_accelerator.__name__
    try:
        async with (
            _worker("tidegauge.evaluation.bare_loop", BareEvent, folder, size.device) as bare,
            _worker("tidegauge.pipeline.worker", PipelineEvent, folder, size.device) as pipeline,
            _worker("tidegauge.shadow.worker", ShadowEvent, folder, size.device) as shadow,
            _worker(PRODUCT, ProductEvent, folder, size.device) as of_bare,
            _worker(PRODUCT, ProductEvent, folder, size.device) as of_pipeline,
        ):
            sockets = {name: str(folder / f"{name}.socket") for name in ("bare", "pipeline")}
            await bare.channel.send(StartPipeline(1, shown, module, 0, sockets["bare"]))
            await bare.channel.send(attach, frames.fd)
            await bare.ask(LoopReady, START_SECONDS)
            await pipeline.channel.send(StartPipeline(1, shown, module, SAMPLE_SLOTS, sockets["pipeline"]))
            ready, fd = await pipeline.ask(PipelineReady, START_SECONDS)
            await pipeline.channel.send(attach, frames.fd)
            await shadow.channel.send(StartShadow(1, shown))
            await shadow.ask(ShadowReady, START_SECONDS)
            await shadow.channel.send(AttachSamples(1, ready.inputs, ready.outputs, ready.ring), fd)
            if fd is not None:
                os.close(fd)
            for product, name in ((of_bare, "bare"), (of_pipeline, "pipeline")):
                await product.channel.send(ReadAnswers(sockets[name]))
                await product.ask(Connected, START_SECONDS)
            return await _Bench(bare, pipeline, shadow, (of_bare, of_pipeline), size).run(progress)
    finally:
        frames.close()


class _Bench:
    """Everything is up; the loops take turns."""

    def __init__(
        self, bare: _Worker, pipeline: _Worker, shadow: _Worker, products: tuple[_Worker, _Worker], size: Size
    ) -> None:
        self._bare, self._pipeline, self._shadow = bare, pipeline, shadow
        self._products, self._size = products, size
        self._budget = CpuBudget(CPU_SHARE, CPU_WINDOW)
        self._free = list(range(SAMPLE_SLOTS))
        self._sampling: asyncio.Task[None] | None = None
        self._samples, self._frame = 0, 0
        self._shadow_cpu = self._shadow_monitored = self._monitored = 0.0
        self._budget.charge(self._clock(0.0), CPU_SHARE * CPU_WINDOW)  # in balance from the start, not with savings

    async def run(self, progress: Callable[[str], None]) -> Measured:
        runs: dict[Loops, list[Run]] = {name: [] for name in LOOPS}
        rng = np.random.default_rng(0)
        for number in range(self._size.rounds):
            for index in rng.permutation(len(LOOPS)):  # no loop always follows the same other one
                name = LOOPS[index]
                runs[name].append(await self._run(name))
            progress(f"round {number + 1} of {self._size.rounds}: done")
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.wait([self._sampling])
        share = self._shadow_monitored / self._monitored if self._monitored else 0.0
        return Measured(runs, self._samples, share)

    async def _run(self, name: Loops) -> Run:
        product = self._products[0 if name.startswith("bare") else 1]
        await self._answers(product)
        if name.startswith("bare"):
            await self._bare.channel.send(Loop(self._size.frames))
            await self._bare.ask(LoopDone)
        else:
            await self._through_worker(sampled=name == "whole monitor")
        await asyncio.sleep(0.05)  # let the last answer arrive
        came = (await self._answers(product))[WARM:]
        if len(came) < self._size.frames / 2:
            raise TidegaugeError(f"{len(came)} of {self._size.frames} answers came", "let the machine have more rest")
        rate = (len(came) - 1) / (came[-1][0] - came[0][0])
        return Run(rate, tuple(latency for _, latency in came))

    @staticmethod
    async def _answers(product: _Worker) -> tuple[tuple[float, float], ...]:
        await product.channel.send(Collect())
        answers, _ = await product.ask(Answers)
        came: tuple[tuple[float, float], ...] = answers.came
        return came

    def _clock(self, seconds: float) -> Monotonic:
        """The budget's time: that of the monitored loop only, which is to pay for it out of its own. `seconds`: of the
        run under way."""
        return Monotonic(self._monitored + seconds)

    async def _through_worker(self, *, sampled: bool) -> None:
        started, spent = time.monotonic(), self._shadow_cpu
        slot = await self._send_frame(0, sampled=False, started=started)
        for number in range(1, self._size.frames + 1):
            await self._pipeline.ask(FrameRan)
            done, slot = slot, -1
            if number < self._size.frames:
                slot = await self._send_frame(number, sampled=sampled and done < 0, started=started)
            await self._pipeline.ask(FrameDone)
            if done >= 0:
                self._sampling = asyncio.create_task(self._sample(done))
            if self._sampling is not None:
                await self._sampled(0.0)
        await self._sampled(PATIENCE if sampled else 0.0)
        if sampled:
            self._monitored += time.monotonic() - started
            self._shadow_monitored += self._shadow_cpu - spent

    async def _send_frame(self, number: int, *, sampled: bool, started: float) -> int:
        """As the agent does it: whether it becomes a sample is decided before it is run. The sample's slot, or -1."""
        now = self._clock(time.monotonic() - started)
        wanted = sampled and self._free and self._sampling is None and self._budget.allows(now)
        slot = self._free.pop() if wanted else -1
        self._frame += 1
        await self._pipeline.channel.send(RunFrame(self._frame, 1, number % SLOTS, time.monotonic(), slot))
        return slot

    async def _sampled(self, seconds: float) -> None:
        """Take the sample under way, if it is done by then. The shadow worker gets idle time only: it may be long."""
        if self._sampling is None:
            return
        await asyncio.wait([self._sampling], timeout=seconds)
        if self._sampling.done():
            self._sampling.result()
            self._sampling = None

    async def _sample(self, slot: int) -> None:
        await self._shadow.channel.send(MeasureSample(self._frame, slot, 1, self._frame))
        measured, _ = await self._shadow.ask(LossMeasured, IDLE_SECONDS)
        self._budget.charge(self._clock(0.0), measured.cpu_seconds)  # an earlier time than now refills nothing
        self._shadow_cpu += measured.cpu_seconds
        self._samples += 1
        self._free.append(slot)
