"""Whether a board obeys a command that came over the broker. Pure: bytes, clock and memory are arguments.

Whoever may publish on the broker can send anything, again, late, or to another board. So a command counts only with the
signature of a key that is pinned on the board, for this board, within its time, with a counter larger than any before.
What was answered once is answered the same way again. The one exception is a command that only asks for what the board
would send anyway: it needs no key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from tidegauge.clocks import Wall
from tidegauge.link.command_wire import LONGEST_LIFE, MAX_COMMAND, VERSION, AnswerState, Order, Signed, digest

Action = TypeVar("Action")

#: How far the operator's clock may be ahead of the board's, seconds.
CLOCK_TOLERANCE = 300.0
#: Answers that are remembered; an older command is refused by its counter all the same.
REMEMBERED = 64


class Refusal(StrEnum):
    """Why a command is not obeyed: `reason` of the answer."""

    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    UNSIGNED = "unsigned"
    NO_OPERATOR_KEY = "no_operator_key"
    UNKNOWN_KEY = "unknown_key"
    BAD_SIGNATURE = "bad_signature"
    UNKNOWN_VERSION = "unknown_version"
    WRONG_DEVICE = "wrong_device"
    EXPIRED = "expired"
    FUTURE = "future"
    TOO_LONG = "too_long"
    REPLAYED = "replayed"
    ID_REUSED = "id_reused"
    UNKNOWN_COMMAND = "unknown_command"
    BAD_PARAMETERS = "bad_parameters"
    NOT_RECORDED = "not_recorded"
    BUSY = "busy"
    RATE = "rate"


#: How a refusal is counted: each of these is one series. What only an operator's own program can cause counts as
#: unknown, what passes as declined.
COUNTED_AS = {
    Refusal.UNSIGNED: "forged",
    Refusal.NO_OPERATOR_KEY: "forged",
    Refusal.UNKNOWN_KEY: "forged",
    Refusal.BAD_SIGNATURE: "forged",
    Refusal.WRONG_DEVICE: "wrong_device",
    Refusal.EXPIRED: "expired",
    Refusal.FUTURE: "future",
    Refusal.REPLAYED: "replayed",
    Refusal.ID_REUSED: "replayed",
    Refusal.TOO_LARGE: "unknown",
    Refusal.MALFORMED: "unknown",
    Refusal.UNKNOWN_VERSION: "unknown",
    Refusal.TOO_LONG: "unknown",
    Refusal.UNKNOWN_COMMAND: "unknown",
    Refusal.BAD_PARAMETERS: "unknown",
    Refusal.NOT_RECORDED: "declined",
    Refusal.BUSY: "declined",
    Refusal.RATE: "declined",
}
#: Its values that are refusals of the gate itself.
COUNTED = ("forged", "wrong_device", "expired", "future", "replayed", "unknown")


class Remembered(msgspec.Struct, frozen=True):
    """How a command ended, or that it has begun (`running`). `command`: SHA-256 of its payload."""

    id: str
    command: str
    state: AnswerState
    sentence: str = ""
    cure: str = ""


class Memory(msgspec.Struct, frozen=True):
    """What must survive a restart: the last counter by key, the newest moment that a command was issued at (the clock
    may jump back), and the last answers, oldest first. `not_before`: what was issued earlier is refused, since the
    memory of it was lost.
    """

    counters: dict[str, int] = {}
    latest: float = 0.0
    answered: tuple[Remembered, ...] = ()
    not_before: float = 0.0
    version: int = 1


@dataclass(frozen=True, slots=True)
class Accepted(Generic[Action]):
    """To be carried out. `memory` must be durable first. `key` empty: it needs none, and nothing is remembered."""

    order: Order
    action: Action
    key: str
    command: str
    memory: Memory


@dataclass(frozen=True, slots=True)
class Known:
    """Done before, or under way: say so again."""

    answer: Remembered


@dataclass(frozen=True, slots=True)
class Refused:
    """`id` empty where the command could not be read so far. `authentic`: it was signed by a pinned key."""

    reason: Refusal
    sentence: str
    cure: str = ""
    id: str = ""
    command: str = ""
    authentic: bool = False


Verify = Callable[[str, bytes, bytes], bool]


@dataclass(frozen=True, slots=True)
class Rules(Generic[Action]):
    """`keys`: public halves that are pinned. `verify(key, signature, payload)`. `commands`: the allow-list, by the
    `type` of an action; `keyless` those of it that need no key. `decode` raises msgspec.ValidationError.
    """

    device: str
    keys: Collection[str]
    verify: Verify
    commands: Collection[str]
    keyless: Collection[str]
    decode: Callable[[bytes], Action]


class _Typed(msgspec.Struct):
    type: str


class _Versioned(msgspec.Struct):
    version: int = VERSION


def judge(data: bytes, rules: Rules[Action], memory: Memory, now: Wall) -> Accepted[Action] | Known | Refused:
    """What to do about `data`, an envelope from anybody."""
    if len(data) > MAX_COMMAND:
        return Refused(Refusal.TOO_LARGE, f"a command of {len(data)} bytes, the limit is {MAX_COMMAND}")
    try:
        envelope = msgspec.json.decode(data, type=Signed)
    except (msgspec.DecodeError, RecursionError) as error:
        return Refused(Refusal.MALFORMED, f"the envelope can't be read: {error}")
    signed = bool(envelope.signature)
    if signed and (refused := _not_authentic(envelope, rules)) is not None:
        return refused
    read = _read(envelope.payload, signed)
    if isinstance(read, Refused):
        return read
    return _admit(read, digest(envelope.payload), envelope.key if signed else "", rules, memory, now)


def _not_authentic(envelope: Signed, rules: Rules[Action]) -> Refused | None:
    def refused(reason: Refusal, sentence: str, cure: str = "") -> Refused:
        return Refused(reason, sentence, cure, command=digest(envelope.payload))

    if not rules.keys:
        return refused(
            Refusal.NO_OPERATOR_KEY,
            "this board obeys no remote command: no operator's key is pinned",
            "pin one as key `commands.operators` of its agent.toml",
        )
    if envelope.key not in rules.keys:
        return refused(
            Refusal.UNKNOWN_KEY,
            f"the key {envelope.key[:16] or '(none)'} is not pinned on this board",
            "sign with a key of its `commands.operators`",
        )
    if not rules.verify(envelope.key, envelope.signature, envelope.payload):
        return refused(Refusal.BAD_SIGNATURE, "the signature does not belong to this command and key")
    return None


def _read(payload: bytes, signed: bool) -> Order | Refused:
    try:
        version = msgspec.json.decode(payload, type=_Versioned).version
        if version != VERSION:
            known = f"the command is of version {version}, this board knows {VERSION}"
            return Refused(Refusal.UNKNOWN_VERSION, known, command=digest(payload), authentic=signed)
        return msgspec.json.decode(payload, type=Order)
    except (msgspec.DecodeError, RecursionError) as error:
        return Refused(Refusal.MALFORMED, f"the command can't be read: {error}", command=digest(payload))


def _admit(
    order: Order, command: str, key: str, rules: Rules[Action], memory: Memory, wall: Wall
) -> Accepted[Action] | Known | Refused:
    def refused(reason: Refusal, sentence: str, cure: str = "") -> Refused:
        return Refused(reason, sentence, cure, order.id, command, bool(key))

    if order.device != rules.device:
        return refused(Refusal.WRONG_DEVICE, f"the command is for {order.device}, this is {rules.device}")
    kind = _kind(order.action)
    if not key and kind not in rules.keyless:
        return refused(Refusal.UNSIGNED, "a command without a signature", "sign it with an operator's key")
    if key and (before := next((each for each in memory.answered if each.id == order.id), None)) is not None:
        if before.command == command:
            return Known(before)
        return refused(
            Refusal.ID_REUSED, f"another command had the id {order.id}", "give each command an id of its own"
        )
    late = _out_of_time(order, max(wall, memory.latest))
    if late is not None:
        return refused(*late)
    if key and order.issued < memory.not_before:
        return refused(Refusal.REPLAYED, "issued before this board lost its memory of commands", "send it anew")
    if key and order.counter <= memory.counters.get(key, 0):
        return refused(
            Refusal.REPLAYED,
            f"counter {order.counter} is not above {memory.counters[key]}: an old command, or one overtaken by another",
            "send it anew; check the clock of the computer that signs",
        )
    if kind not in rules.commands:
        return refused(
            Refusal.UNKNOWN_COMMAND,
            f"this board knows no command {kind!r}",
            f"it knows {', '.join(sorted(rules.commands))}",
        )
    try:
        action = rules.decode(bytes(order.action))
    except (msgspec.DecodeError, RecursionError) as error:
        return refused(Refusal.BAD_PARAMETERS, f"{kind}: {error}")
    return Accepted(order, action, key, command, _begun(memory, order, key, command))


def _kind(action: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(action, type=_Typed).type[:64]
    except (msgspec.DecodeError, RecursionError):
        return ""


def _out_of_time(order: Order, now: float) -> tuple[Refusal, str, str] | None:
    life = order.expires - order.issued
    if not 0 < life <= LONGEST_LIFE:
        said = f"the command is valid for {life:.0f} s"
        return Refusal.TOO_LONG, said, f"give it a life of at most {LONGEST_LIFE:.0f} s"
    if now >= order.expires:
        return Refusal.EXPIRED, f"the command expired {now - order.expires:.0f} s ago", "send it anew"
    if order.issued > now + CLOCK_TOLERANCE:
        said = f"the command was issued {order.issued - now:.0f} s in the future by this board's clock"
        return Refusal.FUTURE, said, "check both clocks"
    return None


def _begun(memory: Memory, order: Order, key: str, command: str) -> Memory:
    if not key:
        return memory
    answered = (*memory.answered, Remembered(order.id, command, "running"))[-REMEMBERED:]
    counters = {**memory.counters, key: order.counter}
    latest = max(memory.latest, order.issued)
    return msgspec.structs.replace(memory, counters=counters, latest=latest, answered=answered)


def ended(memory: Memory, answer: Remembered) -> Memory:
    """The memory with how a command ended in the place of its beginning."""
    answered = tuple(answer if each.id == answer.id else each for each in memory.answered)
    return msgspec.structs.replace(memory, answered=answered)


def interrupted(memory: Memory) -> Memory:
    """After a restart: what was under way is over, and nobody knows how far it came. It is not begun again."""
    over = "the agent ended while it was carried out, and did not begin it again"
    answered = tuple(
        Remembered(each.id, each.command, "failed", over, "see the device's state, then send a new command")
        if each.state == "running"
        else each
        for each in memory.answered
    )
    return msgspec.structs.replace(memory, answered=answered)
