"""The board's side of the transfer queue: a pure state machine. Time and randomness are arguments, bytes never enter.

A shell gives events (`connected`, `response`, `sent`, `tick`, …) and carries out the returned actions in order. Each
`Publish` and `SendChunk` is answered by `sent(now)` when the broker has taken it (that starts the time-out of the
collector's answer, and gives no credit), or by `disconnected()`. `Wait(until)`: call `tick` then; the newest counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import msgspec

from tidegauge.link.commands import BadTopic, FileTopic, parse
from tidegauge.link.transfer import FileRef, FileTransfer, Publish, SendChunk, SenderLimits, State
from tidegauge.link.wire import FileResponse

__all__ = [
    "Action",
    "Done",
    "FileRef",
    "Outgoing",
    "Publish",
    "Refused",
    "SendChunk",
    "Sender",
    "SenderLimits",
    "Wait",
]

#: Room for the fixed header, topic and properties of a packet beside its payload.
PACKET_OVERHEAD = 512
#: Longest time that one chunk should take on the link, seconds: an alarm waits behind the two that are on their way.
CHUNK_SECONDS = 0.25
#: Longest `retry_after_ms` that is believed, seconds.
LONGEST_DELAY = 3600.0
#: Rounds in which the collector asks only for blobs that it has already called stored, or that there are none of.
MAX_WANTED_ROUNDS = 5


class Outgoing(msgspec.Struct, frozen=True):
    """What to send under one `key`: a bundle (`head` is its manifest, `parts` its blobs by SHA-256, sent when the
    collector wants them) or a lone file (no parts).
    """

    key: str
    head: FileRef
    parts: dict[str, FileRef] = {}


@dataclass(frozen=True, slots=True)
class Done:
    """The collector holds everything it wants of `key`: it may be deleted here."""

    key: str


@dataclass(frozen=True, slots=True)
class Refused:
    """`key` can't be sent and is out of the queue. `reason`: the collector's, or "no_progress", "wanted_again"."""

    key: str
    file_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until` but to listen."""

    until: float


Action = Publish | SendChunk | Done | Refused | Wait


@dataclass(slots=True)
class _Job:
    outgoing: Outgoing
    head: FileTransfer
    parts: dict[str, FileTransfer] = field(default_factory=dict)
    todo: list[str] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    empty_rounds: int = 0
    not_before: float = 0.0
    urgent: bool = False

    @property
    def current(self) -> list[FileTransfer]:
        """What is under way: blobs, or the manifest."""
        return list(self.parts.values()) or [self.head]

    @property
    def sends_blobs(self) -> bool:
        return bool(self.parts or self.todo)

    @property
    def in_flight(self) -> int:
        return sum(transfer.in_flight for transfer in self.current)

    def find(self, file_id: str) -> FileTransfer | None:
        return next((transfer for transfer in self.current if transfer.file.file_id == file_id), None)

    def interrupt(self) -> None:
        for transfer in self.current:
            transfer.interrupt()


class Sender:
    """One connection's worth of bundles, one after another; a bundle that must wait lets the next one pass."""

    def __init__(self, device: str, limits: SenderLimits, rng: Random, nonce: str = "") -> None:
        """`nonce`: sent with each question, for the answer to repeat."""
        self._device, self._limits, self._rng, self._nonce = device, limits, rng, nonce
        self._jobs: dict[str, _Job] = {}
        self._active: _Job | None = None
        self._largest_chunk: int | None = None
        self._fitting_chunk = limits.chunk
        self._held = self._held_urgent = 0.0
        self._unsent = 0
        self._pause = 0.0
        self._deadline = 0.0

    @property
    def active(self) -> str | None:
        """Key of what is being transferred: the last thing that a spool should evict."""
        return self._active.outgoing.key if self._active else None

    @property
    def keys(self) -> frozenset[str]:
        """All that is queued."""
        return frozenset(self._jobs)

    @property
    def in_flight(self) -> int:
        """Bytes sent and not yet acknowledged by the collector."""
        return self._active.in_flight if self._active else 0

    def add(self, outgoing: Outgoing, now: float) -> list[Action]:
        """Queue at the end; a key that is queued already is left as it is."""
        if outgoing.key not in self._jobs:
            head = FileTransfer(self._device, outgoing.key, outgoing.head, self._limits, self._rng, self._nonce)
            self._jobs[outgoing.key] = _Job(outgoing, head)
        return self._next(now)

    def prefer(self, key: str, now: float) -> list[Action]:
        """Send `key` before anything else, also while blobs are held but for those that somebody asked for."""
        job = self._jobs.pop(key, None)
        if job is None:
            return []
        self._jobs = {key: job, **self._jobs}
        job.urgent, job.not_before = True, 0.0
        if self._active not in (None, job):
            self._interrupt()
        return self._next(now)

    def hold(self, until: float, urgent_until: float, now: float) -> list[Action]:
        """No blob goes before `until`, and none that was preferred before `urgent_until`. Manifests go at any time."""
        self._held, self._held_urgent = until, urgent_until
        job = self._active
        if job is not None and self._is_held(job, now):
            self._interrupt()
            self._to_the_end(job)
        return self._next(now)

    def remove(self, key: str, now: float) -> list[Action]:
        """Forget `key` (evicted, or its files can't be read); the collector's rest expires there."""
        job = self._jobs.pop(key, None)
        if job is not None and job is self._active:
            self._active = None
        return self._next(now)

    def connected(self, max_packet: int | None, now: float) -> list[Action]:
        """A new connection. `max_packet` bytes as the broker announces it (MQTT 5), None where it doesn't."""
        self.disconnected()
        self._largest_chunk = self._limits.chunk if max_packet is None else max(1, max_packet - PACKET_OVERHEAD)
        return self._next(now)

    def link_speed(self, bytes_per_second: float) -> None:
        """Chunks from now on are cut so that one keeps the link busy for half a second at most; files under way take
        larger ones at the next answer, smaller ones from their next `init` on."""
        self._fitting_chunk = max(1, int(bytes_per_second * CHUNK_SECONDS))

    def disconnected(self) -> None:
        """Nothing can be sent; what was in flight is unknown."""
        self._largest_chunk, self._active, self._unsent = None, None, 0
        for job in self._jobs.values():
            job.interrupt()

    def sent(self, now: float) -> list[Action]:
        """The broker has taken one packet. The time for an answer runs from the last one on."""
        self._unsent = max(0, self._unsent - 1)
        self._deadline = now + self._pause
        return self._wait() if self._active and self._unsent == 0 else []

    def tick(self, now: float) -> list[Action]:
        """A deadline may have passed."""
        if self._largest_chunk is None:
            return []
        if self._active is None:
            return self._next(now)
        if self._unsent or now < self._deadline:
            return self._wait()
        return self._go(self._active, [each for one in self._active.current for each in one.timeout()], now)

    def response(self, response: FileResponse, now: float) -> list[Action]:
        """An answer of the collector. One that fits nothing that is going on is ignored: it is late, or not ours."""
        try:
            topic = parse(response.topic)
        except BadTopic:
            return []
        job = self._active
        transfer = job.find(topic.file_id) if job is not None and topic.device == self._device else None
        if job is None or transfer is None:
            return []
        if response.retry_after_ms > 0:
            return self._postpone(job, response.retry_after_ms / 1000, now)
        return self._on_answer(job, transfer, topic, response, now)

    def _on_answer(
        self, job: _Job, transfer: FileTransfer, topic: FileTopic, response: FileResponse, now: float
    ) -> list[Action]:
        self._give_room(job, transfer)
        out = transfer.answer(topic.command, response)
        self._deadline = now + self._pause
        if transfer.state is State.FAILED:
            return [
                *self._drop(job),
                Refused(job.outgoing.key, transfer.file.file_id, transfer.reason),
                *self._next(now),
            ]
        if transfer is not job.head:
            if transfer.state is State.STORED:
                job.stored.add(transfer.file.file_id)
                del job.parts[transfer.file.file_id]
            return self._go_on(job, out, now)
        if transfer.state is not State.STORED:
            return self._go(job, out, now)
        if not transfer.wanted:
            return [*self._drop(job), Done(job.outgoing.key), *self._next(now)]
        return self._on_wanted(job, transfer.wanted, now)

    def _on_wanted(self, job: _Job, wanted: tuple[str, ...], now: float) -> list[Action]:
        known = [name for name in dict.fromkeys(wanted) if name in job.outgoing.parts]
        if all(name in job.stored for name in known):  # nothing new, or nothing that there is
            job.empty_rounds += 1
            if job.empty_rounds > MAX_WANTED_ROUNDS:
                missing = next((name for name in wanted if name not in job.outgoing.parts), wanted[0])
                return [*self._drop(job), Refused(job.outgoing.key, missing, "wanted_again"), *self._next(now)]
        job.todo = known
        return self._go_on(job, [], now)

    def _go_on(self, job: _Job, packets: list[Publish | SendChunk], now: float) -> list[Action]:
        """Use what an answer has made free; begin the next blob while others are sent or wait to be stored; in the end
        ask, by the manifest's `fin`, whether that was all.
        """
        out = list(packets)
        for transfer in job.parts.values():
            self._give_room(job, transfer)
            out += transfer.refill()
        held = self._is_held(job, now)
        while job.todo and not held and self._may_open(job):
            file = job.outgoing.parts[job.todo.pop(0)]
            part = FileTransfer(self._device, job.outgoing.key, file, self._limits, self._rng, self._nonce)
            job.parts[file.file_id] = part
            out += part.start(self._chunk_limit())
        if not job.sends_blobs:
            out += job.head.close()
        elif not job.parts:
            self._active = None
            self._to_the_end(job)
            return self._next(now)
        return self._go(job, out, now)

    def _give_room(self, job: _Job, transfer: FileTransfer) -> None:
        """Only the first file that is not sent yet may fill the window: one that asked ahead of time waits for it."""
        first = next((each for each in job.current if each.state is not State.CLOSING), transfer)
        others = job.in_flight - transfer.in_flight
        full = self._limits.window * self._limits.chunk
        transfer.reserved = others if transfer in (first, job.head) or transfer.state is State.CLOSING else full
        transfer.allowed = self._chunk_limit()

    def _may_open(self, job: _Job) -> bool:
        """One file is sent at a time. The next one asks meanwhile, so that its answer is there when its turn comes; a
        few wait for the collector's disk."""
        begun = [transfer for transfer in job.parts.values() if transfer.state is not State.CLOSING]
        return len(begun) < 2 and len(job.parts) < self._limits.open_files

    def _postpone(self, job: _Job, seconds: float, now: float) -> list[Action]:
        job.not_before = now + min(seconds, LONGEST_DELAY)
        self._interrupt()
        self._to_the_end(job)
        return self._next(now)

    def _interrupt(self) -> None:
        if self._active is not None:
            self._active.interrupt()
        self._active = None

    def _to_the_end(self, job: _Job) -> None:
        self._jobs[job.outgoing.key] = self._jobs.pop(job.outgoing.key)

    def _is_held(self, job: _Job, now: float) -> bool:
        return job.sends_blobs and now < (self._held_urgent if job.urgent else self._held)

    def _ready_at(self, job: _Job) -> float:
        held = (self._held_urgent if job.urgent else self._held) if job.sends_blobs else 0.0
        return max(job.not_before, held)

    def _drop(self, job: _Job) -> list[Action]:
        self._jobs.pop(job.outgoing.key, None)
        self._active = None
        return []

    def _next(self, now: float) -> list[Action]:
        """Start the first job that may start, where none runs."""
        if self._largest_chunk is None or self._active is not None or not self._jobs:
            return []
        ready = next((job for job in self._jobs.values() if self._ready_at(job) <= now), None)
        if ready is None:
            return [Wait(min(self._ready_at(job) for job in self._jobs.values()))]
        self._active = ready
        if ready.todo and not ready.parts:
            return self._go_on(ready, [], now)
        packets = [each for one in ready.current for each in one.start(self._chunk_limit())]
        return self._go(ready, packets, now)

    def _chunk_limit(self) -> int:
        return min(self._largest_chunk or self._limits.chunk, self._fitting_chunk)

    def _go(self, job: _Job, packets: list[Publish | SendChunk], now: float) -> list[Action]:
        self._unsent += len(packets)
        if packets:
            self._pause = max(transfer.pause() for transfer in job.current)
            self._deadline = now + self._pause
        return [*packets, *self._wait()]

    def _wait(self) -> list[Action]:
        return [Wait(self._deadline)]
