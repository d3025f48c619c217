"""The tap's worker: in the place of the pipeline worker where an application runs the model itself.

Started by the agent as `python -m tidegauge.tap.worker`. It holds no session: it listens for the application, asks it
for a frame or for the run of a tensor, and makes of the answer what the pipeline worker makes of its own. One
application at a time; one command at a time.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from tidegauge.detectors import invariants
from tidegauge.detectors.sight import see
from tidegauge.pipeline.aside import Aside
from tidegauge.pipeline.channel import Channel
from tidegauge.pipeline.layout import RingSpec, sample_layout
from tidegauge.pipeline.messages import PipelineReady, RunFrame, Stop
from tidegauge.pipeline.process import (
    FailureKind,
    WorkerFault,
    first_command,
    protocol_fault,
    run_worker,
)
from tidegauge.pipeline.ring import Ring
from tidegauge.pipeline.worker import DeviceRun, PipelineWorker, check_profile
from tidegauge.tap.application import Application, ApplicationGone, Given
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
    TapCommand,
    TensorMissed,
)
from tidegauge.tap.picture import picture
from tidegauge.tap.wire import Kind

BACKLOG = 4
#: A command that the application answers.
Asked = TypeVar("Asked", TakeFrame, RunAsked)


class TappedFrames(PipelineWorker):
    """Makes of a frame that was handed over what its base makes of one that it has run."""

    def told(self, command: TakeFrame, generation: int, given: Given) -> FrameTaken:
        run = DeviceRun(given.seconds, given.outputs, self._statistics(given.outputs))
        broken = invariants.check(run.statistics)
        doubts = command.doubts if broken is None else (*command.doubts, broken.detector)
        frame = RunFrame(command.frame_id, generation, 0, given.captured, command.sample_slot)
        done = self._told(frame, given.inputs, run, doubts)
        pixels = picture(next(iter(given.inputs.values())), self._profile.preprocess)
        return FrameTaken(done, 0, 0, 0.0, None if pixels is None else see(pixels))


class TapWorker:
    """The listener, the application that is attached, and its session's ring."""

    def __init__(self, start: StartTap, channel: Channel[TapCommand], aside: Aside) -> None:
        self._start, self._channel, self._aside = start, channel, aside
        self._path = Path(start.socket)
        self._listener = listen(self._path)
        self._application: Application | None = None
        self._frames: TappedFrames | None = None
        self._samples: Ring | None = None
        self._generation = start.generation
        self._paused = self._hold_next = False

    def serve(self) -> None:
        """Until `Stop`, or until the agent has gone (ChannelClosed)."""
        while True:
            poll = select.poll()
            watched = [self._channel.fileno(), self._listener.fileno()]
            if self._application is not None:
                watched.append(self._application.socket.fileno())
            for fd in watched:
                poll.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll()}
            if self._listener.fileno() in ready:
                self._accept()
            if self._application is not None and self._application.socket.fileno() in ready:
                self._hear(self._application)
            if self._channel.fileno() in ready:
                command, beside = self._channel.receive()
                if beside is not None:
                    os.close(beside)
                if isinstance(command, Stop):
                    return
                self._do(command)

    def close(self) -> None:
        self._drop()
        self._listener.close()
        self._path.unlink(missing_ok=True)

    # --- the application ---

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        other = Application(sock)
        if self._application is None:
            self._application = other
            return
        text = f"another application, pid {self._application.pid}, hands over frames of this model"
        print(f"pid {other.pid} is refused: {text}", file=sys.stderr)
        self._refuse(other, text)

    @staticmethod
    def _refuse(application: Application, text: str) -> None:
        try:
            application.send(Kind.REFUSED, text=text)
        except ApplicationGone as gone:
            print(gone, file=sys.stderr)
        application.close()

    def _hear(self, application: Application) -> None:
        try:
            while (said := application.receive()) is not None:
                if said[0] is Kind.HELLO:
                    self._greeted(application, said[2])
                elif said[0] is Kind.OPENED:
                    self._attach(application)
                elif said[0] is Kind.CLOSED and self._frames is not None:
                    self._detach(f"the application {application.name} has closed its session")
        except ApplicationGone as gone:
            self._lose(str(gone))

    def _greeted(self, application: Application, waiting: float) -> None:
        """It may open a session, if it waits for that word: unless a capture is under way, or is to be taken first."""
        if self._hold_next and not self._paused and application.waits and waiting > 0:
            self._detach(f"the application {application.name} has closed its session")
            self._paused, self._hold_next = True, False
            self._channel.send(Held(application.pid, application.name, waiting))
        if not self._paused:
            application.send(Kind.OPEN)

    def _attach(self, application: Application) -> None:
        self._detach("")
        try:
            check_profile(self._start.profile, application)
        except WorkerFault as fault:
            self._application = None
            self._refuse(application, fault.problem)
            self._channel.send(Detached(f"the application {application.name} is refused: {fault.problem}"))
            return
        ring = RingSpec(self._start.sample_slots, sample_layout(application.inputs, application.outputs).nbytes)
        try:
            self._samples = Ring.create(ring, "tidegauge-samples")
        except (OSError, ValueError) as error:
            raise WorkerFault(
                FailureKind.SHARED_MEMORY, f"no shared memory of {ring.nbytes} bytes for shadow samples ({error})"
            ) from error
        self._frames = TappedFrames(self._start.profile, application, self._samples, None, self._aside)
        self._generation += 1
        assert application.shared is not None
        ready = PipelineReady(
            generation=self._generation,
            inputs=application.inputs,
            outputs=application.outputs,
            ring=ring,
            offload=application.offload(),
            runtime=application.shared.session.runtime or "tap",
            libraries={},
        )
        attached = Attached(
            ready, application.pid, application.name, application.runs, application.pauses, application.waits
        )
        self._channel.send(attached, self._samples.fd)

    def _detach(self, sentence: str) -> None:
        """The session is over; the agent is told where there is a sentence."""
        if self._frames is not None and sentence:
            self._channel.send(Detached(sentence))
        self._frames = None
        if self._samples is not None:
            self._samples.close()
            self._samples = None

    def _lose(self, sentence: str) -> None:
        self._detach(sentence)
        self._drop()

    def _drop(self) -> None:
        self._detach("")
        if self._application is not None:
            self._application.close()
            self._application = None

    # --- the agent's commands ---

    def _do(self, command: TapCommand) -> None:
        match command:
            case TakeFrame():
                self._answer(command, self._take, FrameMissed(command.sample_slot))
            case RunAsked():
                missed = TensorMissed(command.tensor.request, "the application has gone")
                self._answer(command, self._run, missed)
            case Pause():
                self._pause(command)
            case HoldNext():
                self._hold_next = True
            case Resume():
                self._resume()
            case _:
                raise protocol_fault(f"{type(command).__name__} came to a tap that runs")

    def _answer(
        self,
        command: Asked,
        do: Callable[[Asked, Application, TappedFrames], msgspec.Struct | None],
        missed: FrameMissed | TensorMissed,
    ) -> None:
        """Do it and answer; where the application goes meanwhile, say both."""
        gone = ""
        answer: msgspec.Struct = missed
        try:
            if self._application is not None and self._frames is not None:
                answer = do(command, self._application, self._frames) or missed
        except ApplicationGone as error:
            gone = str(error)
        self._channel.send(answer)
        if gone:
            self._lose(gone)
        elif self._application is not None and self._frames is not None and self._application.shared is None:
            self._detach(f"the application {self._application.name} has closed its session")

    def _take(self, command: TakeFrame, application: Application, frames: TappedFrames) -> FrameTaken | None:
        given = application.take(command.seconds)
        if given is None:
            return None
        told = frames.told(command, self._generation, given)
        ran, dropped, seconds = application.counted()
        return msgspec.structs.replace(told, frames=ran, dropped=dropped, seconds=seconds)

    def _run(self, command: RunAsked, application: Application, frames: TappedFrames) -> msgspec.Struct:
        application.run_seconds = command.seconds
        try:
            return frames.run_tensor(command.tensor)
        except WorkerFault as fault:
            if fault.kind is not FailureKind.DEVICE_ERROR:
                raise
            return TensorMissed(command.tensor.request, str(fault))

    def _pause(self, command: Pause) -> None:
        """The session closed, seen by the application's own word; else it is told to go on."""
        self._paused = True
        application, sentence = self._application, ""
        if application is not None and application.shared is not None:
            try:
                if not application.pauses:
                    sentence = f"the application {application.name} can't close its session for a capture"
                elif not application.pause(command.seconds, command.longest):
                    sentence = f"the application {application.name} has not closed its session in {command.seconds:g} s"
            except ApplicationGone as gone:
                print(gone, file=sys.stderr)  # and its session with it: a process's end closes what it held
                self._drop()
        self._channel.send(NotPaused(sentence) if sentence else Paused())
        if sentence:
            self._resume()
        else:
            self._detach("")

    def _resume(self) -> None:
        self._paused = False
        if self._application is None:
            return
        try:
            self._application.send(Kind.OPEN)
        except ApplicationGone as gone:
            self._lose(str(gone))


def listen(path: Path) -> socket.socket:
    """A listening socket at `path`, mode 0660; a file left by a killed predecessor is replaced. Raises WorkerFault."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mask = os.umask(0o117)
    try:
        if path.exists() and stat.S_ISSOCK(path.lstat().st_mode) and _abandoned(path):
            path.unlink()
        sock.bind(str(path))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise WorkerFault(
            FailureKind.OPEN_FAILED,
            f"the tap's socket {path} (key `camera.source`) can't be made ({error.strerror or error})",
            "give a short path (under 108 bytes) that nobody else uses, in a folder that the agent may write to",
        ) from error
    finally:
        os.umask(mask)
    return sock


def _abandoned(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED


def body(channel: Channel[TapCommand]) -> None:
    start: StartTap = first_command(channel, StartTap)
    with Aside(failed=channel.leave) as aside:
        worker = TapWorker(start, channel, aside)
        try:
            worker.serve()
        finally:
            worker.close()


def main() -> int:
    return run_worker(TapCommand, body)


if __name__ == "__main__":
    sys.exit(main())
