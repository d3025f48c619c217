"""A link of a known speed to a broker on this machine, which counts what goes over it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

#: Bytes taken from a socket at a time: a packet of a slow link.
_PIECE = 1400
#: Bytes that the kernel may hold for the proxy: else it would hide the speed behind megabytes.
_HELD = 16 << 10


class SlowLink:
    """A proxy to a broker. `rate`: bytes a second in each direction, 0 as fast as it goes. `sent`: by clients."""

    def __init__(self, target: int, rate: float = 0.0) -> None:
        self.port, self.sent, self.answered = 0, 0, 0
        self._target, self._rate = target, rate

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[SlowLink]:
        listener = socket.create_server(("127.0.0.1", 0))
        if self._rate:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _HELD)
        self.port = int(listener.getsockname()[1])
        server = await asyncio.start_server(self._connection, sock=listener, limit=_HELD)
        try:
            yield self
        finally:
            server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target, limit=_HELD)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._up(reader, back))
                group.create_task(self._down(there, writer))
        except* (OSError, asyncio.IncompleteReadError):
            pass  # one end is gone, and so is the link
        finally:
            for each in (back, writer):
                each.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for size in self._pumped(reader, writer):
            self.sent += size

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for size in self._pumped(reader, writer):
            self.answered += size

    async def _pumped(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[int]:
        """Pass bytes on, no sooner than the link's speed allows. Raises OSError at the end of the stream."""
        loop = asyncio.get_running_loop()
        free_at = loop.time()
        while data := await reader.read(_PIECE if self._rate else 1 << 16):
            if self._rate:
                free_at = max(free_at, loop.time()) + len(data) / self._rate
                await asyncio.sleep(free_at - loop.time())
            writer.write(data)
            await writer.drain()
            yield len(data)
        raise ConnectionResetError("the other end has closed")
