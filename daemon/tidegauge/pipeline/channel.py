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
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from tidegauge.errors import TidegaugeError

#: A message holds numbers and names, never tensors: far below this.
MAX_MESSAGE = 128 * 1024
#: Messages that may wait in the agent for somebody to receive them; further ones stay in the socket.
MOST_WAITING = 32
FD_ENVIRONMENT = "TIDEGAUGE_CHANNEL_FD"

#: As numbers: the flags of the module are enumerations, whose arithmetic costs more than the call, twice a frame.
_CLOEXEC, _CUT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_RIGHTS = (int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS))

In = TypeVar("In")
Kind = TypeVar("Kind")


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
    """The agent's end: never blocks the event loop. Any task may send; one task receives.

    What arrives is taken from the socket by one callback that stays registered from the first `receive` or `watch` on,
    and waits here until somebody receives it: to register it anew for each message would cost more than the message.
    """

    def __init__(self, sock: socket.socket, accepts: Any) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._decoder: msgspec.msgpack.Decoder[In] = msgspec.msgpack.Decoder(accepts)
        self._sending = asyncio.Lock()  # an event loop has one writer callback a socket: two tasks would lose one
        self._writable: asyncio.Future[None] | None = None
        #: What has arrived and nobody has received: packets, and errors that `receive` is to raise.
        self._arrived: deque[tuple[bytes, int | None] | BadMessage | OSError] = deque()
        self._ended = False  # the worker has closed its end; what is in `_arrived` still counts
        self._reading: asyncio.AbstractEventLoop | None = None
        self._receiver: asyncio.Future[None] | None = None
        self._told: Callable[[], None] | None = None
        #: One timer for all deadlines, set anew only when it goes off too early: most are met within milliseconds.
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        self._late = False
        self._rest: asyncio.TimerHandle | None = None
        self._rest_until = 0.0

    async def send(self, message: msgspec.Struct, fd: int | None = None) -> None:
        """Raises ChannelClosed when the worker has gone."""
        async with self._sending:
            while True:
                self._open()
                try:
                    _send(self._sock, message, fd)
                    return
                except BlockingIOError:
                    await self._until_writable()
                except (BrokenPipeError, ConnectionResetError) as error:
                    raise ChannelClosed from error

    def post(self, message: msgspec.Struct) -> bool:
        """Send it if that takes no waiting; whether it was sent. Raises ChannelClosed when the worker has gone."""
        self._open()
        if self._sending.locked():
            return False
        try:
            _send(self._sock, message, None)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed from error
        return True

    def expect(self, seconds: float | None) -> None:
        """`receive` raises TimeoutError once no message has come for so long from now; None: it waits for ever."""
        self._late = False
        if seconds is None:
            self._due = None
            return
        loop = asyncio.get_running_loop()
        self._due = loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = loop.call_at(self._due, self._look_at_clock, loop)

    def _look_at_clock(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._due is None:
            return
        if loop.time() < self._due:
            self._timer = loop.call_at(self._due, self._look_at_clock, loop)
            return
        self._due, self._late = None, True
        self._tell()

    async def receive(self) -> tuple[In, int | None]:
        """The next message and its descriptor, which is the caller's to close.

        Raises ChannelClosed, BadMessage, and TimeoutError after what `expect` has set.
        """
        while True:
            self._open()
            self._read()
            if self._arrived:
                break
            if self._ended:
                raise ChannelClosed
            if self._late:
                self._late = False
                raise TimeoutError
            self._receiver = asyncio.get_running_loop().create_future()
            try:
                await self._receiver
            except asyncio.CancelledError:
                self._due = None  # nobody waits any more
                raise
            finally:
                self._receiver = None
        found = self._arrived.popleft()
        self._due, self._late = None, False
        if isinstance(found, Exception):
            raise found
        return _decode(self._decoder, *found)

    def at_once(self, kind: type[Kind]) -> Kind | None:
        """The next message, where it is there, of this kind and without a descriptor. All else is left to `receive`."""
        self._open()
        if not self._arrived and not self._ended:
            self._pull()
        found = self._arrived[0] if self._arrived else None
        if found is None or isinstance(found, Exception) or found[1] is not None:
            return None
        try:
            message = self._decoder.decode(found[0])
        except msgspec.DecodeError:
            return None
        if not isinstance(message, kind):
            return None
        self._arrived.popleft()
        self._due, self._late = None, False
        return message

    def rest(self, seconds: float) -> None:
        """Hear nothing for so long but through `receive` and `at_once`, so that what arrives wakes nobody."""
        loop = asyncio.get_running_loop()
        self._stop_reading()
        self._rest_until = loop.time() + seconds
        if self._rest is None:
            self._rest = loop.call_at(self._rest_until, self._end_rest, loop)

    def _end_rest(self, loop: asyncio.AbstractEventLoop) -> None:
        self._rest = None
        if loop.time() < self._rest_until:
            self._rest = loop.call_at(self._rest_until, self._end_rest, loop)
        else:
            self._read()

    @property
    def waiting(self) -> bool:
        """Whether `receive` would return, or raise, at once."""
        return bool(self._arrived) or self._ended or self._late

    def watch(self, told: Callable[[], None]) -> None:
        """Call `told` in the event loop whenever something has arrived, also when nobody receives: a message, the end,
        or the time that `expect` has set."""
        self._told = told
        self._read()

    def close(self) -> None:
        """Close, once or more often; tasks that wait in `send` or `receive` get ChannelClosed."""
        fd = self._sock.fileno()
        # Before the descriptor is closed: its number may then belong to another socket, with callbacks of its own.
        self._stop_reading()
        for timer in (self._timer, self._rest):
            if timer is not None:
                timer.cancel()
        self._timer = self._rest = None
        if self._writable is not None:
            self._writable.get_loop().remove_writer(fd)
        for future in (self._writable, self._receiver):
            if future is not None and not future.done():
                future.set_exception(ChannelClosed())
        self._writable = self._told = None
        while self._arrived:
            found = self._arrived.popleft()
            if not isinstance(found, Exception):
                _discard(found[1])
        self._sock.close()

    def _open(self) -> None:
        if self._sock.fileno() < 0:
            raise ChannelClosed

    def _read(self) -> None:
        if self._reading is None and not self._ended and self._sock.fileno() >= 0:
            self._reading = asyncio.get_running_loop()
            self._reading.add_reader(self._sock.fileno(), self._take)

    def _stop_reading(self) -> None:
        loop, self._reading = self._reading, None
        if loop is not None:
            loop.remove_reader(self._sock.fileno())

    def _take(self) -> None:
        """One packet for each turn of the loop, so that a talkative worker does not starve the other tasks."""
        if self._pull():
            self._tell()

    def _pull(self) -> bool:
        """Take one packet from the socket; whether there was one, or the end."""
        try:
            packet = _receive(self._sock)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            self._ended = True
        except (BadMessage, OSError) as error:
            self._arrived.append(error)
        else:
            if packet[0]:
                self._arrived.append(packet)
            else:
                self._ended = True
        # A worker that nobody listens to fills its socket, and waits; not this process's memory.
        if self._ended or len(self._arrived) >= MOST_WAITING:
            self._stop_reading()
        return True

    def _tell(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)
        if self._told is not None:
            self._told()

    async def _until_writable(self) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        fd = self._sock.fileno()
        loop.add_writer(fd, wake)
        self._writable = future
        try:
            await future
        finally:
            # After `close` the number may already belong to another socket, with a callback of its own.
            if self._writable is not None:
                self._writable = None
                loop.remove_writer(fd)
