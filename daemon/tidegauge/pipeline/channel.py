"""Messages over a socketpair, with file descriptors beside them.

`SOCK_SEQPACKET` keeps message boundaries and tells the end of the other process at once. A worker uses the blocking
`Channel`; the agent the asynchronous `AgentChannel`. Descriptors travel by SCM_RIGHTS, one at most with a message.
"""

from __future__ import annotations

import array
import asyncio
import os
import select
import socket
import stat
import time
from typing import Any, Generic, TypeVar

import msgspec

from tidegauge.errors import TidegaugeError

#: A message holds numbers and names, never tensors: far below this.
MAX_MESSAGE = 128 * 1024
FD_ENVIRONMENT = "TIDEGAUGE_CHANNEL_FD"

#: As numbers: the flags of the module are enumerations, whose arithmetic costs more than the call, twice a frame.
_CLOEXEC, _CUT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_RIGHTS = (int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS))

In = TypeVar("In")


class ChannelClosed(Exception):
    """The other process has gone."""


class BadMessage(Exception):
    """What arrived is not a message of this channel: the two ends are not of one version."""


def _send(sock: socket.socket, message: msgspec.Struct, fd: int | None) -> None:
    data = msgspec.msgpack.encode(message)
    if len(data) > MAX_MESSAGE:
        raise ValueError(f"message {type(message).__name__} of {len(data)} bytes is over {MAX_MESSAGE}")
    ancillary = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    sock.sendmsg([data], ancillary)


def _receive(sock: socket.socket, flags: int = 0) -> tuple[bytes, int | None]:
    """One packet; empty at the end. Descriptors beyond the one that is expected are closed, not leaked."""
    size = array.array("i").itemsize
    flags |= _CLOEXEC
    try:
        data, ancillary, received, _ = sock.recvmsg(MAX_MESSAGE + 1, socket.CMSG_LEN(size), flags)
    except ConnectionResetError:
        # The other end left without reading everything. Linux reports that, once, ahead of what it had sent before.
        data, ancillary, received, _ = sock.recvmsg(MAX_MESSAGE + 1, socket.CMSG_LEN(size), flags)
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if (level, kind) == _RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % size])
    for extra in fds[1:]:
        os.close(extra)
    fd = fds[0] if fds else None
    if received & _CUT:
        _discard(fd)
        raise BadMessage("a message was longer than agreed, or came with more than one descriptor")
    return data, fd


def _decode(decoder: msgspec.msgpack.Decoder[In], data: bytes, fd: int | None) -> tuple[In, int | None]:
    try:
        return decoder.decode(data), fd
    except msgspec.DecodeError as error:
        _discard(fd)
        raise BadMessage(str(error)) from error


def _discard(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)


class Channel(Generic[In]):
    """A worker's end. Any thread may send; one thread receives."""

    def __init__(self, sock: socket.socket, accepts: Any) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._decoder: msgspec.msgpack.Decoder[In] = msgspec.msgpack.Decoder(accepts)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._leaving = False

    @classmethod
    def from_environment(cls, accepts: Any) -> Channel[In]:
        """The socket that the agent has passed to this process."""
        value = os.environ.get(FD_ENVIRONMENT, "")
        try:
            if not stat.S_ISSOCK(os.fstat(int(value)).st_mode):
                raise ValueError(f"descriptor {value} is not a socket")
        except (ValueError, OSError) as error:
            raise TidegaugeError(
                "this program is a worker of the agent and was started by hand",
                "run `tidegauge agent run` instead",
            ) from error
        os.set_inheritable(int(value), False)
        return cls(socket.socket(fileno=int(value)), accepts)

    def send(self, message: msgspec.Struct, fd: int | None = None) -> None:
        try:
            _send(self._sock, message, fd)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed from error

    def receive(self, timeout: float | None = None) -> tuple[In, int | None]:
        """The next message and its descriptor.

        Raises TimeoutError, ChannelClosed when the agent has gone (or after `leave`), or BadMessage.
        """
        # Waiting by poll, not by the socket's own time-out: that would hold for other threads' sends as well.
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._leaving:
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            if not self._poll.poll(left):
                raise TimeoutError
            try:
                data, fd = _receive(self._sock, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except ConnectionResetError as error:
                raise ChannelClosed from error
            if not data:
                raise ChannelClosed
            return _decode(self._decoder, data, fd)
        raise ChannelClosed

    def fileno(self) -> int:
        """To wait for a message beside other things."""
        return self._sock.fileno()

    def leave(self) -> None:
        """Take no more messages: `receive` raises ChannelClosed from now on, whatever is still queued.

        Sending stays possible. Safe in a signal handler: it wakes a waiting `receive` without raising in it.
        """
        self._leaving = True
        try:
            self._sock.shutdown(socket.SHUT_RD)
        except OSError:
            return  # the other end has gone already, which wakes `receive` as well

    def close(self) -> None:
        self._sock.close()


class AgentChannel(Generic[In]):
    """The agent's end: never blocks the event loop. Any task may send; one task receives."""

    def __init__(self, sock: socket.socket, accepts: Any) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._decoder: msgspec.msgpack.Decoder[In] = msgspec.msgpack.Decoder(accepts)
        self._sending = asyncio.Lock()  # an event loop has one writer callback a socket: two tasks would lose one
        self._waiting: dict[bool, asyncio.Future[None]] = {}
        self._at_once = True

    async def send(self, message: msgspec.Struct, fd: int | None = None) -> None:
        """Raises ChannelClosed when the worker has gone."""
        async with self._sending:
            while True:
                self._open()
                try:
                    _send(self._sock, message, fd)
                    return
                except BlockingIOError:
                    await self._ready(write=True)
                except (BrokenPipeError, ConnectionResetError) as error:
                    raise ChannelClosed from error

    async def receive(self) -> tuple[In, int | None]:
        """The next message and its descriptor, which is the caller's to close. Raises ChannelClosed or BadMessage."""
        if self._at_once:
            await asyncio.sleep(0)  # a worker that always has something to say must not starve the other tasks
        self._at_once = True
        while True:
            self._open()
            try:
                data, fd = _receive(self._sock)
            except BlockingIOError:
                self._at_once = False
                await self._ready(write=False)
                continue
            except ConnectionResetError as error:
                raise ChannelClosed from error
            if not data:
                raise ChannelClosed
            return _decode(self._decoder, data, fd)

    def _open(self) -> None:
        if self._sock.fileno() < 0:
            raise ChannelClosed

    async def _ready(self, *, write: bool) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        add = loop.add_writer if write else loop.add_reader
        remove = loop.remove_writer if write else loop.remove_reader

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        fd = self._sock.fileno()
        add(fd, wake)
        self._waiting[write] = future
        try:
            await future
        finally:
            # After `close` the number may already belong to another socket, with a callback of its own.
            if self._waiting.pop(write, None) is not None:
                remove(fd)

    def close(self) -> None:
        """Close, once or more often; tasks that wait in `send` or `receive` get ChannelClosed."""
        fd = self._sock.fileno()
        while self._waiting:
            write, future = self._waiting.popitem()
            loop = future.get_loop()
            (loop.remove_writer if write else loop.remove_reader)(fd)
            if not future.done():
                future.set_exception(ChannelClosed())
        self._sock.close()
