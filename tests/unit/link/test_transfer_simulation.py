"""Sender and receiver through loss, duplicates, disorder and restarts, on a simulated clock.

Whatever happens for a while, it ends with equal bytes, or with a refusal that has a name, in bounded resends.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.link import commands
from tidegauge.link.receiver import Confirm, Discard, Receiver, ReceiverLimits, Respond, Verify, WriteChunk
from tidegauge.link.sender import Action, Done, Outgoing, Publish, Refused, SendChunk, Sender, SenderLimits, Wait
from tidegauge.link.transfer import FileRef
from tidegauge.link.wire import FileResponse, Init, decode, encode

DEVICE = "cam-1"
CHUNK = 4096
LIMITS = SenderLimits(chunk=CHUNK, window=3, answer_timeout=1.0, retry_cap=8.0)

DELIVER, LOSE, TWICE, LATE, BREAK_LINK, RESTART_BOARD, RESTART_COLLECTOR, FORGET, SCRAMBLE = range(9)
FATES = st.lists(st.integers(DELIVER, SCRAMBLE), max_size=60)


class World:
    """A board with one bundle, a collector, and a network between them that deals out one fate a message."""

    def __init__(self, head: bytes, parts: list[bytes], fates: list[int], seed: int) -> None:
        self.files = {hashlib.sha256(data).hexdigest(): data for data in (head, *parts)}
        self.head, *self.part_ids = [hashlib.sha256(data).hexdigest() for data in (head, *parts)]
        self.outgoing = Outgoing(
            "bundle-1",
            FileRef(self.head, len(head), "manifest.json", {"kind": "manifest"}),
            {name: FileRef(name, len(self.files[name]), name, {"kind": "blob"}) for name in self.part_ids},
        )
        self.fates = list(reversed(fates))
        self.rng = Random(seed)
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.wait: float | None = None
        self.receivers: dict[str, Receiver] = {}
        self.received: dict[str, bytearray] = {}
        self.kept: dict[str, bytes] = {}
        self.outcome: Done | Refused | None = None
        self.chunk_bytes = 0
        self.most_in_flight = 0
        self.sender = self.new_sender()
        self.carry_out(self.sender.connected(None, self.now))

    def new_sender(self) -> Sender:
        sender = Sender(DEVICE, LIMITS, self.rng)
        sender.add(self.outgoing, self.now)
        return sender

    def at(self, when: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, what))

    def run(self, until: float = 100_000.0) -> None:
        while self.outcome is None and self.now < until:
            times = [self.events[0][0]] if self.events else []
            times += [self.wait] if self.wait is not None else []
            times += [r.deadline for r in self.receivers.values() if r.deadline is not None]
            assert times, "nothing is going to happen any more, and the bundle is neither done nor refused"
            self.now = max(self.now, min(times))
            if self.events and self.events[0][0] <= self.now:
                heapq.heappop(self.events)[2]()
            for file_id, receiver in list(self.receivers.items()):
                self.collector(file_id, receiver.tick(self.now))
            if self.wait is not None and self.wait <= self.now:
                self.wait = None
                self.carry_out(self.sender.tick(self.now))

    def carry_out(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Publish(topic, payload):
                    self.transmit(lambda t=topic, p=payload: self.arrive(t, p), payload)
                    self.carry_out(self.sender.sent(self.now))
                case SendChunk(_, file_id, offset, length):
                    data = self.files[file_id][offset : offset + length]
                    assert len(data) == length
                    self.chunk_bytes += length
                    topic = commands.chunk_topic(DEVICE, file_id, offset, hashlib.sha256(data).hexdigest())
                    self.transmit(lambda t=topic, d=data: self.arrive(t, d), data)
                    self.carry_out(self.sender.sent(self.now))
                case Wait(until):
                    self.wait = until
                case Done() | Refused():
                    self.outcome = action
        self.most_in_flight = max(self.most_in_flight, self.sender.in_flight)

    def transmit(self, deliver: Callable[[], None], payload: bytes = b"") -> None:
        fate = self.fates.pop() if self.fates else DELIVER
        delay = 0.01 + self.rng.random() * 0.01
        if fate == BREAK_LINK:
            self.at(self.now + delay, self.break_link)
        elif fate == RESTART_BOARD:
            self.at(self.now + delay, self.restart_board)
        elif fate in (RESTART_COLLECTOR, FORGET):
            self.at(self.now + delay, lambda: self.restart_collector(fate == FORGET))
        elif fate == SCRAMBLE:
            self.at(self.now + delay, self.scramble)
        if fate == LATE:
            delay += self.rng.random() * 20
        if fate != LOSE:
            self.at(self.now + delay, deliver)
        if fate == TWICE:
            self.at(self.now + delay * (1 + self.rng.random() * 100), deliver)

    def break_link(self) -> None:
        self.sender.disconnected()
        self.carry_out(self.sender.connected(None, self.now))

    def restart_board(self) -> None:
        self.sender = self.new_sender()
        self.carry_out(self.sender.connected(None, self.now))

    def restart_collector(self, forget: bool) -> None:
        """With or without what it knew of files under way; kept files stay."""
        if forget:
            self.received.clear()
            self.receivers.clear()
            return
        self.receivers = {
            file_id: Receiver(
                file_id, ReceiverLimits(grace=0.5), init=old.init, coverage=old.coverage, stored=file_id in self.kept
            )
            for file_id, old in self.receivers.items()
        }

    def scramble(self) -> None:
        """A power cut lost a page that was called written."""
        for data in self.received.values():
            if data:
                data[0] ^= 0xFF

    def arrive(self, topic: str, payload: bytes) -> None:
        where = commands.parse(topic)
        known = where.file_id in self.kept
        receiver = self.receivers.setdefault(
            where.file_id, Receiver(where.file_id, ReceiverLimits(grace=0.5), stored=known)
        )
        self.collector(where.file_id, receiver.handle(topic, where.command, payload, self.now))

    def collector(self, file_id: str, actions: list[Any]) -> None:
        todo = list(actions)
        receiver = self.receivers[file_id]
        data = self.received.setdefault(file_id, bytearray(len(self.files[file_id])))
        while todo:
            match todo.pop(0):
                case Respond(response):
                    self.transmit(lambda r=response: self.answer(r))
                case WriteChunk(topic, offset, piece):
                    data[offset : offset + len(piece)] = piece
                    todo[:0] = receiver.written(topic, offset, offset + len(piece), self.now)
                case Verify(sha256, size):
                    ok = hashlib.sha256(data).hexdigest() == sha256 and len(data) == size
                    if ok:
                        self.kept[sha256] = bytes(data)
                    todo[:0] = receiver.verified(ok)
                case Confirm(topic):
                    wanted = tuple(name for name in self.part_ids if name not in self.kept)
                    todo[:0] = receiver.confirmed(topic, wanted if file_id == self.head else ())
                case Discard():
                    data[:] = bytes(len(data))

    def answer(self, response: FileResponse) -> None:
        wire = decode(FileResponse, encode(response))
        self.carry_out(self.sender.response(wire, self.now))


@settings(max_examples=150, deadline=None)
@given(FATES, st.lists(st.integers(0, 5 * CHUNK), max_size=3, unique=True), st.integers(0, 2**16))
def test_ends_with_equal_bytes(fates: list[int], sizes: list[int], seed: int) -> None:
    content = Random(seed)
    parts = [content.randbytes(size) for size in sizes]
    world = World(content.randbytes(3 * CHUNK + 17), parts, fates, seed)
    world.run()
    assert world.outcome is not None, "still under way after a day"
    if isinstance(world.outcome, Done):
        assert world.kept == world.files
    else:
        # Only bytes that go bad again and again at the collector end a transfer here.
        assert world.outcome.reason in ("file_hash", "no_progress")
        assert fates.count(SCRAMBLE) + fates.count(FORGET) >= 3
    total = sum(len(data) for data in world.files.values())
    disturbances = sum(1 for fate in fates if fate != DELIVER)
    assert world.chunk_bytes <= total + disturbances * (total + LIMITS.window * CHUNK)
    assert world.most_in_flight <= LIMITS.window * CHUNK


def test_undisturbed_sends_each_byte_once() -> None:
    parts = [Random(1).randbytes(5 * CHUNK), b"", b"x"]
    world = World(b"{}" * 3000, parts, [], 1)
    world.run()
    assert isinstance(world.outcome, Done)
    assert world.kept == world.files
    assert world.chunk_bytes == sum(len(data) for data in world.files.values())


def test_board_restart_sends_only_the_rest() -> None:
    data = Random(1).randbytes(20 * CHUNK)
    fates = [DELIVER] * 30 + [RESTART_BOARD]
    world = World(data, [], fates, 1)
    world.run()
    assert isinstance(world.outcome, Done)
    assert world.chunk_bytes <= len(data) + LIMITS.window * CHUNK


def test_nothing_travels_that_the_collector_holds() -> None:
    parts = [Random(1).randbytes(5 * CHUNK)]
    world = World(b"manifest", parts, [], 1)
    world.kept[world.part_ids[0]] = parts[0]
    world.run()
    assert isinstance(world.outcome, Done)
    assert world.chunk_bytes == len(b"manifest")


def test_refused_where_the_file_is_damaged_on_the_board() -> None:
    """Each chunk fits its own hash, the whole doesn't fit its name: no resend can cure that."""
    world = World(b"manifest", [bytes(3 * CHUNK)], [], 1)
    world.files[world.part_ids[0]] = b"\1" + bytes(3 * CHUNK - 1)
    world.run()
    assert world.outcome == Refused("bundle-1", world.part_ids[0], "file_hash")
    assert world.chunk_bytes <= 3 * 3 * CHUNK + 8


def test_refused_where_the_collector_writes_nothing() -> None:
    world = World(b"m" * 3 * CHUNK, [], [], 1)
    arrive = world.arrive
    world.arrive = lambda topic, payload: (  # type: ignore[method-assign]
        None if isinstance(commands.parse(topic).command, commands.ChunkCommand) else arrive(topic, payload)
    )
    world.run()
    assert world.outcome == Refused("bundle-1", world.head, "no_progress")
    assert world.chunk_bytes <= (LIMITS.max_rounds + 1) * 3 * CHUNK


def test_without_answers_it_asks_for_ever_and_ever_less() -> None:
    world = World(b"m" * 3 * CHUNK, [], [], 1)
    asked: list[float] = []
    world.arrive = lambda _topic, _payload: asked.append(world.now)  # type: ignore[method-assign]
    world.run(until=1000.0)
    assert world.outcome is None
    assert world.chunk_bytes == 0
    assert 1000 / (LIMITS.answer_timeout + LIMITS.retry_cap) <= len(asked) <= 1000 / LIMITS.answer_timeout / 2


def sender_with(*keys: str) -> tuple[Sender, list[Any]]:
    sender = Sender(DEVICE, LIMITS, Random(1))
    for number, key in enumerate(keys):
        sender.add(Outgoing(key, FileRef(f"{number:064x}", 10, "manifest.json")), 0.0)
    return sender, sender.connected(None, 0.0)


def answer(number: int, command: str, **fields: Any) -> FileResponse:
    fields.setdefault("reason_code", 0)
    return FileResponse(f"tidegauge/v1/{DEVICE}/file/{number:064x}/{command}", **fields)


def test_a_postponed_bundle_lets_the_next_one_pass() -> None:
    sender, _ = sender_with("one", "two")
    assert sender.active == "one"
    out = sender.response(answer(0, "init", retry_after_ms=60_000), 1.0)
    assert sender.active == "two"
    assert isinstance(out[0], Publish)
    out = sender.response(answer(1, "init", stored=True), 2.0)
    assert out[0] == Done("two")
    assert out[-1] == Wait(61.0)
    out = sender.tick(61.0)
    assert isinstance(out[0], Publish)
    assert sender.active == "one"


def test_a_refusal_has_the_collectors_word_and_frees_the_queue() -> None:
    sender, _ = sender_with("one", "two")
    out = sender.response(answer(0, "init", reason_code=0x80, reason_description="too_large"), 1.0)
    assert out[0] == Refused("one", f"{0:064x}", "too_large")
    assert sender.active == "two"


def test_stored_without_wanted_is_the_only_way_to_done() -> None:
    sender, _ = sender_with("one")
    chunk_answer = answer(0, f"0/{'ab' * 32}", acked=((0, 10),), stored=True)
    for early in (answer(0, f"fin/10/{0:064x}", stored=True), chunk_answer, answer(7, "init", stored=True)):
        assert not any(isinstance(action, Done) for action in sender.response(early, 1.0))
    foreign = FileResponse(f"tidegauge/v1/other/file/{0:064x}/init", 0, stored=True)
    assert sender.response(foreign, 1.0) == []
    sender.response(answer(0, "init"), 1.0)
    assert not any(isinstance(action, Done) for action in sender.response(chunk_answer, 1.0))
    assert sender.response(answer(0, f"fin/10/{0:064x}", stored=True), 1.0)[0] == Done("one")


def test_blobs_wanted_that_there_are_none_of_are_refused_in_the_end() -> None:
    sender, _ = sender_with("one")
    out: list[Any] = sender.response(answer(0, "init", stored=True, wanted=("ee" * 32,)), 1.0)
    for _ in range(10):
        if isinstance(out[0], Refused):
            break
        out = sender.response(answer(0, f"fin/10/{0:064x}", stored=True, wanted=("ee" * 32,)), 1.0)
    assert out[0] == Refused("one", "ee" * 32, "wanted_again")


def test_chunks_fit_the_brokers_packet() -> None:
    sender = Sender(DEVICE, SenderLimits(chunk=256 * 1024), Random(1))
    sender.add(Outgoing("one", FileRef("0" * 64, 10**6, "x")), 0.0)
    sender.connected(100_000, 0.0)
    out = sender.response(answer(0, "init"), 0.0)
    chunks = [action for action in out if isinstance(action, SendChunk)]
    assert {action.length for action in chunks} == {100_000 - 512}


def test_the_answer_time_runs_from_the_last_packet_taken() -> None:
    sender, out = sender_with("one")
    (until,) = [action.until for action in out if isinstance(action, Wait)]
    # The packet is still on a slow link: no time-out, however long it takes.
    assert all(isinstance(action, Wait) for action in sender.tick(until + 100))
    (wait,) = sender.sent(200.0)
    assert isinstance(wait, Wait)
    assert wait.until > 200.0
    assert isinstance(sender.tick(wait.until)[0], Publish)


def test_init_is_byte_stable() -> None:
    payloads = set()
    for _ in range(2):
        _, out = sender_with("one")
        payloads |= {action.payload for action in out if isinstance(action, Publish)}
    (payload,) = payloads
    assert decode(Init, payload).checksum == "0" * 64


@pytest.mark.parametrize("garbage", [((5, 3),), ((-9, 10**15),), ((0, 3), (2, 5), (1, 2))])
def test_ranges_of_an_answer_are_not_believed(garbage: tuple[tuple[int, int], ...]) -> None:
    sender, _ = sender_with("one")
    sender.response(answer(0, "init", acked=garbage), 1.0)
    assert 0 <= sender.in_flight <= 10


def test_success_without_stored_is_not_the_end() -> None:
    """A collector that is still hashing says so much, and no more."""
    sender, _ = sender_with("one")
    sender.response(answer(0, "init", acked=((0, 10),)), 1.0)
    out = sender.response(answer(0, f"fin/10/{0:064x}"), 1.0)
    assert all(isinstance(action, Wait) for action in out)
    sender.sent(1.0)
    sender.sent(1.0)
    again = sender.tick(out[-1].until + 100)[0]
    assert isinstance(again, Publish)
    assert "/fin/" in again.topic


def test_a_slow_link_gets_smaller_chunks_from_the_next_file_on() -> None:
    sender = Sender(DEVICE, SenderLimits(chunk=256 * 1024), Random(1))
    for number in range(2):
        sender.add(Outgoing(f"file-{number}", FileRef(f"{number:064x}", 10**6, "x")), 0.0)
    sender.connected(None, 0.0)
    lengths = []
    for number in range(2):
        out = sender.response(answer(number, "init"), 0.0)
        lengths.append({action.length for action in out if isinstance(action, SendChunk)} - {10**6 % (256 * 1024)})
        sender.link_speed(20_000.0)
        sender.remove(f"file-{number}", 0.0)
    assert lengths == [{256 * 1024}, {5_000}]


def sent_by(sender: Sender, out: list[Action], size: int) -> list[SendChunk]:
    """What a file's sender sends, chunk by chunk, where each is acknowledged before the next answer is given."""
    chunks, acked = [action for action in out if isinstance(action, SendChunk)], 0
    waiting = list(chunks)
    while waiting:
        chunk = waiting.pop(0)
        acked = chunk.offset + chunk.length
        out = sender.response(answer(0, f"{chunk.offset}/{0:064x}", acked=((0, acked),)), 0.0)
        more = [action for action in out if isinstance(action, SendChunk)]
        chunks += more
        waiting += more
    assert acked == size
    return chunks


def test_a_link_that_turns_out_fast_gets_larger_chunks_at_once_and_no_byte_twice() -> None:
    size = 3_000_001
    sender = Sender(DEVICE, SenderLimits(chunk=256 * 1024), Random(1))
    sender.link_speed(125_000.0)
    sender.add(Outgoing("file", FileRef(f"{0:064x}", size, "x")), 0.0)
    sender.connected(200_000, 0.0)
    out = sender.response(answer(0, "init"), 0.0)
    sender.link_speed(50_000_000.0)
    chunks = sent_by(sender, out, size)
    assert chunks[0].length == 31_250 and max(chunk.length for chunk in chunks) == 4 * 31_250, (
        "the broker's limit holds"
    )
    ends = [chunk.offset + chunk.length for chunk in chunks]
    assert [chunk.offset for chunk in chunks] == [0, *ends[:-1]]
    assert all(chunk.offset % chunk.length == 0 for chunk in chunks[:-1])
    assert len(chunks) < 8 + 4 + size / (4 * 31_250)


def test_chunks_that_were_too_large_do_not_grow_again() -> None:
    """MQTT 3.1.1 says so by hanging up; the speed of those that do arrive is no reason to try again."""
    size = 1_000_000
    sender = Sender(DEVICE, SenderLimits(chunk=64 * 1024), Random(1))
    sender.add(Outgoing("file", FileRef(f"{0:064x}", size, "x")), 0.0)
    for _ in range(4):
        sender.connected(None, 0.0)
        out = sender.response(answer(0, "init"), 0.0)
    sender.link_speed(50_000_000.0)
    assert {chunk.length for chunk in sent_by(sender, out, size)} == {32 * 1024, size % (32 * 1024)}
