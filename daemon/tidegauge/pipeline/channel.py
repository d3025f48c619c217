"""Messages over a socketpair, with file descriptors beside them.

`SOCK_SEQPACKET` keeps message boundaries and tells the end of the other process at once. A worker uses the blocking
`Channel`; the agent the asynchronous `AgentChannel`. Descriptors travel by SCM_RIGHTS, one at most with a message.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
from typing import Any, Generic, TypeVar

import msgspec

from tidegauge.errors import TidegaugeError

#: A message holds numbers and names, never tensors: far below this.
MAX_MESSAGE = 128 * 1024
FD_ENVIRONMENT = "TIDEGAUGE_CHANNEL_FD"

In = TypeVar("In")


class ChannelClosed(Exception):
    """The other process has gone."""


def _send(sock: socket.socket, message: msgspec.Struct, fd: int | None) -> None:
    data = msgspec.msgpack.encode(message)
    if len(data) > MAX_MESSAGE:
        raise ValueError(f"message {type(message).__name__} of {len(data)} bytes is over {MAX_MESSAGE}")
    ancillary = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    sock.sendmsg([data], ancillary)


def _receive(sock: socket.socket) -> tuple[bytes, int | None]:
    size = array.array("i").itemsize
    data, ancillary, _, _ = sock.recvmsg(MAX_MESSAGE + 1, socket.CMSG_LEN(size), socket.MSG_CMSG_CLOEXEC)
    fd = None
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fd = array.array("i", payload[:size])[0]
    return data, fd


class Channel(Generic[In]):
    """A worker's end. Any thread may send; one thread receives."""

    def __init__(self, sock: socket.socket, accepts: Any) -> None:
        self._sock = sock
        self._decoder: msgspec.msgpack.Decoder[In] = msgspec.msgpack.Decoder(accepts)

    @classmethod
    def from_environment(cls, accepts: Any) -> Channel[In]:
        """The socket that the agent has passed to this process."""
        value = os.environ.get(FD_ENVIRONMENT)
        if value is None:
            raise TidegaugeError(
                "this program is a worker of the agent and was started by hand",
                "run `tidegauge agent run` instead",
            )
        return cls(socket.socket(fileno=int(value)), accepts)

    def send(self, message: msgspec.Struct, fd: int | None = None) -> None:
        try:
            _send(self._sock, message, fd)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed from error

    def receive(self, timeout: float | None = None) -> tuple[In, int | None]:
        """The next message and its descriptor. Raises TimeoutError, or ChannelClosed when the agent has gone."""
        self._sock.settimeout(timeout)
        try:
            data, fd = _receive(self._sock)
        except ConnectionResetError as error:
            raise ChannelClosed from error
        finally:
            self._sock.settimeout(None)
        if not data:
            raise ChannelClosed
        return self._decoder.decode(data), fd


class AgentChannel(Generic[In]):
    """The agent's end: never blocks the event loop."""

    def __init__(self, sock: socket.socket, accepts: Any) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._decoder: msgspec.msgpack.Decoder[In] = msgspec.msgpack.Decoder(accepts)

    async def send(self, message: msgspec.Struct, fd: int | None = None) -> None:
        while True:
            try:
                _send(self._sock, message, fd)
                return
            except BlockingIOError:
                await self._ready(write=True)
            except (BrokenPipeError, ConnectionResetError) as error:
                raise ChannelClosed from error

    async def receive(self) -> tuple[In, int | None]:
        while True:
            try:
                data, fd = _receive(self._sock)
            except BlockingIOError:
                await self._ready(write=False)
                continue
            except ConnectionResetError as error:
                raise ChannelClosed from error
            if not data:
                raise ChannelClosed
            return self._decoder.decode(data), fd

    async def _ready(self, *, write: bool) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        add = loop.add_writer if write else loop.add_reader
        remove = loop.remove_writer if write else loop.remove_reader

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        add(self._sock, wake)
        try:
            await future
        finally:
            remove(self._sock)

    def close(self) -> None:
        self._sock.close()
