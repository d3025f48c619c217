"""The collector's side: each answer that a sender relies on."""

from __future__ import annotations

import hashlib

import pytest

from tidegauge.link import commands
from tidegauge.link.receiver import (
    FAILURE,
    MAX_RANGES_TOLD,
    MAX_WANTED_TOLD,
    SUCCESS,
    Action,
    Confirm,
    Discard,
    Reason,
    Receiver,
    ReceiverLimits,
    Respond,
    Verify,
    WriteChunk,
    told_once,
)
from tidegauge.link.wire import FileResponse, Init, encode

DEVICE = "cam-1"
DATA = bytes(range(100))
ID = hashlib.sha256(DATA).hexdigest()
INIT = encode(Init("manifest.json", len(DATA), ID, {"kind": "manifest", "bundle": "bundle-1"}))


def send(receiver: Receiver, topic: str, payload: bytes = b"", now: float = 0.0) -> list[Action]:
    return receiver.handle(topic, commands.parse(topic).command, payload, now)


def init(receiver: Receiver, payload: bytes = INIT) -> list[Action]:
    return send(receiver, commands.init_topic(DEVICE, ID), payload)


def chunk(receiver: Receiver, start: int, stop: int, data: bytes | None = None, now: float = 0.0) -> list[Action]:
    data = DATA[start:stop] if data is None else data
    topic = commands.chunk_topic(DEVICE, ID, start, hashlib.sha256(DATA[start:stop]).hexdigest())
    out = send(receiver, topic, data, now)
    for action in list(out):
        if isinstance(action, WriteChunk):
            assert action.data == data
            out += receiver.written(action.topic, action.offset, action.offset + len(action.data), now)
    return out


def fin(receiver: Receiver, now: float = 0.0) -> list[Action]:
    return send(receiver, commands.fin_topic(DEVICE, ID, len(DATA)), now=now)


def answers(actions: list[Action]) -> list[FileResponse]:
    return [action.response for action in actions if isinstance(action, Respond)]


def refusal(actions: list[Action]) -> str:
    (answer,) = answers(actions)
    assert answer.reason_code == 0x80
    return answer.reason_description


def test_whole_file() -> None:
    receiver = Receiver(ID)
    (opened,) = answers(init(receiver))
    assert (opened.reason_code, opened.acked, opened.stored) == (0, (), False)
    (first,) = answers(chunk(receiver, 50, 100))
    assert first.acked == ((50, 100),)
    (second,) = answers(chunk(receiver, 0, 50))
    assert second.acked == ((0, 100),)
    assert fin(receiver) == [Verify(ID, 100)]
    (confirm,) = receiver.verified(True)
    assert isinstance(confirm, Confirm)
    (stored,) = answers(receiver.confirmed(confirm.topic, ("ee" * 32,)))
    assert (stored.stored, stored.wanted) == (True, ("ee" * 32,))
    assert stored.topic == commands.fin_topic(DEVICE, ID, 100)


def test_a_chunk_counts_only_when_it_is_written() -> None:
    receiver = Receiver(ID)
    init(receiver)
    topic = commands.chunk_topic(DEVICE, ID, 0, hashlib.sha256(DATA).hexdigest())
    assert send(receiver, topic, DATA) == [WriteChunk(topic, 0, DATA)]
    assert receiver.coverage == ()  # no answer either: a sender must not take it for safe


def test_fin_before_the_last_chunk_waits_for_it() -> None:
    receiver = Receiver(ID, ReceiverLimits(grace=2.0))
    init(receiver)
    chunk(receiver, 0, 50)
    assert fin(receiver, now=10.0) == []
    assert receiver.deadline == 12.0
    assert receiver.tick(11.9) == []
    late = chunk(receiver, 50, 100, now=11.95)
    assert Verify(ID, 100) in late
    assert receiver.deadline is None


def test_incomplete_names_what_is_missing_after_the_grace() -> None:
    receiver = Receiver(ID, ReceiverLimits(grace=2.0))
    init(receiver)
    chunk(receiver, 20, 40)
    fin(receiver, now=10.0)
    out = receiver.tick(12.0)
    assert refusal(out) == Reason.INCOMPLETE
    assert answers(out)[0].missing == ((0, 20), (40, 100))
    assert receiver.tick(99.0) == []
    chunk(receiver, 0, 20)
    assert chunk(receiver, 40, 100)[-1] != Verify(ID, 100), "the fin has been answered; a new one must come"
    assert fin(receiver) == [Verify(ID, 100)]


def test_duplicates_are_acknowledged_and_not_written_again() -> None:
    receiver = Receiver(ID)
    init(receiver)
    chunk(receiver, 0, 50)
    (answer,) = chunk(receiver, 0, 50)
    assert isinstance(answer, Respond)
    assert answer.response.acked == ((0, 50),)
    (again,) = answers(init(receiver))
    assert again.acked == ((0, 50),)


def test_a_stored_file_answers_by_confirm_only() -> None:
    receiver = Receiver(ID, stored=True)
    assert init(receiver) == [Confirm(commands.init_topic(DEVICE, ID))]
    assert fin(receiver) == [Confirm(commands.fin_topic(DEVICE, ID, 100))]
    (answer,) = answers(chunk(receiver, 0, 50))
    assert answer.acked == ((0, 50),)
    assert not answer.stored, "a chunk's answer knows nothing of wanted blobs"


def test_wrong_whole_hash_starts_again() -> None:
    receiver = Receiver(ID)
    init(receiver)
    chunk(receiver, 0, 100)
    fin(receiver)
    out = receiver.verified(False)
    assert out[0] == Discard()
    assert refusal(out) == Reason.FILE_HASH
    assert answers(out)[0].missing == ((0, 100),)
    assert receiver.coverage == ()


def test_a_second_fin_while_hashing_is_answered_once() -> None:
    receiver = Receiver(ID)
    init(receiver)
    chunk(receiver, 0, 100)
    assert fin(receiver) == [Verify(ID, 100)]
    assert fin(receiver) == []
    assert len(receiver.verified(True)) == 1


def test_lost_after_stored_is_asked_for_again() -> None:
    receiver = Receiver(ID, stored=True)
    (confirm,) = init(receiver)
    assert isinstance(confirm, Confirm)
    out = receiver.lost(confirm.topic)
    assert answers(out)[0].missing == ((0, 100),)
    assert not receiver.stored


def test_refusals_have_names() -> None:
    receiver = Receiver(ID, ReceiverLimits(max_size=99))
    assert refusal(chunk(receiver, 0, 50)) == Reason.NO_INIT
    assert refusal(fin(receiver)) == Reason.NO_INIT
    assert refusal(init(receiver)) == Reason.TOO_LARGE

    receiver = Receiver(ID, ReceiverLimits(max_chunk=60))
    for payload in (b"", b"{}", b"\xff", b"[" * 9000, encode(Init("x", 100, "00" * 32))):
        assert refusal(init(receiver, payload)) == Reason.BAD_INIT
    init(receiver)
    assert refusal(init(receiver, encode(Init("x", 101, ID)))) == Reason.CONFLICT
    assert refusal(send(receiver, commands.fin_topic(DEVICE, ID, 99))) == Reason.CONFLICT
    assert refusal(chunk(receiver, 0, 61)) == Reason.CHUNK_TOO_LARGE
    assert refusal(chunk(receiver, 90, 100, DATA[90:100] + b"x")) == Reason.OUT_OF_RANGE
    assert refusal(chunk(receiver, 0, 50, b"y" * 50)) == Reason.CHUNK_HASH
    assert receiver.coverage == ()


def test_memory_is_bounded_against_a_peer_that_fragments() -> None:
    receiver = Receiver(ID, ReceiverLimits(max_ranges=3))
    init(receiver)
    for start in (0, 10, 20):
        chunk(receiver, start, start + 1)
    assert refusal(chunk(receiver, 30, 31)) == Reason.TOO_FRAGMENTED
    assert answers(chunk(receiver, 1, 10)), "what closes a gap is still taken"


def test_answers_are_bounded() -> None:
    size = 1000
    data = bytes(size)
    file_id = hashlib.sha256(data).hexdigest()
    receiver = Receiver(file_id, ReceiverLimits(grace=0.0))
    send(receiver, commands.init_topic(DEVICE, file_id), encode(Init("x", size, file_id)))
    for start in range(0, size, 4):
        topic = commands.chunk_topic(DEVICE, file_id, start, hashlib.sha256(b"\0").hexdigest())
        send(receiver, topic, b"\0")
        (answer,) = answers(receiver.written(topic, start, start + 1, 0.0))
        assert (start, start + 1) in answer.acked
        assert len(answer.acked) <= MAX_RANGES_TOLD
    send(receiver, commands.fin_topic(DEVICE, file_id, size))
    assert len(answers(receiver.tick(0.0))[0].missing) == MAX_RANGES_TOLD
    many = tuple(f"{number:064x}" for number in range(MAX_WANTED_TOLD + 5))
    assert len(answers(receiver.confirmed("t", many))[0].wanted) == MAX_WANTED_TOLD


def test_abort_forgets() -> None:
    receiver = Receiver(ID)
    init(receiver)
    chunk(receiver, 0, 50)
    out = send(receiver, f"tidegauge/v1/{DEVICE}/file/{ID}/abort")
    assert out[0] == Discard()
    assert refusal(chunk(receiver, 0, 50)) == Reason.NO_INIT


@pytest.mark.parametrize("seconds", [0.0001, 1.5])
def test_postponed_is_never_zero(seconds: float) -> None:
    (answer,) = answers(Receiver(ID).postponed("t", seconds))
    assert answer.retry_after_ms >= 1


def acked(*told: tuple[int, int], at: int = 0) -> FileResponse:
    return FileResponse(f"chunk/{at}", SUCCESS, acked=told)


def test_of_chunks_that_came_together_one_answer_tells() -> None:
    assert told_once([acked((0, 10)), acked((0, 20), at=10), acked((0, 30), at=20)]) == [acked((0, 30), at=20)]


@pytest.mark.parametrize(
    "answers",
    [
        [acked((0, 10)), acked((10, 20), at=10)],
        [acked((0, 10), (20, 30)), acked((0, 20), at=10)],
        [acked((0, 10)), FileResponse("fin", SUCCESS, stored=True)],
        [FileResponse("chunk/0", FAILURE, "chunk_hash"), acked((0, 10))],
        [FileResponse("chunk/0", SUCCESS, retry_after_ms=5), acked((0, 10))],
        [acked((0, 10)), FileResponse("chunk/10", SUCCESS, retry_after_ms=5)],
        [acked((0, 10)), FileResponse("fin", FAILURE, "incomplete", missing=((10, 20),))],
    ],
)
def test_an_answer_that_says_something_of_its_own_is_told(answers: list[FileResponse]) -> None:
    assert told_once(answers) == answers
