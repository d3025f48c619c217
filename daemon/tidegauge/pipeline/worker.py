"""The pipeline worker: frame → input tensor → device run → answer. One process, one model, one device session.

Started by the agent as `python -m tidegauge.pipeline.worker`. It takes one command at a time and answers each in turn,
so the agent always knows which run is on the accelerator, and for how long.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from tidegauge.clocks import monotonic
from tidegauge.detectors import invariants
from tidegauge.losses.output_stats import output_stats
from tidegauge.losses.select import outputs_summary
from tidegauge.pipeline.aside import Aside
from tidegauge.pipeline.channel import Channel
from tidegauge.pipeline.layout import Region, RingSpec, sample_layout
from tidegauge.pipeline.messages import (
    AttachFrames,
    FrameDone,
    FrameRan,
    FrameSkipped,
    OutputStats,
    PipelineCommand,
    PipelineReady,
    RunFrame,
    RunTensor,
    SessionOpened,
    StartPipeline,
    Stop,
    TensorDone,
)
from tidegauge.pipeline.preprocess import check_preprocess, input_tensor
from tidegauge.pipeline.process import (
    FailureKind,
    WorkerFault,
    check_output_name,
    failing_as,
    first_command,
    output_digest,
    protocol_fault,
    read_tensors,
    run_worker,
)
from tidegauge.pipeline.results import ResultServer
from tidegauge.pipeline.ring import Ring, SlotError
from tidegauge.pipeline.sessions import device_session, proven_offload, timed_run
from tidegauge.profile import Profile
from tidegauge.runtimes.checks import random_tensor
from tidegauge.runtimes.factory import libraries
from tidegauge.runtimes.session import Array, Session
from tidegauge.tensors import TensorSpec

#: The first call allocates OpenVX mappings (`firstProcessCall` in TI's tidl_rt_ovx.c, SDK 11.1); TI gives no figure.
WARM_UP_RUNS = 3
#: Seconds that the next frame may be on its way once the accelerator is free: a few times what a loaded board takes.
HAND_OVER = 0.003
#: Kinds of outputs that a healthy network never answers with zeros only.
NEVER_ZERO = frozenset({"image", "depth", "embedding", "classification"})


class DeviceRun(msgspec.Struct, frozen=True):
    """What one run gave: outputs in the session's order, and what shows whether they can be right."""

    seconds: float
    outputs: list[Array]
    statistics: tuple[OutputStats, ...]


class PipelineWorker:
    """The state of one generation: session, sample ring, the attached camera's ring, the results socket."""

    def __init__(
        self, profile: Profile, session: Session, samples: Ring, results: ResultServer | None, aside: Aside
    ) -> None:
        self._profile = profile
        self._session = session
        self._samples = samples
        self._results = results
        self._aside = aside
        self._layout = sample_layout(session.inputs, session.outputs)
        self._frames: Ring | None = None
        self._camera_generation = -1
        self._picture = Region(TensorSpec("picture", (0, 0, 3), "uint8"), 0)
        self._names = [spec.name for spec in session.outputs]

    def attach(self, command: AttachFrames, fd: int | None) -> None:
        """Map a camera's frame ring, in place of the one before."""
        if fd is None:
            raise protocol_fault("AttachFrames came without a descriptor")
        self.detach()
        region = Region(TensorSpec("picture", (command.height, command.width, 3), "uint8"), 0)
        try:
            self._frames = Ring(command.ring, fd)
        except (OSError, ValueError) as error:
            raise WorkerFault(FailureKind.SHARED_MEMORY, f"the frame ring can't be mapped ({error})") from error
        if region.spec.nbytes > command.ring.slot_bytes:
            raise protocol_fault(f"a picture of {region.spec.nbytes} bytes in slots of {command.ring.slot_bytes}")
        self._picture = region
        self._camera_generation = command.generation

    def detach(self) -> None:
        if self._frames is not None:
            self._frames.close()
        self._frames = None
        self._camera_generation = -1

    def run_frame(self, command: RunFrame, send: Callable[[msgspec.Struct], None]) -> None:
        """Run it, say that the accelerator is free, and hand the judged answer to the product while the next frame is
        on its way. Whatever else is made of the answer is put aside for the time of the next run.

        `FrameRan` and `FrameDone` of a frame are sent before those of the next one. Of a `quiet` frame nothing is put
        aside, and only `FrameDone` is sent: each message wakes the agent.
        """
        if self._frames is None or command.camera_generation != self._camera_generation:
            # Its ring is unmapped already: there is no picture left to run, and no answer is made up for it.
            self._aside.finish()
            send(FrameSkipped(command.frame_id, command.camera_generation, command.slot, command.sample_slot))
            return
        with _in_slot(command):
            picture = self._frames.array(command.slot, self._picture)
        tensors = {self._session.inputs[0].name: input_tensor(picture, self._profile.preprocess)}
        self._aside.begin()
        seconds, outputs = timed_run(self._session, tensors)
        self._aside.finish()
        if not command.quiet:
            send(FrameRan(command.frame_id))
        run = DeviceRun(seconds, outputs, self._statistics(outputs))
        broken = invariants.check(run.statistics)
        doubts = command.doubts if broken is None else (*command.doubts, broken.detector)
        if self._results is not None:
            named = list(zip(self._session.outputs, outputs, strict=True))
            self._results.publish(command.frame_id, command.captured, named, doubts)
        self._aside.put(lambda: send(self._told(command, tensors, run, doubts)))
        if command.quiet:
            self._aside.finish()

    def _told(self, command: RunFrame, tensors: dict[str, Array], run: DeviceRun, doubts: tuple[str, ...]) -> FrameDone:
        """Keep it as a sample, and tell the agent what came out."""
        self._keep(command, tensors, run)
        return FrameDone(
            frame_id=command.frame_id,
            camera_generation=command.camera_generation,
            slot=command.slot,
            captured=command.captured,
            told=monotonic(),
            device_seconds=run.seconds,
            digest=output_digest(run.outputs),
            outputs=run.statistics,
            summary=self._summary(run),
            sample_slot=command.sample_slot,
            doubts=doubts,
        )

    def _summary(self, run: DeviceRun) -> dict[str, float]:
        watched = next(each for each in run.statistics if each.name == self._profile.output.name)
        return outputs_summary(self._profile.output, dict(zip(self._names, run.outputs, strict=True)), watched)

    def run_tensor(self, command: RunTensor) -> TensorDone:
        tensors = read_tensors(Path(command.path), self._session.inputs)
        seconds, outputs = timed_run(self._session, tensors)
        run = DeviceRun(seconds, outputs, self._statistics(outputs))
        self._keep(command, tensors, run)
        return TensorDone(command.request, seconds, output_digest(outputs), run.statistics, command.sample_slot)

    def _statistics(self, outputs: list[Array]) -> tuple[OutputStats, ...]:
        watched = self._profile.output
        statistics = []
        for spec, array in zip(self._session.outputs, outputs, strict=True):
            # The profile tells the range of its own output only; others have no end to stick at.
            low, high = (watched.low, watched.high) if spec.name == watched.name else (-np.inf, np.inf)
            statistics.append(output_stats(spec.name, array, low, high))
        return tuple(statistics)

    def _keep(self, command: RunFrame | RunTensor, tensors: dict[str, Array], run: DeviceRun) -> None:
        """Copy a shadow sample into its slot."""
        slot = command.sample_slot
        if slot < 0:
            return
        with _in_slot(command):
            for region in self._layout.inputs:
                np.copyto(self._samples.array(slot, region), tensors[region.spec.name], casting="no")
            for region, array in zip(self._layout.device, run.outputs, strict=True):
                np.copyto(self._samples.array(slot, region), array, casting="no")


def check_profile(profile: Profile, session: Session) -> None:
    """Raise WorkerFault unless the profile's picture and output are the model's."""
    preprocess, inputs = profile.preprocess, session.inputs
    with failing_as(FailureKind.PROFILE_MISMATCH):
        check_preprocess(preprocess)
    if len(inputs) != 1:
        names = ", ".join(spec.name for spec in inputs)
        raise WorkerFault(
            FailureKind.PROFILE_MISMATCH,
            f"model {profile.name} has {len(inputs)} inputs ({names}), and a frame makes one",
            "deploy a model with one picture as its input",
        )
    size = (preprocess.height, preprocess.width)
    shape = (1, 3, *size) if preprocess.layout == "NCHW" else (1, *size, 3)
    if (inputs[0].shape, inputs[0].dtype) != (shape, preprocess.dtype):
        raise WorkerFault(
            FailureKind.PROFILE_MISMATCH,
            f"profile {profile.name}: [preprocess] makes {preprocess.dtype} {list(shape)}, but the model's input "
            f"{inputs[0].name} is {inputs[0].dtype} {list(inputs[0].shape)}",
            "set width, height, layout and dtype of [preprocess] as at compile time",
        )
    check_output_name(profile, session.outputs)


def warm_up(profile: Profile, session: Session) -> None:
    """Let the runtime allocate, by runs on a grey picture: they are no measure of latency.

    Raises WorkerFault, also where the watched output isn't of the profile's kind.
    """
    grey = np.full((profile.preprocess.height, profile.preprocess.width, 3), 128, np.uint8)
    for _ in range(WARM_UP_RUNS):
        _, outputs = timed_run(session, {session.inputs[0].name: input_tensor(grey, profile.preprocess)})
    named = {spec.name: array for spec, array in zip(session.outputs, outputs, strict=True)}
    with failing_as(FailureKind.PROFILE_MISMATCH):
        outputs_summary(profile.output, named)


def refuse_zeros(profile: Profile, session: Session) -> None:
    """Raise WorkerFault where the watched output is zero everywhere, also for a random input.

    A failed create that a layer above took for a success answers so (tfl_delegate.cpp, SDK 11.1). Kinds that may answer
    a random input with nothing but zeros, such as no detections, are left to the acceptance.
    """
    if profile.output.kind not in NEVER_ZERO:
        return
    _, outputs = timed_run(session, {spec.name: random_tensor(spec) for spec in session.inputs})
    watched = next(a for spec, a in zip(session.outputs, outputs, strict=True) if spec.name == profile.output.name)
    if not np.any(watched):
        raise WorkerFault(
            FailureKind.NOT_OFFLOADED,
            f"the accelerator did not compute: {profile.output.name} is zero everywhere, also for a random input",
            "read the worker's log and the remote log for the create that failed; each further try leaks C7x memory",
        )


def body(channel: Channel[PipelineCommand]) -> None:
    start: StartPipeline = first_command(channel, StartPipeline)
    with device_session(start.profile, start.module, 0) as session:
        check_profile(start.profile, session)
        channel.send(SessionOpened())
        warm_up(start.profile, session)
        offload = proven_offload(session)
        refuse_zeros(start.profile, session)
        ring = RingSpec(start.sample_slots, sample_layout(session.inputs, session.outputs).nbytes)
        try:
            samples = Ring.create(ring, "tidegauge-samples")
        except (OSError, ValueError) as error:
            raise WorkerFault(
                FailureKind.SHARED_MEMORY,
                f"no shared memory of {ring.nbytes} bytes for {ring.slots} shadow samples ({error})",
                "free memory on the board",
            ) from error
        results = ResultServer(Path(start.results_socket)) if start.results_socket else None
        aside = Aside(failed=channel.leave)
        worker = PipelineWorker(start.profile, session, samples, results, aside)
        try:
            ready = PipelineReady(
                generation=start.generation,
                inputs=session.inputs,
                outputs=session.outputs,
                ring=ring,
                offload=offload,
                runtime=session.kind,
                libraries=libraries(),
            )
            channel.send(ready, samples.fd)
            with aside:
                serve(channel, worker, aside)
        finally:
            if results is not None:
                results.close()
            worker.detach()
            samples.close()


def serve(channel: Channel[PipelineCommand], worker: PipelineWorker, aside: Aside) -> None:
    """Answer one command after another until `Stop`."""
    while True:
        command, fd = _next_command(channel, aside)
        if not isinstance(command, RunFrame):
            aside.finish()
        match command:
            case Stop():
                return
            case AttachFrames():
                worker.attach(command, fd)
            case RunFrame():
                worker.run_frame(command, channel.send)
            case RunTensor():
                channel.send(worker.run_tensor(command))
            case StartPipeline():
                raise protocol_fault("StartPipeline came twice")


def _next_command(channel: Channel[PipelineCommand], aside: Aside) -> tuple[PipelineCommand, int | None]:
    """Where no frame is on its way, what was put aside does not wait for one."""
    if aside.waiting:
        try:
            return channel.receive(HAND_OVER)
        except TimeoutError:
            aside.finish()
    return channel.receive()


@contextmanager
def _in_slot(command: RunFrame | RunTensor) -> Iterator[None]:
    try:
        yield
    except SlotError as error:
        raise protocol_fault(f"{type(command).__name__}: {error}") from error


def main() -> int:
    return run_worker(PipelineCommand, body)


if __name__ == "__main__":
    sys.exit(main())
