"""The camera worker: `python -m tidegauge.camera.worker`, started by the agent with a socket.

Three threads. The *reader* opens the source, reads pictures into free slots of the frame ring and reports them; it may
block for ever in a driver or a network library. The *receiver* takes the agent's messages. The main thread keeps the
deadlines and decides when the process ends, which it does without waiting for the reader.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections import deque

import msgspec

from tidegauge.camera.faults import CameraFault
from tidegauge.camera.open import open_source
from tidegauge.camera.source import FrameSource, Picture
from tidegauge.clocks import Monotonic, monotonic
from tidegauge.detectors.sight import see
from tidegauge.errors import TidegaugeError
from tidegauge.pipeline.channel import BadMessage, Channel, ChannelClosed
from tidegauge.pipeline.layout import Region, RingSpec, align
from tidegauge.pipeline.messages import (
    CameraCommand,
    CameraEnded,
    CameraReady,
    Failed,
    FrameDropped,
    FrameReady,
    SlotFree,
    StartCamera,
    Stop,
)
from tidegauge.pipeline.process import Exit, prepare_signals
from tidegauge.pipeline.ring import Ring
from tidegauge.tensors import TensorSpec

#: Seconds between two reports of dropped frames.
DROP_REPORT = 1.0
#: Seconds between two pictures that are looked at for the camera's health: some milliseconds of CPU each.
LOOK_PERIOD = 1.0
#: The source's own open time-out comes first, so that its message, which knows more, is the one that is told.
OPEN_GRACE = 1.0
#: Seconds given to the reader to close the source before the process ends regardless.
CLOSE_GRACE = 0.5


class Opened(msgspec.Struct, frozen=True):
    """The reader has opened the source and the agent knows it."""


class Ended(msgspec.Struct, frozen=True):
    """The source has ended, and the agent knows it."""


class Gone(msgspec.Struct, frozen=True):
    """A thread has ended: `who` is "reader" or "receiver"; `closed`, because the agent has gone."""

    who: str
    closed: bool


Event = Opened | Ended | Gone | CameraFault | StartCamera | Stop


class Slots:
    """The free slots of the frame ring, shared by reader and receiver."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._free = deque(range(count))

    def take(self) -> int | None:
        with self._lock:
            return self._free.popleft() if self._free else None

    def give(self, slot: int) -> None:
        """Raises `CameraFault` for a slot that does not exist or is free already: two owners would tear pictures."""
        with self._lock:
            if not 0 <= slot < self._count or slot in self._free:
                raise CameraFault("protocol", f"the agent freed slot {slot} that it does not hold", "report this fault")
            self._free.append(slot)


class Reader:
    """Opens the source and hands its pictures over, in a thread of its own."""

    def __init__(self, start: StartCamera, channel: Channel[CameraCommand], events: queue.SimpleQueue[Event]) -> None:
        self.slots = Slots(start.slots)
        self.stopping = threading.Event()
        #: When the source last gave something; read by the main thread.
        self.progress: Monotonic = monotonic()
        self._start = start
        self._channel = channel
        self._events = events
        self._dropped = 0
        self._reported: Monotonic = monotonic()
        self._look_due = 0.0

    def run(self) -> None:
        closed = False
        try:
            self._stream()
        except CameraFault as fault:
            self._events.put(fault)
        except ChannelClosed:
            closed = True
        finally:
            self._events.put(Gone("reader", closed))

    def _stream(self) -> None:
        source = open_source(self._start.camera)
        try:
            ring, region = self._announce(source)
            while not self.stopping.is_set():
                picture = source.read()
                captured = monotonic()
                self.progress = captured
                if picture is None:
                    self._report_dropped(captured, at_once=True)
                    self._channel.send(CameraEnded())
                    self._events.put(Ended())
                    return
                self._deliver(ring, region, picture, captured)
        finally:
            source.close()

    def _announce(self, source: FrameSource) -> tuple[Ring, Region]:
        if source.width < 1 or source.height < 1:
            raise CameraFault(
                "open_failed", f"{source.description} tells no picture size", "check what the camera sends"
            )
        region = Region(TensorSpec("picture", (source.height, source.width, 3), "uint8"), 0)
        spec = RingSpec(self._start.slots, align(region.spec.nbytes))
        ring = Ring.create(spec, "tidegauge-frames")
        ready = CameraReady(self._start.generation, source.description, source.width, source.height, spec)
        self._channel.send(ready, fd=ring.fd)
        self.progress = monotonic()
        self._events.put(Opened())
        return ring, region

    def _deliver(self, ring: Ring, region: Region, picture: Picture, captured: Monotonic) -> None:
        if picture.pixels.shape != region.spec.shape:
            raise CameraFault(
                "size_changed",
                f"the picture's shape changed from {region.spec.shape} to {picture.pixels.shape}",
                "the camera is opened anew; fix its resolution if this repeats",
            )
        slot = self.slots.take()
        if slot is None:
            self._dropped += 1
        else:
            ring.array(slot, region)[...] = picture.pixels
            sight = None
            if captured >= self._look_due:
                self._look_due = captured + LOOK_PERIOD
                sight = see(picture.pixels)
            self._channel.send(FrameReady(slot, picture.sequence, captured, sight))
        self._report_dropped(captured)

    def _report_dropped(self, now: Monotonic, *, at_once: bool = False) -> None:
        if self._dropped and (at_once or now - self._reported >= DROP_REPORT):
            self._channel.send(FrameDropped(self._dropped))
            self._dropped = 0
            self._reported = now


class Receiver:
    """Takes the agent's messages, in a thread of its own."""

    def __init__(self, channel: Channel[CameraCommand], slots: Slots, events: queue.SimpleQueue[Event]) -> None:
        self._channel = channel
        self._slots = slots
        self._events = events

    def run(self) -> None:
        closed = False
        try:
            while True:
                message, fd = self._channel.receive()
                if fd is not None:
                    os.close(fd)
                if isinstance(message, SlotFree):
                    self._slots.give(message.slot)
                else:
                    self._events.put(message)
        except CameraFault as fault:
            self._events.put(fault)
        except BadMessage as error:
            self._events.put(bad_message(error))
        except ChannelClosed:
            closed = True
        finally:
            self._events.put(Gone("receiver", closed))


class Worker:
    """The main thread: deadlines, and the end."""

    def __init__(self, start: StartCamera, channel: Channel[CameraCommand]) -> None:
        self._config = start.camera
        self._channel = channel
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._reader = Reader(start, channel, self._events)
        self._receiver = Receiver(channel, self._reader.slots, self._events)
        self._opened = False
        self._ended = False
        self._thread = threading.Thread(target=self._reader.run, name="reader", daemon=True)

    def run(self) -> int:
        """Run until the end; returns the exit code."""
        self._thread.start()
        threading.Thread(target=self._receiver.run, name="receiver", daemon=True).start()
        try:
            self._loop()
        except CameraFault as fault:
            return fail(self._channel, fault)
        self._reader.stopping.set()
        self._thread.join(CLOSE_GRACE)
        return Exit.CLEAN

    def _loop(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=self._patience())
            except queue.Empty:
                self._check_deadline()
                continue
            match event:
                case CameraFault():
                    raise event
                case Opened():
                    self._opened = True
                case Ended():
                    self._ended = True
                case Gone(closed=True) | Stop():
                    return
                case Gone(who="reader") if self._ended:
                    pass
                case Gone(who=who):
                    raise CameraFault("crashed", f"the camera worker's {who} ended without a reason", "see its log")
                case StartCamera():
                    raise CameraFault("protocol", "the agent started a started camera", "report this fault")

    def _limit(self) -> float:
        return self._config.read_deadline if self._opened else self._config.open_timeout + OPEN_GRACE

    def _patience(self) -> float | None:
        """Seconds until the deadline; None where there is none."""
        if self._ended:
            return None
        return max(self._reader.progress + self._limit() - monotonic(), 0.0)

    def _check_deadline(self) -> None:
        if self._patience() != 0.0:
            return
        if self._opened:
            key, value, kind = "camera.read_timeout", self._config.read_timeout, "no picture came"
        else:
            key, value, kind = "camera.open_timeout", self._config.open_timeout, "the source did not open"
        raise CameraFault(
            "read_timeout" if self._opened else "open_timeout",
            f"{kind} within {key} = {value:g} s",
            f"check the camera's power and network, or raise {key}",
        )


def bad_message(error: BadMessage) -> CameraFault:
    return CameraFault("protocol", f"the agent's message is not understood ({error})", "restart the agent")


def fail(channel: Channel[CameraCommand], fault: CameraFault) -> int:
    """Tell the agent why this worker ends; returns the exit code."""
    try:
        channel.send(Failed(fault.kind, fault.problem, fault.cure))
    except ChannelClosed:
        print(f"camera worker: {fault}", file=sys.stderr)
    return Exit.FAILED


def first_message(channel: Channel[CameraCommand]) -> StartCamera:
    """What to open. Raises ChannelClosed on a `Stop` that came first, `CameraFault` for anything else."""
    try:
        message, _ = channel.receive()
    except BadMessage as error:
        raise bad_message(error) from error
    if isinstance(message, Stop):
        raise ChannelClosed
    if not isinstance(message, StartCamera) or message.slots < 1:
        raise CameraFault("protocol", f"expected StartCamera with slots, got {message}", "report this fault")
    return message


def run() -> int:
    try:
        channel: Channel[CameraCommand] = Channel.from_environment(CameraCommand)
    except TidegaugeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    # SIGTERM ends the receiver as if the agent had gone; SIGINT is ignored.
    prepare_signals(channel)
    try:
        start = first_message(channel)
    except ChannelClosed:
        return Exit.CLEAN
    except CameraFault as fault:
        return fail(channel, fault)
    return Worker(start, channel).run()


def main() -> None:
    code = run()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: the reader may still be inside a native library, which the interpreter's shutdown, with its
    # destructors and exit handlers, would pull from under it.
    os._exit(code)


if __name__ == "__main__":
    main()
