"""One file on its way to the collector: the pure state machine of a sender. Time is an argument.

The state is two sets of byte ranges: what the collector has acknowledged, and what has been sent since the last word
of the collector about the whole. Their difference is in flight and bounded by the window; the first gap is what to
send next. An `init` or a `fin` answer replaces both, so loss, duplicates, and a restart of either side are one case.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from random import Random

import msgspec

from tidegauge.link import ranges
from tidegauge.link.commands import ChunkCommand, Command, FinCommand, InitCommand, fin_topic, init_topic
from tidegauge.link.ranges import Ranges
from tidegauge.link.receiver import Reason
from tidegauge.link.wire import FileResponse, Init, Question, encode

#: A chunk is never made smaller than this, whatever a broker's limit.
MIN_CHUNK = 4096


class SenderLimits(msgspec.Struct, frozen=True):
    """`chunk` bytes of one payload; `window`: chunks not yet answered by the collector; `answer_timeout` seconds until
    a command is repeated, growing with full jitter up to `retry_cap`; `max_rounds`: resends of chunks without progress
    until a transfer is refused; `max_hash_failures`: whole files rejected by their hash until it is; `open_files`:
    files begun and not yet stored.
    """

    chunk: int = 256 * 1024
    window: int = 8
    answer_timeout: float = 15.0
    retry_cap: float = 300.0
    max_rounds: int = 20
    max_hash_failures: int = 3
    open_files: int = 4


class FileRef(msgspec.Struct, frozen=True):
    """A file to send. `file_id` is its SHA-256; `user_data` must be the same at each attempt."""

    file_id: str
    size: int
    name: str
    user_data: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish `payload` (small) at `topic`, not retained; then call `Sender.sent`."""

    topic: str
    payload: bytes
    qos: int = 1


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Read `length` bytes at `offset` of a file of outgoing `key`, publish them at `commands.chunk_topic(…)` with
    their SHA-256, QoS 1, not retained; then call `Sender.sent`. The bytes never enter the state machine.
    """

    key: str
    file_id: str
    offset: int
    length: int


class State(enum.Enum):
    IDLE = "idle"
    OPENING = "opening"
    SENDING = "sending"
    CLOSING = "closing"
    STORED = "stored"
    FAILED = "failed"


#: Reasons that sending again can cure.
CURABLE = {Reason.NO_INIT, Reason.INCOMPLETE, Reason.CHUNK_HASH, Reason.FILE_HASH}


class FileTransfer:
    """One file. Each method returns what to publish; `state` and `reason` tell the outcome, `wanted` the last answer's.

    `start` opens or resumes, after each connection; `answer` takes the collector's answer to `command`; `timeout` is
    called when nothing has been heard for `pause()` seconds since the last publish.
    """

    def __init__(
        self, device: str, key: str, file: FileRef, limits: SenderLimits, rng: Random, nonce: str = ""
    ) -> None:
        self.file = file
        self.state = State.IDLE
        self.reason = ""
        self.wanted: tuple[str, ...] = ()
        self.acked: Ranges = ()
        #: Bytes of the window that other files of the same board have in flight.
        self.reserved = 0
        #: The largest chunk that broker and link allow now: chunks grow up to it, by doubling.
        self.allowed = limits.chunk
        self._device, self._key, self._limits, self._rng, self._nonce = device, key, limits, rng, nonce
        self._sent: Ranges = ()
        self._chunk = self._ceiling = limits.chunk
        self._best = 0
        self._rounds = 0
        self._hash_failures = 0
        self._unanswered = 0

    @property
    def in_flight(self) -> int:
        """Bytes sent and not yet acknowledged by the collector."""
        return ranges.total(ranges.union(self._sent, self.acked)) - ranges.total(self.acked)

    def pause(self) -> float:
        """Seconds to wait for an answer: the time-out plus full jitter over an exponential back-off."""
        limits = self._limits
        spread = min(limits.retry_cap, limits.answer_timeout * 2.0 ** min(self._unanswered, 16))
        return limits.answer_timeout + self._rng.uniform(0.0, spread)

    def start(self, largest_chunk: int) -> list[Publish | SendChunk]:
        """Say `init`; its answer tells where to go on. The chunk stays what it was unless the broker allows less."""
        self.allowed = largest_chunk
        self._chunk = max(MIN_CHUNK, min(self._chunk, largest_chunk))
        init = Init(self.file.name, self.file.size, self.file.file_id, self.file.user_data, self._nonce)
        self.state = State.OPENING
        return [Publish(init_topic(self._device, self.file.file_id), encode(init))]

    def close(self) -> list[Publish | SendChunk]:
        """Say `fin`: after the last chunk, and again for a manifest when its wanted blobs are stored."""
        self.state = State.CLOSING
        question = encode(Question(self._nonce)) if self._nonce else b""
        return [Publish(fin_topic(self._device, self.file.file_id, self.file.size), question)]

    def refill(self) -> list[Publish | SendChunk]:
        """Room in the window has come by another file's answer."""
        return self._fill() if self.state is State.SENDING else []

    def interrupt(self) -> None:
        """The connection is gone; what was in flight is unknown until the next `init` is answered."""
        if self.state not in (State.STORED, State.FAILED):
            self.state = State.IDLE

    def timeout(self) -> list[Publish | SendChunk]:
        """Nothing heard: ask again. A stalled window asks by `init` what has arrived."""
        self._unanswered += 1
        return self.close() if self.state is State.CLOSING else self.start(self._chunk)

    def answer(self, command: Command, response: FileResponse) -> list[Publish | SendChunk]:
        """The collector's word on `command`. A late answer to an earlier state is never taken for a new one."""
        opening = isinstance(command, InitCommand) and self.state is State.OPENING
        closing = isinstance(command, FinCommand) and self.state is State.CLOSING
        if not (opening or closing or (isinstance(command, ChunkCommand) and self._active)):
            return []
        self._unanswered = 0
        if response.reason_code != 0:
            return self._on_failure(command, response)
        if isinstance(command, ChunkCommand):
            return self._on_acked(response)
        if response.stored:
            self.state, self.wanted = State.STORED, response.wanted
            return []
        if opening:
            return self._resume(ranges.merged(response.acked, self.file.size))
        if response.missing:
            return self._resume(self._without(response.missing))
        return []  # accepted and still being checked: the final answer follows, or `timeout` asks again

    @property
    def _active(self) -> bool:
        return self.state in (State.SENDING, State.CLOSING)

    def _on_acked(self, response: FileResponse) -> list[Publish | SendChunk]:
        self.acked = ranges.union(self.acked, ranges.merged(response.acked, self.file.size))
        self._note_progress()
        return self._fill() if self.state is State.SENDING else []

    def _on_failure(self, command: Command, response: FileResponse) -> list[Publish | SendChunk]:
        reason = response.reason_description
        if reason == Reason.CHUNK_HASH and isinstance(command, ChunkCommand):
            return self._resume(self.acked)
        if reason == Reason.NO_INIT:
            return self.start(self._chunk) if self._count_round() else []
        if reason == Reason.FILE_HASH:
            self._hash_failures += 1
            if self._hash_failures >= self._limits.max_hash_failures:
                return self._fail(Reason.FILE_HASH)
        if reason in CURABLE:
            # Without a list of what is missing (EMQX sends none), all of it is sent again.
            return self._resume(self._without(response.missing) if response.missing else ())
        return self._fail(reason or f"reason code {response.reason_code:#04x}")

    def _without(self, gaps: Ranges) -> Ranges:
        return ranges.missing(ranges.merged(gaps, self.file.size), self.file.size)

    def _resume(self, acked: Ranges) -> list[Publish | SendChunk]:
        """Take the collector's word for what it has, forget what was in flight, and send the rest."""
        lost = ranges.total(ranges.union(self._sent, self.acked)) > ranges.total(acked)
        self.acked, self._sent = acked, ()
        if lost and not self._count_round():
            return []
        self._note_progress()
        return self._fill()

    def _note_progress(self) -> None:
        have = ranges.total(self.acked)
        if have > self._best:
            self._best, self._rounds = have, 0

    def _count_round(self) -> bool:
        """Count a resend; False ends the transfer. Progress beyond the best so far starts the count again, so that the
        number of resends is bounded by the number of chunks, whatever the other side does.

        Rounds without progress also halve the chunk: MQTT 3.1.1 has no way to say that a packet is too large but to
        close the connection.
        """
        self._rounds += 1
        if self._rounds > self._limits.max_rounds:
            self._fail("no_progress")
            return False
        if self._rounds % 3 == 0:
            self._chunk = self._ceiling = max(MIN_CHUNK, self._chunk // 2)
        return True

    def _fail(self, reason: str) -> list[Publish | SendChunk]:
        self.state, self.reason = State.FAILED, str(reason)
        return []

    def _fill(self) -> list[Publish | SendChunk]:
        """Chunks until the window is full, then `fin` behind the last one. Chunks lie on the grid of the chunk size.

        A link turns out faster than was assumed: chunks double where the next one lies on the coarser grid too, so that
        no byte goes twice.
        """
        self.state = State.SENDING
        out: list[Publish | SendChunk] = []
        flying, done = self.in_flight + self.reserved, ranges.union(self._sent, self.acked)
        while (at := ranges.first_gap(done, self.file.size)) is not None:
            while 2 * self._chunk <= min(self.allowed, self._ceiling) and at % (2 * self._chunk) == 0:
                self._chunk *= 2
            start = at - at % self._chunk
            stop = min(start + self._chunk, self.file.size)
            fresh = ranges.total(ranges.add(done, start, stop)) - ranges.total(done)
            if flying and flying + fresh > self._limits.window * self._chunk:
                return out
            out.append(SendChunk(self._key, self.file.file_id, start, stop - start))
            self._sent, done, flying = (
                ranges.add(self._sent, start, stop),
                ranges.add(done, start, stop),
                flying + fresh,
            )
        return [*out, *self.close()]
