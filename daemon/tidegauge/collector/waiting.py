"""Signed commands for boards that are offline: kept as they came, sent again when the board is there, until it answers
or they expire.

The collector needs no key for it and can change nothing: a board knows each command by its id and counter.
"""

from __future__ import annotations

import logging

import msgspec

from tidegauge.clocks import wall
from tidegauge.collector.key_rows import Waiting
from tidegauge.collector.log_kinds import COMMAND_ANSWER_IGNORED, COMMAND_NOT_KEPT
from tidegauge.collector.store import Store
from tidegauge.link.command_wire import LONGEST_LIFE, MAX_COMMAND, CommandAnswer, Order, Signed, digest
from tidegauge.link.gate import Refusal
from tidegauge.link.wire import Status, decode
from tidegauge.signing import Use, verify

_log = logging.getLogger(__name__)

#: Refusals that pass: the command goes on waiting.
_PASSING = (Refusal.BUSY, Refusal.RATE, Refusal.NOT_RECORDED)


def keep(store: Store, device: str, payload: bytes) -> None:
    """A command has been published for `device`. Raises msgspec.DecodeError for what is none.

    Kept are those with a signature (right or wrong: the board judges), for a device that is known here.
    """
    if len(payload) > MAX_COMMAND:
        raise msgspec.ValidationError(f"{len(payload)} bytes, the limit is {MAX_COMMAND}")
    envelope: Signed = decode(Signed, payload)
    if not envelope.signature:
        return
    order: Order = decode(Order, envelope.payload)
    now = wall()
    if order.device != device or not now < order.expires <= now + LONGEST_LIFE or not store.knows_device(device):
        return
    if not store.keep_command(device, Waiting(digest(envelope.payload), payload, order.expires), now):
        said = COMMAND_NOT_KEPT.of(device=device)
        _log.warning("a command for %s is not kept: too many wait for it", device, extra=said)


def answered(store: Store, device: str, payload: bytes) -> None:
    """The device has answered a command. Raises msgspec.DecodeError."""
    envelope: Signed = decode(Signed, payload)
    answer: CommandAnswer = decode(CommandAnswer, envelope.payload)
    known = store.device_key(device)
    verified = known is not None and _signed_by(known.key, envelope)
    if known is not None and not verified:
        said = COMMAND_ANSWER_IGNORED.of(device=device)
        _log.warning("an answer is ignored: it is not signed by the key of %s", device, extra=said)
        return
    over = answer.state != "running" and answer.reason not in _PASSING
    if over:
        store.end_command(device, answer.command)
    state = "waiting" if answer.state == "refused" and not over else answer.state
    said = {name: getattr(answer, name)[:1000] for name in ("reason", "sentence", "cure", "step")}
    store.note_answer(device, answer.command, verified, wall(), state=state, **said)


def _signed_by(key: str, envelope: Signed) -> bool:
    return envelope.key == key and verify(key, Use.ANSWER, envelope.signature, envelope.payload)


def due(store: Store, device: str, payload: bytes) -> list[bytes]:
    """What to send to a device whose status this is: nothing where it says that the device isn't there."""
    status: Status = decode(Status, payload)
    if status.state != "online":
        return []
    return [each.envelope for each in store.waiting_commands(device, wall())]
