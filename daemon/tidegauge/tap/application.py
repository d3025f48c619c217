"""One application, as the tap's worker sees it: its socket, its shared memory, what it has been asked for."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from tidegauge.errors import TidegaugeError
from tidegauge.runtimes.session import Array, Offload
from tidegauge.tap import wire
from tidegauge.tap.wire import Flag, Kind, WireError, Word
from tidegauge.tensors import TensorSpec

#: struct ucred of unix(7): pid, uid, gid.
_PEER = struct.Struct("iII")
_MASK = 0xFFFFFFFF


class ApplicationGone(Exception):
    """It has disconnected, or said what can't be; the text is a sentence."""


class NoAnswer(TidegaugeError):
    """The application did not do in time what it was asked for."""


class Given(msgspec.Struct, frozen=True):
    """One frame, copied out. `captured`: when it was handed over less its run, on the monotonic clock."""

    seconds: float
    captured: float
    inputs: dict[str, Array]
    outputs: list[Array]


class Shared:
    """The application's memory: mapped once its size can't change any more (a page pulled away would kill us)."""

    def __init__(self, session: wire.Session, fd: int) -> None:
        """Takes the descriptor. Raises WireError."""
        self.session = session
        self.places = wire.places(session.inputs, session.outputs)
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            if not seals & fcntl.F_SEAL_SHRINK or os.fstat(fd).st_size < self.places.nbytes:
                raise WireError("a shared memory that is too small, or not sealed against shrinking")
            self._map = mmap.mmap(fd, self.places.nbytes)
        except (OSError, ValueError) as error:
            raise WireError(f"a shared memory that can't be mapped ({error})") from error
        finally:
            os.close(fd)
        self.words: Any = memoryview(self._map)[: wire.HEADER_BYTES].cast("I")
        if (self.words[Word.MAGIC], self.words[Word.VERSION]) != (wire.MAGIC, wire.VERSION):
            raise WireError("a shared memory of another version")

    def read(self, tensors: tuple[wire.Tensor, ...], offsets: tuple[int, ...]) -> list[Array]:
        """Copies."""
        return [
            np.frombuffer(self._map[offset : offset + tensor.nbytes], tensor.dtype).reshape(tensor.shape)
            for tensor, offset in zip(tensors, offsets, strict=True)
        ]

    def write_asked(self, tensors: Mapping[str, Array]) -> None:
        for tensor, offset in zip(self.session.inputs, self.places.asked, strict=True):
            data = np.ascontiguousarray(tensors[tensor.name])
            self._map[offset : offset + tensor.nbytes] = data.reshape(-1).view(np.uint8).data

    def close(self) -> None:
        self.words.release()
        with contextlib.suppress(BufferError):
            self._map.close()


class Application:
    """Talks to one application; also the `Session` through which a tensor is run on its accelerator."""

    kind = "tap"

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.pid = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[0]
        self.name, self.flags, self.greeted = "", 0, False
        self.shared: Shared | None = None
        self.inputs: tuple[TensorSpec, ...] = ()
        self.outputs: tuple[TensorSpec, ...] = ()
        self.run_seconds = 0.0
        self._number = 0
        self._before = (0, 0, 0)

    @property
    def runs(self) -> bool:
        return bool(self.flags & Flag.RUNS)

    @property
    def pauses(self) -> bool:
        return bool(self.flags & Flag.PAUSES)

    @property
    def waits(self) -> bool:
        """Whether it asks before it opens a session."""
        return bool(self.flags & Flag.WAITS)

    # --- packets ---

    def receive(self) -> tuple[Kind, int, float, float, bytes] | None:
        """What it says next, None for nothing; greetings and sessions are taken in. Raises ApplicationGone."""
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, wire.MAX_PACKET + 1, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ApplicationGone(f"the application {self.name} has gone ({error.strerror})") from error
        if not data:
            raise ApplicationGone(f"the application {self.name} has gone")
        try:
            said = wire.head(data)
            self._take_in(said, fds)
        except WireError as error:
            raise ApplicationGone(f"the application {self.name} said what can't be: {error}") from error
        finally:
            for fd in fds:
                os.close(fd)
        return said

    def _take_in(self, said: tuple[Kind, int, float, float, bytes], fds: list[int]) -> None:
        kind, number, _, _, payload = said
        if kind is Kind.HELLO:
            if number != wire.VERSION:
                raise WireError(f"version {number} of the tap, not {wire.VERSION}")
            self.name, self.flags = wire.read_hello(payload)
            self.greeted = True
        elif not self.greeted:
            raise WireError("no greeting")
        elif kind is Kind.OPENED:
            if len(fds) != 1:
                raise WireError("a session without its shared memory")
            self.forget_session()
            self.shared = Shared(wire.read_opened(payload), fds.pop())
            told = self.shared.session
            self.inputs, self.outputs = _specs(told.inputs), _specs(told.outputs)
            self._before = (0, 0, 0)
        elif kind is Kind.CLOSED:
            self.forget_session()
        elif kind >= Kind.RUN:
            raise WireError(f"{kind.name}, which is the agent's to say")

    def send(self, kind: Kind, number: int = 0, a: float = 0.0, text: str = "") -> None:
        """Raises ApplicationGone, also where it has read nothing for so long that its socket is full."""
        try:
            self.socket.send(wire.packet(kind, number, a, payload=text.encode()), socket.MSG_NOSIGNAL)
        except OSError as error:
            raise ApplicationGone(f"the application {self.name} can't be told anything ({error.strerror})") from error
        if self.shared is not None:  # after the packet: who sees the word finds it
            self.shared.words[Word.CALLS] = (self.shared.words[Word.CALLS] + 1) & _MASK

    def _await(self, kinds: set[Kind], number: int, deadline: float) -> tuple[Kind, float, float, bytes] | None:
        """The packet of one of these kinds with this number; None at the deadline, or where the session ends."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        while True:
            said = self.receive()
            if said is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                poll.poll(1000 * left)
            elif said[0] in kinds and (said[1] == number or said[0] is Kind.CLOSED):
                return said[0], said[2], said[3], said[4]
            elif said[0] in (Kind.CLOSED, Kind.OPENED):
                return None

    # --- what it is asked for ---

    def take(self, seconds: float) -> Given | None:
        """Its next frame, or None after `seconds` without one. Raises ApplicationGone."""
        shared, number = self.shared, self._next()
        if shared is None:
            return None
        shared.words[Word.WANTED] = number
        answer = self._await({Kind.GIVEN}, number, time.monotonic() + seconds)
        if self.shared is not shared:
            return None
        shared.words[Word.WANTED] = 0
        if answer is None:
            return None
        _, took, handed, _ = answer
        if not (0 <= took < 3600 and abs(time.monotonic() - handed) < 3600):
            raise ApplicationGone(f"the application {self.name} said what can't be: a run of {took} s at {handed} s")
        told, places = shared.session, shared.places
        inputs = shared.read(told.inputs, places.inputs)
        named = {tensor.name: array for tensor, array in zip(told.inputs, inputs, strict=True)}
        return Given(took, handed - took, named, shared.read(told.outputs, places.outputs))

    def run(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Run tensors on the application's session, within `run_seconds`. Raises NoAnswer, ApplicationGone."""
        shared, number = self.shared, self._next()
        if shared is None or not self.runs:
            raise NoAnswer(
                f"the application {self.name} runs no tensors for the agent", "give its tap `run` (docs/tap.md)"
            )
        shared.write_asked(tensors)
        self.send(Kind.RUN, number)
        answer = self._await({Kind.RAN, Kind.FAILED}, number, time.monotonic() + self.run_seconds)
        if answer is None or answer[0] is Kind.FAILED or self.shared is not shared:
            why = " in time" if answer is None else f": {answer[3].decode(errors='replace')}"
            raise NoAnswer(f"the application {self.name} did not run the agent's tensor{why}", "look at its own log")
        told = shared.session
        outputs = shared.read(told.outputs, shared.places.outputs)
        return {tensor.name: array for tensor, array in zip(told.outputs, outputs, strict=True)}

    def pause(self, seconds: float, longest: float) -> bool:
        """Whether it has said in time that its session is closed. Raises ApplicationGone."""
        self.send(Kind.PAUSE, 0, longest)
        return self._await({Kind.CLOSED}, 0, time.monotonic() + seconds) is not None

    def counted(self) -> tuple[int, int, float]:
        """Frames, frames asked for but not handed over, seconds of all runs; since the last call."""
        if self.shared is None:
            return 0, 0, 0.0
        now = tuple(int(self.shared.words[word]) for word in (Word.FRAMES, Word.DROPPED, Word.MICROSECONDS))
        frames, dropped, micros = ((new - old) & _MASK for new, old in zip(now, self._before, strict=True))
        self._before = now[0], now[1], now[2]
        return frames, dropped, micros / 1e6

    def benchmark(self) -> dict[str, int]:
        return {}

    def offload(self) -> Offload:
        """Its own word, and marked so: nobody else can look into its session."""
        assert self.shared is not None
        told = self.shared.session
        return Offload(f"{told.provider or 'unknown'} (told by {self.name})", (), virtual=told.virtual)

    def _next(self) -> int:
        self._number = self._number % _MASK + 1  # 0 is no number
        return self._number

    def forget_session(self) -> None:
        if self.shared is not None:
            self.shared.close()
            self.shared = None

    def close(self) -> None:
        self.forget_session()
        self.socket.close()


def _specs(tensors: tuple[wire.Tensor, ...]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(tensor.name, tensor.shape, tensor.dtype) for tensor in tensors)
