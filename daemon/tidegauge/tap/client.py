"""The application's side: what a frame costs it is a few words of shared memory, unless the agent wants that frame.

Nothing here waits for the agent but `before_opening` and a pause, each for a bounded time; nothing fails because of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tidegauge.tap import wire
from tidegauge.tap.wire import Flag, Kind, Session, Tensor, WireError, Word

#: Seconds between two attempts to reach the agent, and between two looks whether it is still there.
LOOK_PERIOD = 1.0
#: And after the agent has refused it: only a person can cure that.
REFUSED_PERIOD = 30.0
#: An agent that dies during a pause may leave a traced run behind, which ends within so many seconds.
ORPHAN_SECONDS = 5.0
_MASK = 0xFFFFFFFF
_ONE_WORD = sys.byteorder == "little"

TensorLike = tuple[str, Sequence[int], str]


class Tap:
    """Of one model. Call every method from the thread that runs the model.

    `run(inputs)` runs the model on read-only buffers (`memoryview`, one an input, shaped) and returns the outputs in
    order: for the known-answer test and to prove the accelerator after a capture. `close()` closes the application's
    session, so that a capture can be taken, and `open()` opens it again. All are called inside of `frame`, and what
    they raise comes out of it. Without them the agent watches, but takes no golden tensors and no captures.
    """

    def __init__(
        self,
        path: str,
        name: str,
        run: Callable[[list[memoryview]], Sequence[Any]] | None = None,
        close: Callable[[], None] | None = None,
        open: Callable[[], None] | None = None,
    ) -> None:
        if (close is None) != (open is None):
            raise ValueError("give both `close` and `open`, or neither")
        if not _ONE_WORD:
            raise ValueError("the tap's words are little-endian: this machine is not")
        self._path, self._name = path, name
        self._run, self._close_session, self._open_session = run, close, open
        self._session: Session | None = None
        self._socket: socket.socket | None = None
        self._map: mmap.mmap | None = None
        self._words: Any = memoryview(bytearray(wire.HEADER_BYTES)).cast("I")
        self._places = wire.Places((), (), (), 0)
        self._given = self._calls = 0
        self._look_due = 0.0
        self._asks_before = False

    # --- the application's session ---

    def before_opening(self, seconds: float) -> bool:
        """Wait until the agent says that a session may be opened: a capture may be under way, or be taken now, if it
        could not be taken while the application held its session. Call it before each session that is opened.

        At most `seconds`; False where there was no word by then (no agent, mostly), and the application opens its
        session all the same. An agent that knows of nothing answers at once, and none that is not there is waited for:
        600 s cost nothing. A capture that was put off is not begun for one who waits less than it may take.
        """
        deadline = time.monotonic() + seconds
        self._asks_before = True
        if self._socket is None:
            self._connect(seconds)
        else:
            self._answer()  # an earlier word is none to this question
            self._greet(seconds)
        return self._socket is not None and self._wait(Kind.OPEN, deadline)

    def opened(
        self,
        inputs: Sequence[TensorLike],
        outputs: Sequence[TensorLike],
        runtime: str = "",
        provider: str = "",
        virtual: bool = False,
    ) -> None:
        """The application's session is open; its tensors by name, shape and NumPy element type, in the order in which
        frames give them. `runtime`, `provider`: its own words for what computes. Raises ValueError for what can't be.
        """
        told = Session(_tensors(inputs), _tensors(outputs), runtime, provider, virtual)
        if not told.inputs or not told.outputs or len(told.inputs) + len(told.outputs) > wire.MAX_TENSORS:
            raise WireError(f"give 1 to {wire.MAX_TENSORS} tensors in all, inputs and outputs")
        self._session = told
        if self._socket is None:
            self._connect()
        else:
            self._announce()

    def closed(self) -> None:
        """The application has closed its session by itself, and will say `opened` when it has another."""
        self._session = None
        self._send(wire.packet(Kind.CLOSED))

    def disconnect(self) -> None:
        """Let go of the agent."""
        self._forget()

    # --- frames ---

    def frame(self, inputs: Sequence[Any], outputs: Sequence[Any], seconds: float) -> None:
        """One device run of `seconds`: the buffers it was fed, and the answers, in the order of `opened`.

        Copies only a frame that the agent has asked for, about one a second; never waits, but while the agent pauses
        the application by its own `close`.
        """
        words = self._words
        words[Word.FRAMES] = (words[Word.FRAMES] + 1) & _MASK
        words[Word.MICROSECONDS] = (words[Word.MICROSECONDS] + int(seconds * 1e6)) & _MASK
        wanted = words[Word.WANTED]
        if wanted and wanted != self._given:
            self._give(wanted, inputs, outputs, seconds)
        self.poll()

    def poll(self) -> None:
        """What `frame` does beside the frame: answer the agent. For loops in which frames may be long in coming."""
        if self._words[Word.CALLS] != self._calls:
            self._answer()
        now = time.monotonic()
        if now >= self._look_due:
            self._look_due = now + LOOK_PERIOD
            if self._socket is None:
                self._connect()
            else:
                self._answer()

    def _give(self, wanted: int, inputs: Sequence[Any], outputs: Sequence[Any], seconds: float) -> None:
        told = self._session
        if told is None:
            return
        whole = self._put(told.inputs, self._places.inputs, inputs)
        whole = whole and self._put(told.outputs, self._places.outputs, outputs)
        if whole and self._send(wire.packet(Kind.GIVEN, wanted, seconds, time.monotonic())):
            self._given = wanted
        else:
            self._words[Word.DROPPED] = (self._words[Word.DROPPED] + 1) & _MASK

    def _put(self, tensors: tuple[Tensor, ...], offsets: tuple[int, ...], buffers: Sequence[Any]) -> bool:
        """Copy tensors into shared memory; False where they are others than was said."""
        if self._map is None or len(buffers) != len(tensors):
            return False
        for tensor, offset, buffer in zip(tensors, offsets, buffers, strict=True):
            view = memoryview(buffer)
            if view.nbytes != tensor.nbytes:
                return False
            self._map[offset : offset + view.nbytes] = view.cast("B") if view.c_contiguous else view.tobytes()
        return True

    # --- what the agent asks for ---

    def _answer(self) -> None:
        self._calls = self._words[Word.CALLS]  # before the socket is emptied: what comes later is seen later
        while self._socket is not None and (call := self._receive()) is not None:
            kind, number, a, _, payload = call
            if kind is Kind.RUN:
                self._run_asked(number)
            elif kind is Kind.PAUSE:
                self._pause(a)
            elif kind is Kind.REFUSED:
                print(f"tap: the agent takes no frames from {self._name}: {payload.decode()}", file=sys.stderr)
                self._forget()
                self._look_due = time.monotonic() + REFUSED_PERIOD

    def _run_asked(self, number: int) -> None:
        told, shared = self._session, self._map
        if self._run is None or told is None or shared is None:
            self._send(wire.packet(Kind.FAILED, number, payload=b"it runs no tensors"))
            return
        views = []
        for tensor, offset in zip(told.inputs, self._places.asked, strict=True):
            data = memoryview(shared[offset : offset + tensor.nbytes])  # a copy: the application may keep it
            views.append(data.cast(_FORMATS[tensor.dtype], tensor.shape))
        done, seconds = False, 0.0
        try:
            began = time.perf_counter()
            outputs = self._run(views)
            seconds = time.perf_counter() - began
            done = self._put(told.outputs, self._places.outputs, outputs)
        finally:
            word = Kind.RAN if done else Kind.FAILED
            text = b"" if done else b"the run of the agent's tensor failed, or gave other outputs than was said"
            self._send(wire.packet(word, number, seconds, payload=text))

    def _pause(self, seconds: float) -> None:
        """Close the session, tell, and open it again when the agent says so, or when it takes too long."""
        if self._close_session is None or self._open_session is None:
            return
        deadline = time.monotonic() + seconds
        told, self._session = self._session, None
        self._close_session()
        self._send(wire.packet(Kind.CLOSED))
        if not self._wait(Kind.OPEN, deadline) and self._socket is None:
            time.sleep(max(0.0, min(ORPHAN_SECONDS, deadline - time.monotonic())))
        self._open_session()
        if self._session is None:  # `open` may have said other tensors
            self._session = told
            self._announce()

    def _wait(self, kind: Kind, deadline: float) -> bool:
        """Until a packet of this kind has come; False at the deadline, or where the agent is gone."""
        while self._socket is not None and (left := deadline - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            poll.poll(1000 * left)
            call = self._receive()
            if call is not None and call[0] is kind:
                return True
            if call is not None and call[0] is Kind.RUN:
                self._send(wire.packet(Kind.FAILED, call[1], payload=b"its session is closed"))
        return False

    # --- the socket ---

    def _connect(self, waiting: float = 0.0) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        if sock.connect_ex(self._path) != 0:
            sock.close()
            return
        self._socket, self._calls = sock, 0
        if self._greet(waiting) and self._session is not None:
            self._announce()

    def _greet(self, waiting: float) -> bool:
        flags = (Flag.RUNS if self._run else 0) | (Flag.PAUSES if self._close_session else 0)
        flags |= Flag.WAITS if self._asks_before else 0
        return self._send(wire.hello(self._name, flags, waiting))

    def _announce(self) -> None:
        """A new shared memory for this session, its size sealed, so that neither side can pull it from the other."""
        told = self._session
        if told is None or self._socket is None:
            return
        self._unmap()
        self._places = wire.places(told.inputs, told.outputs)
        fd = os.memfd_create("tidegauge-tap", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, self._places.nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map = mmap.mmap(fd, self._places.nbytes)
            self._words = memoryview(self._map)[: wire.HEADER_BYTES].cast("I")
            self._words[Word.MAGIC], self._words[Word.VERSION] = wire.MAGIC, wire.VERSION
            self._given = self._calls = 0
            try:
                socket.send_fds(self._socket, [wire.opened(told)], [fd])
            except OSError:
                self._forget()
        finally:
            os.close(fd)

    def _send(self, data: bytes) -> bool:
        if self._socket is None:
            return False
        try:
            self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError:
            self._forget()
            return False
        return True

    def _receive(self) -> tuple[Kind, int, float, float, bytes] | None:
        """The next packet; None where there is none, or no agent any more."""
        assert self._socket is not None
        try:
            data = self._socket.recv(wire.MAX_PACKET + 1)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self._forget()
            return None
        return wire.head(data)

    def _forget(self) -> None:
        """The agent is gone. Counters go on in a memory of our own, which nobody reads."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._unmap()

    def _unmap(self) -> None:
        self._words = memoryview(bytearray(wire.HEADER_BYTES)).cast("I")
        self._calls = self._given = 0
        if self._map is not None:
            with contextlib.suppress(BufferError):  # the words' view goes with the next collection
                self._map.close()
            self._map = None


_FORMATS: dict[str, Any] = {
    "uint8": "B",
    "int8": "b",
    "uint16": "H",
    "int16": "h",
    "int32": "i",
    "float32": "f",
    "int64": "q",
}


def _tensors(given: Sequence[TensorLike]) -> tuple[Tensor, ...]:
    found = tuple(Tensor(name, tuple(int(size) for size in shape), dtype) for name, shape, dtype in given)
    wire.check(found)
    return found
