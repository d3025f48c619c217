"""`/metrics` and `/healthz` from a thread of their own, so that a blocked agent is seen rather than unreachable.

A small HTTP server on asyncio streams: at most `MAX_CONNECTIONS`, each request within `REQUEST_SECONDS`. The text is
rendered at most once in `SNAPSHOT_SECONDS`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from tidegauge.errors import TidegaugeError

MAX_CONNECTIONS = 8
REQUEST_SECONDS = 5.0
MAX_REQUEST = 8192
SNAPSHOT_SECONDS = 1.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class MetricsServer:
    """Start with `start()`, which returns when the port is bound; stop with `stop()`."""

    def __init__(
        self, host: str, port: int, render: Callable[[], bytes], health: Callable[[], tuple[bool, str]]
    ) -> None:
        self._host, self._port = host, port
        self._render, self._health = render, health
        self._snapshot = b""
        self._rendered = -SNAPSHOT_SECONDS
        self._connections = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._bound = threading.Event()
        self._failure: OSError | None = None
        self.port = 0
        self._thread = threading.Thread(target=self._main, name="metrics", daemon=True)

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/metrics"

    def start(self) -> None:
        """Raises TidegaugeError when the address can't be bound."""
        self._thread.start()
        self._bound.wait()
        if self._failure is not None:
            raise TidegaugeError(
                f"metrics can't listen on {self._host}:{self._port} ({self._failure.strerror})",
                "stop what listens there, or set the keys `metrics.host` and `metrics.port` in agent.toml",
            )

    def stop(self) -> None:
        loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None and self._thread.is_alive():
            loop.call_soon_threadsafe(stopping.set)
        self._thread.join(timeout=2)

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        try:
            server = await asyncio.start_server(self._connection, self._host, self._port, limit=MAX_REQUEST)
        except OSError as error:
            self._failure = error
            self._bound.set()
            return
        self.port = server.sockets[0].getsockname()[1]
        self._bound.set()
        async with server:
            await self._stopping.wait()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections > MAX_CONNECTIONS:
                await self._answer(writer, "503 Service Unavailable", b"too many connections\n")
                return
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                await self._route(writer, head)
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # a peer that is silent, gone or talks too much gets no answer
        finally:
            self._connections -= 1
            writer.close()

    async def _route(self, writer: asyncio.StreamWriter, head: bytes) -> None:
        parts = head.split(b"\r\n", 1)[0].split(b" ")
        path = parts[1].split(b"?")[0] if len(parts) == 3 else b""
        if parts[0] != b"GET":
            await self._answer(writer, "405 Method Not Allowed", b"only GET\n")
        elif path == b"/metrics":
            await self._answer(writer, "200 OK", self._text())
        elif path == b"/healthz":
            healthy, sentence = self._health()
            await self._answer(writer, "200 OK" if healthy else "503 Service Unavailable", f"{sentence}\n".encode())
        else:
            await self._answer(writer, "404 Not Found", b"/metrics or /healthz\n")

    def _text(self) -> bytes:
        now = time.monotonic()
        if now - self._rendered >= SNAPSHOT_SECONDS:
            self._snapshot = self._render()
            self._rendered = now
        return self._snapshot

    @staticmethod
    async def _answer(writer: asyncio.StreamWriter, status: str, body: bytes) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {TEXT}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
