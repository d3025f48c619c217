"""Commands to a board and its answers, as they go over the wire: `…/command` and `…/command-answer`.

The bytes that are signed travel as they were signed, inside an envelope: nobody has to write JSON the same way twice.
What a command asks for (`Order.action`) is typed by the board, which alone has the list of what it obeys.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tidegauge.link.wire import encode, topic
from tidegauge.signing import KeyProvider, Use

#: Largest envelope, bytes.
MAX_COMMAND = 16 << 10
#: Largest answer; a device's status is some 10 KB.
MAX_ANSWER = 128 << 10
#: Longest time between `issued` and `expires`, seconds: what a command may wait for a board that is offline.
LONGEST_LIFE = 7 * 86400.0
VERSION = 1

COMMAND, ANSWER = "command", "command-answer"

CommandId = Annotated[str, Meta(pattern=r"^[0-9A-Za-z-]{8,64}$")]


class Signed(msgspec.Struct, frozen=True, omit_defaults=True):
    """An envelope: `signature` (Ed25519, 64 bytes) by `key` (public, 64 hexadecimal digits) over `payload`.

    Both are empty where nobody has signed. `payload` and `signature` are base64 in JSON.
    """

    payload: bytes
    key: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$")] = ""
    signature: Annotated[bytes, Meta(max_length=64)] = b""


class Order(msgspec.Struct, frozen=True):
    """The payload of a command: for one device, between two moments (Unix seconds), once.

    `id` is unique: the same one is answered again and not done again. `counter` grows with each command that a key
    signs for a device. `action`: an object whose `type` names the command.
    """

    id: CommandId
    device: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    issued: Annotated[float, Meta(ge=0)]
    expires: Annotated[float, Meta(ge=0)]
    counter: Annotated[int, Meta(ge=1, lt=1 << 53)]
    action: msgspec.Raw
    version: int = VERSION


AnswerState = Literal["running", "done", "refused", "failed"]


class CommandAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of an answer. `running` may come several times, the other states end it.

    `command`: SHA-256 of the payload that is answered. `reason`: of a refusal, one of `gate.Refusal`. `step` of a
    command that is under way. `status`: the device's state afterwards, as `tidegauge status --json` prints it.
    """

    id: str
    command: str
    state: AnswerState
    reason: str = ""
    sentence: str = ""
    cure: str = ""
    step: str = ""
    status: dict[str, Any] | None = None


def command_topic(device: str) -> str:
    return topic(device, COMMAND)


def answer_topic(device: str) -> str:
    return topic(device, ANSWER)


def new_order(device: str, action: msgspec.Struct, now: float, life: float) -> Order:
    """An order that holds from `now` for `life` seconds. Microseconds since 1970 grow without a file, also where
    several people hold the key.
    """
    return Order(uuid.uuid4().hex, device, now, now + life, int(now * 1e6), msgspec.Raw(msgspec.json.encode(action)))


def sign_order(order: Order, key: KeyProvider | None) -> bytes:
    """The envelope of an order; `key` None leaves it unsigned, for the one command that needs no key."""
    payload = encode(order)
    if key is None:
        return encode(Signed(payload))
    return encode(Signed(payload, key.public, key.sign(Use.COMMAND, payload)))


def sign_answer(answer: CommandAnswer, key: KeyProvider | None) -> bytes:
    """The envelope of an answer, by the device's own key where it has one."""
    payload = encode(answer)
    if key is None:
        return encode(Signed(payload))
    return encode(Signed(payload, key.public, key.sign(Use.ANSWER, payload)))


def digest(payload: bytes) -> str:
    """By what an answer names the command it belongs to."""
    return hashlib.sha256(payload).hexdigest()
