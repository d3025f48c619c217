"""The device's answers for the board's product: raw outputs of every frame on a Unix stream socket.

A record is: 4 bytes, little-endian, the length of the header; the header, msgpack of `ResultHeader`; then the bytes of
the tensors in C order, each at its `offset` from the first byte after the header, `nbytes` in all.

The device run never waits for a client. Each client has one record on its way and room for the newest one behind it;
a record that is overtaken there is dropped, and counted in the next header that this client gets.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import stat
import struct
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from tidegauge.pipeline.process import FailureKind, WorkerFault
from tidegauge.runtimes.session import Array
from tidegauge.tensors import TensorSpec

MAX_CLIENTS = 4
HEADER_LENGTH = struct.Struct("<I")


class ResultTensor(msgspec.Struct, frozen=True):
    """One output: its name, shape, NumPy element type (little-endian), and place after the header, in bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int


class ResultHeader(msgspec.Struct, frozen=True):
    """What precedes the tensors. `captured`: seconds on the monotonic clock; `dropped`: records that this client has
    missed since it connected; `nbytes`: the length of all tensors together. `doubts`: names of what says that this
    answer must not be taken for right, such as `invariant` or `known_answer_device`; empty while nothing does."""

    frame_id: int
    captured: float
    tensors: tuple[ResultTensor, ...]
    nbytes: int
    dropped: int
    doubts: tuple[str, ...] = ()


class _Record:
    """One device run's outputs, shared by all clients; never copied."""

    def __init__(
        self, frame_id: int, captured: float, outputs: Sequence[tuple[TensorSpec, Array]], doubts: tuple[str, ...]
    ) -> None:
        self.frame_id = frame_id
        self.captured = captured
        self.doubts = doubts
        self.tensors: list[ResultTensor] = []
        self.parts: list[memoryview] = []
        self.nbytes = 0
        for spec, array in outputs:
            self.tensors.append(ResultTensor(spec.name, spec.shape, spec.dtype, self.nbytes))
            self.parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            self.nbytes += array.nbytes

    def packets(self, dropped: int) -> list[memoryview]:
        header = msgspec.msgpack.encode(
            ResultHeader(self.frame_id, self.captured, tuple(self.tensors), self.nbytes, dropped, self.doubts)
        )
        return [memoryview(HEADER_LENGTH.pack(len(header)) + header), *self.parts]


class _Client:
    """`sending` belongs to the serving thread; `newest` and `dropped` are guarded by the server's lock."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sending: list[memoryview] = []
        self.newest: _Record | None = None
        self.dropped = 0

    def offer(self, record: _Record) -> None:
        if self.newest is not None:
            self.dropped += 1
        self.newest = record

    def take(self) -> list[memoryview]:
        record, self.newest = self.newest, None
        return [] if record is None else record.packets(self.dropped)

    def advance(self, sent: int) -> None:
        while self.sending and sent >= len(self.sending[0]):
            sent -= len(self.sending.pop(0))
        if sent:
            self.sending[0] = self.sending[0][sent:]


class ResultServer:
    """Serves at most four clients from a thread of its own. `publish` costs the caller a lock and a wake-up."""

    def __init__(self, path: Path) -> None:
        """Bind and serve. Raises WorkerFault when the path can't be used or another process listens there."""
        self._path = path
        self._listener = _listen(path)
        self._identity = _identity(path)
        self._wake_receive, self._wake_send = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for sock in (self._listener, self._wake_receive, self._wake_send):
            sock.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_receive, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._clients: list[_Client] = []
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="results", daemon=True)
        self._thread.start()

    def publish(
        self,
        frame_id: int,
        captured: float,
        outputs: Sequence[tuple[TensorSpec, Array]],
        doubts: tuple[str, ...] = (),
    ) -> None:
        """Hand over the outputs of a frame's device run. The arrays must not be written to afterwards."""
        with self._lock:
            if not self._clients:
                return
            record = _Record(frame_id, captured, outputs, doubts)
            for client in self._clients:
                client.offer(record)
        self._wake()

    def close(self) -> None:
        """Disconnect everybody and remove the socket file, unless a successor has put its own in place."""
        self._closing = True
        self._wake()
        self._thread.join()
        self._wake_receive.close()  # by the caller: the thread may have seen `_closing` before the wake-up was sent
        self._wake_send.close()
        if _identity(self._path) == self._identity:
            self._path.unlink(missing_ok=True)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: wake-ups enough are on their way
            self._wake_send.send(b"\0")

    def _serve(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._wake_receive:
                    self._wake_receive.recv(4096)
                elif not _alive(key.data):
                    self._drop(key.data)
            for client in list(self._clients):
                self._pump(client)
        for client in list(self._clients):
            self._drop(client)
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # no descriptor left: those who are connected are served on
            print(f"{self._path}: no more clients are taken ({error})", file=sys.stderr)
            self._selector.unregister(self._listener)
            return
        if len(self._clients) >= MAX_CLIENTS:
            print(f"{self._path}: a client was refused, {MAX_CLIENTS} are connected", file=sys.stderr)
            sock.close()
            return
        sock.setblocking(False)
        client = _Client(sock)
        self._selector.register(sock, selectors.EVENT_READ, client)
        with self._lock:
            self._clients.append(client)

    def _drop(self, client: _Client) -> None:
        with self._lock:
            self._clients.remove(client)
        self._selector.unregister(client.sock)
        client.sock.close()

    def _pump(self, client: _Client) -> None:
        """Send what the client's socket takes, and wait for room when something is left."""
        events = selectors.EVENT_READ
        while True:
            if not client.sending:
                with self._lock:
                    client.sending = client.take()
                if not client.sending:
                    break
            try:
                client.advance(client.sock.sendmsg(client.sending))
            except BlockingIOError:
                events |= selectors.EVENT_WRITE
                break
            except OSError:  # the client has gone
                self._drop(client)
                return
        if self._selector.get_key(client.sock).events != events:
            self._selector.modify(client.sock, events, client)


def _alive(client: _Client) -> bool:
    """Whether the client is still there. What it says is thrown away: the protocol goes one way."""
    try:
        return client.sock.recv(4096) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _listen(path: Path) -> socket.socket:
    """A listening socket at `path`, mode 0660; a file left by a killed predecessor is replaced."""
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o117)
    try:
        listener.bind(str(path))
        listener.listen(MAX_CLIENTS)
    except OSError as error:
        listener.close()
        cure = "set a short path (under 108 bytes) in a folder that the agent may write to"
        raise WorkerFault(
            FailureKind.RESULTS_SOCKET, f"the results socket {path} can't be made ({error})", cure
        ) from error
    finally:
        os.umask(mask)
    return listener


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise WorkerFault(
            FailureKind.RESULTS_SOCKET, f"the results socket {path} can't be made ({error})", "make its folder readable"
        ) from error
    if not stat.S_ISSOCK(mode):
        raise WorkerFault(
            FailureKind.RESULTS_SOCKET, f"{path} exists and is not a socket", "choose another path for the results"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a listener that is stuck has a full queue; it is there all the same
        result = probe.connect_ex(str(path))
    if result == errno.ECONNREFUSED:
        path.unlink(missing_ok=True)
        return
    raise WorkerFault(
        FailureKind.RESULTS_SOCKET,
        f"another process serves the results socket {path}",
        "end that process, or give each model a socket of its own",
    )
