"""The journal's way to the collector: a lane of its own, so that an hour of history never waits behind a bundle.

A segment is sent as a file like any other (`docs/protocol.md` §4), by a sender of its own, and deleted here when the
collector has stored it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from random import Random

from tidegauge.bundles.errors import BundleError
from tidegauge.clocks import monotonic
from tidegauge.link.commands import chunk_topic
from tidegauge.link.sender import Action, Done, Outgoing, Publish, Refused, SendChunk, Sender, SenderLimits, Wait
from tidegauge.link.shelf import read_chunk
from tidegauge.link.transfer import FileRef
from tidegauge.link.wire import FileResponse
from tidegauge.spool.journal import JournalFile
from tidegauge.spool.store import Spool

#: `user_data` of a segment's transfer.
RECORDS = "records"
#: Segments looked at in advance.
QUEUED = 8
#: Seconds after which a refused segment is offered again.
REFUSED_AGAIN = 6 * 3600.0

#: Publishes (topic, payload); False where the broker would not take it.
Deliver = Callable[[str, bytes], Awaitable[bool]]


class RecordLane:
    """`sent`: segments that are at the collector. Used from the event loop's thread only."""

    def __init__(
        self, device: str, limits: SenderLimits, rng: Random, spool: Spool, log: logging.Logger, nonce: str = ""
    ) -> None:
        self.sent = 0
        self._device, self._spool, self._log = device, spool, log
        self._sender = Sender(device, limits, rng, nonce)
        self._files: dict[str, JournalFile] = {}
        self._actions: deque[Publish | SendChunk] = deque()
        self._finished: deque[JournalFile] = deque()
        self._refused_until: dict[str, float] = {}
        self._look, self._until, self._connected = True, 0.0, False

    def look(self) -> None:
        """There may be new records."""
        self._look = True

    def connected(self, max_packet: int | None, now: float) -> None:
        self._look = self._connected = True
        self._take(self._sender.connected(max_packet, now))

    def disconnected(self) -> None:
        self._connected = False
        self._sender.disconnected()
        self._actions.clear()

    def link_speed(self, bytes_per_second: float) -> None:
        self._sender.link_speed(bytes_per_second)

    def response(self, response: FileResponse, now: float) -> None:
        """An answer of the collector, to this lane or to others."""
        self._take(self._sender.response(response, now))

    def due(self, now: float) -> bool:
        """Whether `step` has something to do."""
        if not self._connected:
            return False
        return bool(self._actions or self._finished or self._look or (self._until and now >= self._until))

    @property
    def until(self) -> float | None:
        """When it will have by time alone, on the monotonic clock."""
        return self._until or None

    async def step(self, deliver: Deliver) -> None:
        """Do one thing. Raises LinkError where the connection is lost."""
        if self._actions:
            await self._transmit(self._actions.popleft(), deliver)
            self._take(self._sender.sent(monotonic()))
        elif self._finished:
            file = self._finished.popleft()
            await asyncio.to_thread(self._spool.sent, file.number)
            self._look = True
        elif self._look:
            self._look = False
            await self._look_into_journal()
        else:
            self._until = 0.0
            self._take(self._sender.tick(monotonic()))

    async def _transmit(self, action: Publish | SendChunk, deliver: Deliver) -> None:
        if isinstance(action, Publish):
            await deliver(action.topic, action.payload)
            return
        file = self._files.get(action.key)
        if file is None:
            return  # given up meanwhile
        try:
            data, sha256 = await asyncio.to_thread(read_chunk, file.path, action.offset, action.length)
        except (BundleError, OSError) as error:
            self._log.warning("segment %s of the journal can't be read any more: %s", file.path.name, error)
            self._forget(action.key)
            self._take(self._sender.remove(action.key, monotonic()))
            return
        await deliver(chunk_topic(self._device, action.file_id, action.offset, sha256), data)

    async def _look_into_journal(self) -> None:
        files = await asyncio.to_thread(self._spool.journal.close)
        here = {file.path.name for file in files}
        for key in self._sender.keys - here:
            self._forget(key)
            self._take(self._sender.remove(key, monotonic()))
        for file in files:
            key = file.path.name
            if len(self._sender.keys) >= QUEUED:
                break
            waiting = file in self._finished or self._refused_until.get(key, 0.0) > monotonic()
            if key not in self._sender.keys and not waiting:
                await self._queue(key, file)

    async def _queue(self, key: str, file: JournalFile) -> None:
        try:
            data = await asyncio.to_thread(file.path.read_bytes)
        except OSError as error:
            self._log.warning("segment %s of the journal can't be read: %s", key, error)
            self._refused_until[key] = monotonic() + REFUSED_AGAIN
            return
        self._files[key] = file
        head = FileRef(hashlib.sha256(data).hexdigest(), len(data), key, {"kind": RECORDS})
        self._take(self._sender.add(Outgoing(key, head), monotonic()))

    def _take(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Publish() | SendChunk():
                    self._actions.append(action)
                case Wait():
                    self._until = action.until
                case Done():
                    self.sent += 1
                    self._finished.append(self._files[action.key])
                    self._forget(action.key)
                case Refused():
                    self._log.error("records are refused: %s (segment %s)", action.reason, action.key)
                    self._refused_until[action.key] = monotonic() + REFUSED_AGAIN
                    self._forget(action.key)

    def _forget(self, key: str) -> None:
        self._files.pop(key, None)
        self._look = True
