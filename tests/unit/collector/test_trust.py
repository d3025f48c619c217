"""Whose manifests a collector takes in, and which commands wait in it. On both databases."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegauge import signing
from tidegauge.bundles.signature import sign
from tidegauge.clocks import Wall, wall
from tidegauge.collector.ingest import Ingest
from tidegauge.collector.key_rows import MAX_WAITING, DeviceKey, Waiting
from tidegauge.collector.reception import Reception
from tidegauge.collector.shelf import Shelf
from tidegauge.collector.store import Store
from tidegauge.collector.trust import OtherKey, Unsigned, judge
from tidegauge.link.command_wire import CommandAnswer, Order, Signed, digest, sign_answer, sign_order
from tidegauge.link.commands import chunk_topic, fin_topic, init_topic, parse
from tidegauge.link.gate import Refusal
from tidegauge.link.wire import FileResponse, Init, Status, encode, topic

DEVICE = "cam-1"


@pytest.fixture
def key(tmp_path: Path) -> signing.FileKey:
    return signing.create(tmp_path / "device.key")


@pytest.fixture
def thief(tmp_path: Path) -> signing.FileKey:
    return signing.create(tmp_path / "thief.key")


def send(shelf: Shelf, content: bytes, device: str = DEVICE) -> FileResponse:
    """The last answer to a manifest that is sent whole."""
    file = hashlib.sha256(content).hexdigest()
    answers: list[FileResponse] = []
    init = encode(Init("manifest.json", len(content), file, {"kind": "manifest"}))
    for at, payload in (
        (init_topic(device, file), init),
        (chunk_topic(device, file, 0, file), content),
        (fin_topic(device, file, len(content)), b""),
    ):
        found = parse(at)
        reception = Reception(device, file, shelf)
        answers += reception.handle([(at, found.command, payload)], 0.0)
        reception.record()
    return answers[-1]


def refused(shelf: Shelf, reason: str) -> bool:
    return f'tidegauge_collector_refused_total{{reason="{reason}"}} 1.0' in shelf.metrics.render().decode()


def signed(bundle: Any, key: signing.KeyProvider) -> bytes:
    return msgspec.json.encode(sign(bundle.manifest, key))


Maker = Callable[..., Any]


def test_the_first_key_is_the_devices_own(
    shelf: Shelf, bundle_maker: Maker, key: signing.FileKey, thief: signing.FileKey
) -> None:
    assert send(shelf, bundle_maker(bundle="bundle-0001").head).stored, "a device without a key may send"
    assert send(shelf, signed(bundle_maker(bundle="bundle-0002"), key)).stored
    known = shelf.store.device_key(DEVICE)
    assert known is not None
    assert (known.key, known.registered) == (key.public, False)
    other = send(shelf, signed(bundle_maker(bundle="bundle-0003"), thief))
    assert other.reason_code == 0x80
    assert other.reason_description.startswith("other_key: ")
    assert key.public[:16] in other.reason_description
    none = send(shelf, bundle_maker(bundle="bundle-0004").head)
    assert none.reason_description.startswith("unsigned: ")
    assert send(shelf, signed(bundle_maker(bundle="bundle-0005"), key)).stored
    assert {row.bundle for row in shelf.store.bundles()} == {"bundle-0001", "bundle-0002", "bundle-0005"}
    assert refused(shelf, "other_key")
    assert refused(shelf, "unsigned")


def test_a_wrong_signature_is_refused_by_name(shelf: Shelf, bundle_maker: Maker, key: signing.FileKey) -> None:
    content = signed(bundle_maker(), key).replace(b"The golden test fails.", b"The golden test is OK.")
    answer = send(shelf, content)
    assert answer.reason_code == 0x80
    assert answer.reason_description.startswith("bad_signature: ")
    assert not answer.stored
    assert shelf.store.device_key(DEVICE) is None, "it has not made the key known"
    assert not shelf.blobs.has(hashlib.sha256(content).hexdigest())
    assert refused(shelf, "bad_signature")


def test_only_registered_keys_where_that_is_the_policy(
    shelf: Shelf, bundle_maker: Maker, key: signing.FileKey, thief: signing.FileKey
) -> None:
    strict = dataclasses.replace(shelf, policy="registered")
    content = signed(bundle_maker(), key)
    assert send(strict, content).reason_description.startswith("other_key: no key of cam-1 is registered")
    assert send(strict, bundle_maker().head).reason_description.startswith("unsigned: ")
    strict.store.register_key(DEVICE, key.public, wall())
    assert send(strict, content).stored
    strict.store.register_key(DEVICE, thief.public, wall())
    assert send(strict, signed(bundle_maker(bundle="bundle-0002"), key)).reason_description.startswith("other_key: ")
    assert strict.store.forget_key(DEVICE)
    assert not strict.store.forget_key(DEVICE)


def test_of_two_first_keys_one_is_first(store: Store) -> None:
    assert store.pin_key(DEVICE, "aa" * 32, Wall(1.0)) == "aa" * 32
    assert store.pin_key(DEVICE, "bb" * 32, Wall(2.0)) == "aa" * 32
    assert store.device_keys() == [DeviceKey(DEVICE, "aa" * 32, False, 1.0)]


def test_a_known_device_may_not_turn_to_another_key_or_none() -> None:
    known = DeviceKey(DEVICE, "aa" * 32, False, 1.0)
    assert judge(DEVICE, known, "aa" * 32, "first_use") is False
    assert judge(DEVICE, None, "aa" * 32, "first_use") is True
    assert judge(DEVICE, None, "", "first_use") is False
    with pytest.raises(Unsigned):
        judge(DEVICE, known, "", "first_use")
    with pytest.raises(OtherKey):
        judge(DEVICE, known, "bb" * 32, "first_use")


# --- commands that wait ---


class Wire:
    """An ingest with a broker that only notes what is published."""

    def __init__(self, shelf: Shelf) -> None:
        self.published: list[tuple[str, bytes]] = []
        self._shelf = shelf

    async def _publish(self, at: str, payload: bytes) -> None:
        self.published.append((at, payload))

    def take(self, *messages: tuple[str, bytes]) -> list[bytes]:
        """Messages of the broker; returns the commands that are sent meanwhile."""

        async def work() -> None:
            ingest = Ingest(self._shelf, self._publish)
            lane, done = ingest._lane(DEVICE), asyncio.Semaphore(0)
            deal_with = lane._on_small

            async def counted(message: Any) -> None:
                await deal_with(message)
                done.release()

            lane._on_small = counted  # type: ignore[method-assign]
            task = asyncio.create_task(ingest.run())
            for at, payload in messages:
                await ingest.put(topic(DEVICE, at), payload)
            async with asyncio.timeout(60):
                for _ in messages:
                    await done.acquire()
            task.cancel()
            await asyncio.wait([task])

        self.published.clear()
        asyncio.run(work())
        return [payload for at, payload in self.published if at == topic(DEVICE, "command")]


def command(key: signing.KeyProvider | None, number: int = 1, life: float = 300.0, device: str = DEVICE) -> bytes:
    now = wall()
    action = msgspec.Raw(b'{"type":"ClearAlarms"}')
    return sign_order(Order(f"command-{number:04}", device, now, now + life, number, action), key)


def online(state: Any = "online", session: int = 1) -> tuple[str, bytes]:
    return "status", encode(Status(state, session))


def ends(envelope: bytes, state: Any, reason: str = "") -> tuple[str, bytes]:
    payload = msgspec.json.decode(envelope, type=Signed).payload
    answer = CommandAnswer("command-0001", digest(payload), state, reason)
    return "command-answer", sign_answer(answer, None)


def test_a_command_waits_until_the_board_answers(shelf: Shelf, key: signing.FileKey) -> None:
    wire, envelope = Wire(shelf), command(key)
    wire.take(online(), online("lost"))
    assert wire.take(("command", envelope), online("lost")) == []
    assert wire.take(online(session=2)) == [envelope]
    assert wire.take(ends(envelope, "running"), online(session=2)) == [envelope]
    assert wire.take(ends(envelope, "refused", Refusal.BUSY), online(session=2)) == [envelope]
    assert wire.take(ends(envelope, "done"), online(session=2)) == []


def test_what_does_not_wait(shelf: Shelf, key: signing.FileKey) -> None:
    wire = Wire(shelf)
    wire.take(("command", command(key)))
    assert wire.take(online()) == [], "nobody knew the device then"
    for envelope in (command(None), command(key, life=-1.0), command(key, device="cam-2"), command(key, life=1e9)):
        wire.take(("command", envelope))
    wire.take(("command", b"{}"), ("command", bytes(20_000)), ("command-answer", b"no json"))
    assert wire.take(online()) == []
    assert 'reason="bad_command"} 3.0' in shelf.metrics.render().decode()


def test_a_device_has_so_many_waiting_and_no_more(store: Store) -> None:
    for number in range(MAX_WAITING):
        assert store.keep_command(DEVICE, Waiting(f"{number:064}", b"x", 1000.0), Wall(float(number)))
    assert not store.keep_command(DEVICE, Waiting("f" * 64, b"x", 1000.0), Wall(99.0))
    assert [int(each.command) for each in store.waiting_commands(DEVICE, Wall(99.0))] == list(range(MAX_WAITING))
    assert store.keep_command(DEVICE, Waiting("f" * 64, b"x", 2000.0), Wall(1000.0)), "the others have expired"
    assert [each.command for each in store.waiting_commands(DEVICE, Wall(1000.0))] == ["f" * 64]
