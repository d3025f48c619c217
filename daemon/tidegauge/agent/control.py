"""The control socket: how the command line on the same board reaches a running agent.

A Unix socket in the state folder, mode 0600: who may read the state may command the agent. Its path may be longer than
the 107 bytes that an address holds, so both ends go through `/proc/self/fd`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tidegauge.agent.commands import Operator
from tidegauge.agent.control_messages import MAX_REQUEST, SOCKET, VERSION, Answer, AnyCommand, Request
from tidegauge.agent.status import Observer
from tidegauge.errors import TidegaugeError
from tidegauge.exitcodes import ExitCode
from tidegauge.ram_folder import own_files

REQUEST_SECONDS = 5.0
#: `struct ucred` of unix(7): pid, uid, gid.
_CREDENTIALS = struct.Struct("3i")


class CommandRefused(TidegaugeError):
    """The agent would not do it."""

    exit_code = ExitCode.REFUSED


class _Versioned(msgspec.Struct):
    version: int


@contextmanager
def _address(folder: Path) -> Iterator[str]:
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


#: From Python 3.13 on asyncio removes the socket's file itself, by its address: that goes through a closed descriptor.
_OURS: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}


class ControlServer:
    """`run()` for ever, one connection a request."""

    def __init__(self, folder: Path, operator: Operator, observer: Observer) -> None:
        self._folder, self._operator, self._observer = folder, operator, observer
        self._socket: socket.socket | None = None

    def listen(self) -> None:
        """From now on commands may come; they are answered once `run` runs."""
        (self._folder / SOCKET).unlink(missing_ok=True)  # of an agent that was killed: one at a time owns the folder
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with _address(self._folder) as address:
            sock.bind(address)
        (self._folder / SOCKET).chmod(0o600)  # before it listens: nobody is let in earlier
        sock.listen()
        self._socket = sock

    async def run(self) -> None:
        if self._socket is None:
            self.listen()
        server = await asyncio.start_unix_server(self._connection, sock=self._socket, limit=MAX_REQUEST, **_OURS)
        try:
            async with server:
                await server.serve_forever()
        finally:
            (self._folder / SOCKET).unlink(missing_ok=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                line = await reader.readuntil(b"\n")
            answer = await self._answer(line, _peer(writer))
            writer.write(msgspec.json.encode(answer) + b"\n")
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # a peer that is silent, gone or talks too much gets no answer
        finally:
            writer.close()

    async def _answer(self, line: bytes, who: str) -> Answer:
        try:
            version = msgspec.json.decode(line, type=_Versioned).version
            if version != VERSION:
                return Answer(
                    VERSION,
                    False,
                    f"the agent speaks version {VERSION} of the control protocol, the command version {version}",
                    "restart the agent with the version that is installed",
                )
            request = msgspec.json.decode(line, type=Request)
        except msgspec.DecodeError as error:
            return Answer(VERSION, False, f"the request can't be read: {error}")
        try:
            sentence = await self._operator.carry_out(request.command, who)
        except TidegaugeError as error:
            return Answer(VERSION, False, error.problem, error.cure)
        report = await asyncio.to_thread(self._observer.report)
        return Answer(VERSION, True, sentence, status=report)


def _peer(writer: asyncio.StreamWriter) -> str:
    sock = writer.get_extra_info("socket")
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return f"uid {uid}, pid {pid}"


def ask(folder: Path, command: AnyCommand, timeout: float = 10.0) -> Answer:
    """Send a command to the agent of this state folder; wait at most `timeout` seconds for its answer.

    Raises TidegaugeError where no agent answers, CommandRefused where it says no.
    """
    request = msgspec.json.encode(Request(VERSION, command)) + b"\n"
    try:
        data = _exchange(own_files(folder), request, timeout)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        raise TidegaugeError(
            f"no agent runs with the state folder {folder}", "start it: `tidegauge agent run --config agent.toml`"
        ) from error
    except PermissionError as error:
        raise TidegaugeError(f"{folder / SOCKET} may not be opened", "run the command as the agent's user") from error
    except TimeoutError as error:
        raise TidegaugeError(f"the agent gave no answer within {timeout:.0f} s", "see its log") from error
    try:
        answer = msgspec.json.decode(data, type=Answer)
    except msgspec.DecodeError as error:
        raise TidegaugeError(
            f"the agent's answer can't be read ({error})", "restart the agent with the version that is installed"
        ) from error
    if not answer.ok:
        raise CommandRefused(answer.sentence, answer.cure)
    return answer


def _exchange(folder: Path, request: bytes, timeout: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout)
        with _address(folder) as address:
            sock.connect(address)
        sock.sendall(request)
        parts = []
        while part := sock.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)
