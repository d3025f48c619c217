"""Answers of the collector: what it signs is believed, whatever anybody makes of it is not."""

from __future__ import annotations

import base64
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.link.answers import MAX_RESPONSE, Dropped, Fault, judge, nonce_of, sign_response
from tidegauge.link.commands import ChunkCommand, FinCommand, InitCommand, chunk_topic, fin_topic, init_topic
from tidegauge.link.receiver import Receiver, Respond
from tidegauge.link.record_lane import RECORDS
from tidegauge.link.sender import Done, Outgoing, Publish, Sender, SenderLimits
from tidegauge.link.transfer import FileRef
from tidegauge.link.wire import FileResponse, Init, Question, decode, encode
from tidegauge.signing import FileKey, Use

DEVICE, FILE, NONCE = "cam-7", "ab" * 32, "0f" * 16
COLLECTOR, OTHER = FileKey(b"c" * 32), FileKey(b"o" * 32)
PINNED = frozenset({COLLECTOR.public})
STORED = FileResponse(fin_topic(DEVICE, FILE, 5), 0, stored=True, nonce=NONCE)


def fault(payload: bytes, keys: frozenset[str] = PINNED, nonce: str = NONCE) -> Fault:
    found = judge(payload, keys, nonce)
    assert isinstance(found, Dropped), f"{found} counts"
    assert found.sentence
    return found.reason


def test_what_the_collector_has_signed_counts() -> None:
    found = judge(sign_response(STORED, COLLECTOR), PINNED, NONCE)
    assert isinstance(found, FileResponse)
    assert (found.topic, found.stored, found.nonce, found.key) == (STORED.topic, True, NONCE, COLLECTOR.public)


def test_any_of_several_pinned_keys_signs() -> None:
    both = frozenset({COLLECTOR.public, OTHER.public})
    assert all(isinstance(judge(sign_response(STORED, key), both, NONCE), FileResponse) for key in (COLLECTOR, OTHER))


def test_without_a_pinned_key_anybody_is_believed() -> None:
    for payload in (encode(STORED), sign_response(STORED, OTHER)):
        found = judge(payload, frozenset(), NONCE)
        assert isinstance(found, FileResponse)
        assert found.stored


def test_what_does_not_count_is_named() -> None:
    assert fault(encode(STORED)) == "unsigned"
    assert fault(sign_response(STORED, OTHER)) == "unknown_key"
    claims = msgspec.structs.replace(STORED, key=COLLECTOR.public)
    assert fault(sign_with(OTHER, encode(claims))) == "bad_signature"
    assert fault(sign_with(COLLECTOR, encode(claims), Use.MANIFEST)) == "bad_signature", "signed for another use"
    assert fault(sign_response(STORED, COLLECTOR), nonce="1f" * 16) == "stale"
    assert fault(sign_response(msgspec.structs.replace(STORED, nonce=""), COLLECTOR)) == "stale"
    assert fault(b" " * (MAX_RESPONSE + 1)) == "malformed"
    assert fault(b"{}", frozenset()) == "malformed"


def sign_with(key: FileKey, body: bytes, use: Use = Use.FILE_RESPONSE) -> bytes:
    return body[:-1] + b',"signature":"' + base64.b64encode(key.sign(use, body)) + b'"}'


def test_a_refusal_is_signed_and_asked_for_too() -> None:
    refusal = FileResponse(init_topic(DEVICE, FILE), 0x80, "too_large", nonce=NONCE)
    assert fault(encode(refusal)) == "unsigned"
    assert isinstance(judge(sign_response(refusal, COLLECTOR), PINNED, NONCE), FileResponse)
    assert fault(sign_response(refusal, COLLECTOR), nonce="1f" * 16) == "stale"


def test_an_answer_to_a_chunk_needs_no_nonce() -> None:
    answer = FileResponse(chunk_topic(DEVICE, FILE, 0, "cd" * 32), 0, acked=((0, 5),))
    assert isinstance(judge(sign_response(answer, COLLECTOR), PINNED, NONCE), FileResponse)
    assert fault(encode(answer)) == "unsigned"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_changed_byte_counts(data: st.DataObject) -> None:
    """But for bytes that say nothing: what is believed is never another answer than the one that was signed."""
    whole = bytearray(sign_response(STORED, COLLECTOR))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    found = judge(bytes(whole), PINNED, NONCE)
    assert isinstance(found, Dropped) or at >= len(whole) - 5, "base64 leaves the last four bits of its last digit open"
    if isinstance(found, FileResponse):
        assert msgspec.structs.replace(found, key="") == STORED


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400), st.binary(max_size=400))
def test_what_is_put_around_it_does_not_count(before: bytes, after: bytes) -> None:
    signed = sign_response(STORED, COLLECTOR)
    if before or after:
        fault(before + signed + after)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=600))
def test_any_bytes_are_judged(payload: bytes) -> None:
    fault(payload)
    for command in (InitCommand(), FinCommand(5, FILE), ChunkCommand(0, FILE)):
        nonce_of(command, payload)


def test_a_second_member_of_the_same_name_is_signed_or_nothing() -> None:
    """Who puts `stored` twice must have the key: all but the signature itself is signed."""
    refusal = FileResponse(STORED.topic, 0x80, "incomplete", nonce=NONCE)
    signed = sign_response(refusal, COLLECTOR)
    assert fault(signed[:-1] + b',"reason_code":0,"stored":true}') == "unsigned"
    assert fault(b'{"stored":true,' + signed[1:]) == "bad_signature"


def test_boards_of_before_read_signed_answers() -> None:
    class Old(msgspec.Struct):
        topic: str
        reason_code: int
        stored: bool = False

    old = msgspec.json.decode(sign_response(STORED, COLLECTOR), type=Old)
    assert (old.topic, old.reason_code, old.stored) == (STORED.topic, 0, True)


def test_the_board_asks_with_its_nonce() -> None:
    asked = questions(Sender(DEVICE, SenderLimits(), Random(1), NONCE))
    assert [nonce_of(*each) for each in asked] == [NONCE, NONCE]
    assert [nonce_of(*each) for each in questions(Sender(DEVICE, SenderLimits(), Random(1)))] == ["", ""]


def questions(sender: Sender) -> list[tuple[Any, bytes]]:
    """`init` and `fin` of a file of five bytes, as they are published."""
    sender.add(Outgoing("b", FileRef(FILE, 5, "b", {"kind": RECORDS})), 0.0)
    (init,) = (each for each in sender.connected(None, 0.0) if isinstance(each, Publish))
    answer = sender.response(FileResponse(init.topic, 0), 0.0)
    (fin,) = (each for each in answer if isinstance(each, Publish))
    assert [each for each in sender.response(FileResponse(fin.topic, 0, stored=True), 0.0) if isinstance(each, Done)]
    return [(InitCommand(), init.payload), (FinCommand(5, FILE), fin.payload)]


def test_the_collector_knows_the_nonce_of_the_last_question() -> None:
    receiver = Receiver(FILE)
    topic = init_topic(DEVICE, FILE)
    init = Init("b", 5, FILE, nonce=NONCE)
    assert isinstance(receiver.handle(topic, InitCommand(), encode(init), 0.0)[0], Respond)
    receiver.handle(fin_topic(DEVICE, FILE, 5), FinCommand(5, FILE), b"", 0.0)
    assert receiver.nonce == NONCE, "a board of before says nothing with its fin"
    receiver.handle(fin_topic(DEVICE, FILE, 5), FinCommand(5, FILE), encode(Question("aa")), 0.0)
    assert receiver.nonce == "aa"
    assert Receiver(FILE, init=init).nonce == NONCE, "as the database tells another ingester"


@pytest.mark.parametrize("nonce", ["0F", "x", "0" * 65])
def test_what_is_no_nonce_is_refused(nonce: str) -> None:
    payload = encode(Question(nonce))
    with pytest.raises(msgspec.ValidationError):
        decode(Question, payload)
    assert nonce_of(FinCommand(5, FILE), payload) == ""
