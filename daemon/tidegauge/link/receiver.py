"""The collector's side of one file: a pure state machine. Time is an argument, bytes go out as actions.

A shell (real or in a test) does this:

* for every message on `tidegauge/v1/+/file/#`: `commands.parse`, find or make the `Receiver` of (device, file id), call
  `handle(topic, command, payload, now)` and carry out the returned actions in order;
* `WriteChunk`: write the bytes at the offset, then call `written(...)`, which counts them and answers. A write that
  failed is not reported: the sender resends;
* `Verify`: hash the whole file and sync it to disk, then call `verified(ok)`;
* `Confirm`: the file is kept. Look up which blobs of this manifest are wanted (none for a blob), call `confirmed`;
* `Discard`: throw the bytes away, coverage is empty again;
* `Respond`: publish the answer on the device's `…/file-response`, QoS 1, not retained;
* at `deadline` (if not None) call `tick(now)`.

`stored: true` leaves this module through `confirmed` only, since the sender deletes its copy on it.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass

import msgspec

from tidegauge.link import ranges
from tidegauge.link.answers import nonce_of
from tidegauge.link.commands import AbortCommand, ChunkCommand, Command, FinCommand, InitCommand
from tidegauge.link.ranges import Ranges
from tidegauge.link.wire import FileResponse, Init, decode

SUCCESS = 0x00
FAILURE = 0x80

#: Longest lists in one answer: the sender comes back for the rest.
MAX_RANGES_TOLD = 64
MAX_WANTED_TOLD = 256
MAX_INIT_BYTES = 8192


class Reason(enum.StrEnum):
    """`reason_description` of an answer with `reason_code` 0x80. The first four are cured by sending again."""

    NO_INIT = "no_init"
    INCOMPLETE = "incomplete"
    CHUNK_HASH = "chunk_hash"
    FILE_HASH = "file_hash"
    BAD_INIT = "bad_init"
    CONFLICT = "filemeta_conflict"
    OUT_OF_RANGE = "out_of_range"
    TOO_LARGE = "too_large"
    CHUNK_TOO_LARGE = "chunk_too_large"
    TOO_FRAGMENTED = "too_fragmented"


class ReceiverLimits(msgspec.Struct, frozen=True):
    """`max_size` of a file and `max_chunk` of a payload, bytes; `max_ranges` of a coverage; `grace`: seconds between a
    `fin` and the answer "incomplete", since a `fin` may overtake chunks where several ingesters share the load.
    """

    max_size: int = 1 << 30
    max_chunk: int = 1 << 20
    max_ranges: int = 4096
    grace: float = 2.0


@dataclass(frozen=True, slots=True)
class WriteChunk:
    """Write `data` at `offset`, then call `written(topic, offset, offset + len(data), now)`."""

    topic: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Verify:
    """Hash the `size` bytes received, sync them to disk, then call `verified(ok)`."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """The file is stored: call `confirmed(topic, wanted)` with the blobs wanted of this manifest, () for a blob."""

    topic: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Throw the received bytes away."""


@dataclass(frozen=True, slots=True)
class Respond:
    response: FileResponse


Action = WriteChunk | Verify | Confirm | Discard | Respond


def told_once(answers: list[FileResponse]) -> list[FileResponse]:
    """Without the answers to chunks of which a later one to a chunk says all, and more."""
    kept: list[FileResponse] = []
    for answer in answers:
        if kept and _only_acks(kept[-1]) and _only_acks(answer) and _covers(answer, kept[-1]):
            kept.pop()
        kept.append(answer)
    return kept


def _only_acks(answer: FileResponse) -> bool:
    return bool(answer.acked) and answer == FileResponse(answer.topic, SUCCESS, acked=answer.acked)


def _covers(later: FileResponse, earlier: FileResponse) -> bool:
    return all(ranges.covers(later.acked, start, stop) for start, stop in earlier.acked)


class Receiver:
    """One file of one device.

    To go on after a restart, give back `init`, `coverage` (a smaller one is safe, the sender resends; never a larger)
    and `stored`. `file_id` is the SHA-256 of the file.
    """

    def __init__(
        self,
        file_id: str,
        limits: ReceiverLimits | None = None,
        *,
        init: Init | None = None,
        coverage: Ranges = (),
        stored: bool = False,
    ) -> None:
        self.file_id = file_id
        self.limits = limits or ReceiverLimits()
        self.init = init
        self.coverage: Ranges = ranges.merged(coverage, init.size) if init else ()
        self.stored = stored
        self.verifying = False
        #: What the board has said with its last question: each answer says it again.
        self.nonce = init.nonce if init else ""
        self.deadline: float | None = None
        self._fin: str | None = None

    @property
    def closing(self) -> bool:
        """Whether `fin` was said and waits for bytes that are lacking."""
        return self._fin is not None and not self.verifying

    @property
    def complete(self) -> bool:
        """Whether every byte has been written."""
        return self.init is not None and ranges.covers(self.coverage, 0, self.init.size)

    def covers_all_with(self, start: int, stop: int) -> bool:
        """Whether `[start, stop)` is the last that is lacking."""
        return self.init is not None and ranges.covers(ranges.add(self.coverage, start, stop), 0, self.init.size)

    def handle(self, topic: str, command: Command, payload: bytes, now: float) -> list[Action]:
        """One command of the sender. `topic` is echoed in the answer."""
        self.nonce = nonce_of(command, payload) or self.nonce
        match command:
            case InitCommand():
                return self._on_init(topic, payload)
            case ChunkCommand():
                return self._on_chunk(topic, command, payload)
            case FinCommand():
                return self._on_fin(topic, command, now)
            case AbortCommand():
                return self._on_abort(topic)

    def written(self, topic: str, start: int, stop: int, now: float) -> list[Action]:
        """The bytes `[start, stop)` of a `WriteChunk` are written: count them, answer, finish if it was the last."""
        self.coverage = ranges.add(self.coverage, start, stop)
        return [self._acked(topic, start), *self._finish(now)]

    def verified(self, ok: bool) -> list[Action]:
        """The outcome of `Verify`. On a mismatch nothing tells which bytes are wrong, so all go."""
        self.verifying = False
        topic, self._fin = self._fin, None
        if ok:
            self.stored = True
            return [Confirm(topic)] if topic else []
        size = self.init.size if self.init else 0
        self.coverage = ()
        answer: list[Action] = [self._failure(topic, Reason.FILE_HASH, missing=((0, size),))] if topic else []
        return [Discard(), *answer]

    def confirmed(self, topic: str, wanted: tuple[str, ...] = ()) -> list[Action]:
        """Answer "stored". With nothing wanted, the sender may delete its copy. A long list is told in parts."""
        return [Respond(FileResponse(topic, SUCCESS, stored=True, wanted=wanted[:MAX_WANTED_TOLD]))]

    def lost(self, topic: str) -> list[Action]:
        """Instead of `confirmed`: the stored file is gone (an older backup was restored). Ask for all of it."""
        self.stored, self.coverage = False, ()
        if self.init is None:
            return [self._failure(topic, Reason.NO_INIT)]
        return [Discard(), self._failure(topic, Reason.INCOMPLETE, missing=((0, self.init.size),))]

    def postponed(self, topic: str, retry_after: float) -> list[Action]:
        """Answer "not now" to any command (disk full, quota, too many transfers): ask again in so many seconds."""
        return [Respond(FileResponse(topic, SUCCESS, retry_after_ms=max(1, round(retry_after * 1000))))]

    def tick(self, now: float) -> list[Action]:
        """Answer "incomplete" where the grace after `fin` has passed."""
        if self.deadline is None or now < self.deadline:
            return []
        self.deadline = None
        topic, self._fin = self._fin, None
        if topic is None or self.init is None:
            return []
        gaps = ranges.missing(self.coverage, self.init.size)[:MAX_RANGES_TOLD]
        return [self._failure(topic, Reason.INCOMPLETE, missing=gaps)]

    def _on_init(self, topic: str, payload: bytes) -> list[Action]:
        if len(payload) > MAX_INIT_BYTES:
            return [self._failure(topic, Reason.BAD_INIT)]
        try:
            init: Init = decode(Init, payload)
        except msgspec.DecodeError:
            return [self._failure(topic, Reason.BAD_INIT)]
        if init.checksum != self.file_id:
            return [self._failure(topic, Reason.BAD_INIT)]
        if self.stored:
            self.init = self.init or init
            return [Confirm(topic)]
        if init.size > self.limits.max_size:
            return [self._failure(topic, Reason.TOO_LARGE)]
        if self.init is not None and self.init.size != init.size:
            return [self._failure(topic, Reason.CONFLICT)]
        self.init = init
        return [self._acked(topic, 0)]

    def _on_chunk(self, topic: str, command: ChunkCommand, payload: bytes) -> list[Action]:
        stop = command.offset + len(payload)
        if self.stored:
            return [Respond(FileResponse(topic, SUCCESS, acked=((command.offset, stop),)))]
        if self.init is None:
            return [self._failure(topic, Reason.NO_INIT)]
        if len(payload) > self.limits.max_chunk:
            return [self._failure(topic, Reason.CHUNK_TOO_LARGE)]
        if not payload or stop > self.init.size:
            return [self._failure(topic, Reason.OUT_OF_RANGE)]
        if hashlib.sha256(payload).hexdigest() != command.sha256:
            return [self._failure(topic, Reason.CHUNK_HASH)]
        if ranges.covers(self.coverage, command.offset, stop):
            return [self._acked(topic, command.offset)]
        if len(ranges.add(self.coverage, command.offset, stop)) > self.limits.max_ranges:
            return [self._failure(topic, Reason.TOO_FRAGMENTED)]
        return [WriteChunk(topic, command.offset, payload)]

    def _on_fin(self, topic: str, command: FinCommand, now: float) -> list[Action]:
        if self.stored:
            return [Confirm(topic)]
        if self.init is None:
            return [self._failure(topic, Reason.NO_INIT)]
        if command.size != self.init.size or command.sha256 != self.file_id:
            return [self._failure(topic, Reason.CONFLICT)]
        self._fin = topic
        return self._finish(now)

    def _on_abort(self, topic: str) -> list[Action]:
        if self.stored or self.verifying:
            return [Respond(FileResponse(topic, SUCCESS))]
        self.init, self.coverage, self._fin, self.deadline = None, (), None, None
        return [Discard(), Respond(FileResponse(topic, SUCCESS))]

    def _finish(self, now: float) -> list[Action]:
        if self._fin is None or self.verifying or self.init is None:
            return []
        if self.complete:
            self.verifying, self.deadline = True, None
            return [Verify(self.file_id, self.init.size)]
        if self.deadline is None:
            self.deadline = now + self.limits.grace
        return []

    def _acked(self, topic: str, offset: int) -> Respond:
        """All of the coverage, or its start and the range at `offset` where it has too many parts."""
        told = self.coverage
        if len(told) > MAX_RANGES_TOLD:
            here = [part for part in told if part[0] <= offset < part[1]]
            told = (*told[: MAX_RANGES_TOLD - 1], *here)
        return Respond(FileResponse(topic, SUCCESS, acked=told))

    @staticmethod
    def _failure(topic: str, reason: Reason, missing: Ranges = ()) -> Respond:
        return Respond(FileResponse(topic, FAILURE, reason.value, missing=missing))
