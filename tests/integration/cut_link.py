"""A proxy to a broker whose connections end, or stand still, in each way in which networks do it.

It reads the MQTT packets that clients send, so that a cut comes while one is in flight, and a test sees what was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import Literal, NamedTuple

#: `reset`: a TCP RST, as of a rebooted router; `end`: a FIN, as of a process that has ended; `silence`: neither, as of
#: a pulled cable.
How = Literal["reset", "end", "silence"]

PUBLISH = 3


class Sent(NamedTuple):
    """A PUBLISH: the number of its connection, and the flag by which a client library sends by itself once more."""

    connection: int
    topic: str
    duplicate: bool


def packets(buffer: bytearray) -> list[tuple[int, bytes]]:
    """The whole packets at the front of `buffer`, which loses them: first byte, and what follows the length."""
    out = []
    while True:
        length = shift = 0
        for at in range(1, min(5, len(buffer))):
            length |= (buffer[at] & 0x7F) << shift
            shift += 7
            if buffer[at] < 0x80:
                break
        else:
            return out
        if len(buffer) < at + 1 + length:
            return out
        out.append((buffer[0], bytes(buffer[at + 1 : at + 1 + length])))
        del buffer[: at + 1 + length]


class _Pair:
    """One client's connection and its twin to the broker. `flows`: what comes is passed on."""

    def __init__(self, client: asyncio.StreamWriter, broker: asyncio.StreamWriter) -> None:
        self.client, self.broker = client, broker
        self.flows = asyncio.Event()
        self.flows.set()
        self.over = False


class CutLink:
    """`published`: what clients have sent. `cut_at`: cut this way after so many chunks, the last of which stays."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self.published: list[Sent] = []
        self.cut_at: tuple[int, How] | None = None
        self.cuts = 0
        self._target, self._chunks, self._connections = target, 0, 0
        self._pairs: list[_Pair] = []
        self._serving: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[CutLink]:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = int(server.sockets[0].getsockname()[1])
        try:
            yield self
        finally:
            server.close()
            for pair in self._pairs:
                pair.flows.set()
                pair.client.transport.abort()
                pair.broker.transport.abort()
            if self._serving:
                await asyncio.wait(self._serving)

    def hold(self) -> None:
        """Nothing passes on the connections of now, until `let_go`."""
        for pair in self._pairs:
            pair.flows.clear()

    def let_go(self) -> None:
        for pair in self._pairs:
            pair.flows.set()

    def cut(self, how: How) -> None:
        """End the connections of now; those that come later work."""
        self.cuts += 1
        for pair in self._pairs:
            if pair.over or pair.client.transport.is_closing():
                continue
            pair.over = True
            if how == "silence":
                pair.flows.clear()
                continue
            pair.broker.transport.abort()
            if how == "end":
                pair.client.write_eof()
                pair.flows.set()  # what still comes is read, or the kernel would answer it with a reset
                continue
            raw = pair.client.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            pair.client.transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # the broker is down: so is the link
            writer.transport.abort()
            return
        pair = _Pair(writer, back)
        self._pairs.append(pair)
        self._connections += 1
        down = asyncio.create_task(self._down(there, pair))
        try:
            await self._up(reader, pair, self._connections)
        except OSError:
            pass  # one end is gone, and so is the link
        finally:
            down.cancel()
            await asyncio.wait([down])
            back.transport.abort()
            writer.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, pair: _Pair, number: int) -> None:
        buffer = bytearray()
        while data := await reader.read(1 << 16):
            await pair.flows.wait()
            if pair.over:
                continue
            buffer += data
            for first, body in packets(buffer):
                if first >> 4 == PUBLISH:
                    self._note(first, body, number)
            if not pair.over:
                pair.broker.write(data)
                await pair.broker.drain()

    def _note(self, first: int, body: bytes, number: int) -> None:
        length = int.from_bytes(body[:2], "big")
        topic = body[2 : 2 + length].decode()
        self.published.append(Sent(number, topic, bool(first & 0x08)))
        self._chunks += topic.split("/")[-2].isdecimal()
        if self.cut_at is not None and self._chunks >= self.cut_at[0]:
            how, self.cut_at = self.cut_at[1], None
            self.cut(how)

    async def _down(self, there: asyncio.StreamReader, pair: _Pair) -> None:
        try:
            while data := await there.read(1 << 16):
                await pair.flows.wait()
                if pair.over:
                    return
                pair.client.write(data)
                await pair.client.drain()
        except OSError:
            return
        if not pair.over:
            pair.client.transport.abort()
