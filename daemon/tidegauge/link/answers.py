"""Whether an answer of the collector counts. Pure: bytes, pinned keys and nonce are arguments.

A board deletes its evidence on the collector's `stored`, and whoever runs the broker can publish that word too. So the
collector signs each answer, refusals too, and a board that pins its key takes no other. The signature stands in the
answer itself, as its last member, where a board of before the signatures ignores it. What the board asks carries a
nonce, which the answer repeats: an answer that was right once can't be played again to a later run.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from tidegauge.link.commands import BadTopic, Command, FinCommand, InitCommand, parse
from tidegauge.link.wire import FileResponse, Question, decode, encode
from tidegauge.signing import KeyProvider, Use, verify

#: Largest answer, bytes: 256 names of blobs and 128 ranges take some 25 KB.
MAX_RESPONSE = 64 << 10
#: Largest question, bytes: that of an `init`.
MAX_QUESTION = 8192
#: What is answered with `stored`.
_QUESTIONS = (InitCommand, FinCommand)
#: The last member of a signed answer: 64 bytes in base64. What is signed is all before it, closed by a brace.
_LAST = re.compile(rb',"signature":"([A-Za-z0-9+/]{86}==)"}\Z')


class Fault(StrEnum):
    """Why an answer does not count: `reason` in log, metric and status."""

    MALFORMED = "malformed"
    UNSIGNED = "unsigned"
    UNKNOWN_KEY = "unknown_key"
    BAD_SIGNATURE = "bad_signature"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Dropped:
    """An answer that is as good as none. `sentence` says what was wrong, without anything that it says itself."""

    reason: Fault
    sentence: str


def nonce_of(command: Command, payload: bytes) -> str:
    """The nonce of an `init` or `fin`; "" where the board has sent none, or what is none."""
    if not payload or len(payload) > MAX_QUESTION or not isinstance(command, _QUESTIONS):
        return ""
    try:
        question: Question = decode(Question, payload)
    except (msgspec.DecodeError, RecursionError):
        return ""  # whoever judges the rest of the message refuses it
    return question.nonce


def sign_response(response: FileResponse, key: KeyProvider | None) -> bytes:
    """An answer as it goes over the wire; `key` None leaves it unsigned."""
    if key is None:
        return encode(response)
    body = encode(msgspec.structs.replace(response, key=key.public, signature=b""))
    signature = base64.b64encode(key.sign(Use.FILE_RESPONSE, body))
    return body[:-1] + b',"signature":"' + signature + b'"}'


def judge(payload: bytes, keys: Collection[str], nonce: str) -> FileResponse | Dropped:
    """The answer, where it counts. `keys`: public keys of collectors that the board pins; none: all that can be read
    is believed. `nonce`: of this run of the board; what answers an `init` or a `fin` must repeat it.
    """
    if len(payload) > MAX_RESPONSE:
        return Dropped(Fault.MALFORMED, f"it has {len(payload)} bytes")
    if not keys:
        return _read(payload)
    found = _LAST.search(payload)
    if found is None:
        return Dropped(Fault.UNSIGNED, "it has no signature")
    body = payload[: found.start()] + b"}"
    response = _read(body)  # never what was not signed
    if isinstance(response, Dropped):
        return response
    if response.key not in keys:
        return Dropped(Fault.UNKNOWN_KEY, f"it is signed by {response.key[:16] or 'no'}…, a key that is not pinned")
    try:
        signature = base64.b64decode(found[1], validate=True)
    except binascii.Error:
        return Dropped(Fault.BAD_SIGNATURE, "its signature is no base64")
    if not verify(response.key, Use.FILE_RESPONSE, signature, body):
        return Dropped(Fault.BAD_SIGNATURE, f"its signature is not by {response.key[:16]}…")
    if response.nonce != nonce and _needs_nonce(response.topic):
        return Dropped(Fault.STALE, "it answers a question that this run of the agent has not asked")
    return response


def _read(payload: bytes) -> FileResponse | Dropped:
    try:
        response: FileResponse = decode(FileResponse, payload)
    except (msgspec.DecodeError, RecursionError) as error:
        return Dropped(Fault.MALFORMED, str(error))
    return response


def _needs_nonce(topic: str) -> bool:
    """A chunk carries bytes alone, and no answer to one makes a board delete anything."""
    try:
        command = parse(topic).command
    except BadTopic:
        return True
    return isinstance(command, _QUESTIONS)
