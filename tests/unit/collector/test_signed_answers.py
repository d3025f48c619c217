"""What the collector answers is signed by its own key and repeats the board's nonce. On both databases."""

from __future__ import annotations

import asyncio
import hashlib
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from tidegauge import signing
from tidegauge.cli.collector_keys import keys
from tidegauge.collector.ingest import Ingest
from tidegauge.collector.shelf import Shelf
from tidegauge.collector.trust import ANSWER_KEY, answer_key
from tidegauge.link.answers import judge
from tidegauge.link.commands import chunk_topic, fin_topic, init_topic, parse, response_topic
from tidegauge.link.wire import FileResponse, Init, Question, encode
from unit.collector.reception_desk import Desk

DEVICE, NONCE = "cam-1", "0f" * 16
KEY = signing.FileKey(b"c" * 32)


def said_to(shelf: Shelf, *messages: tuple[str, bytes], count: int, device: str = DEVICE) -> list[FileResponse]:
    """The `count` answers to messages, as a board that pins the key takes them."""
    published: list[tuple[str, bytes]] = []

    async def work() -> None:
        enough = asyncio.Event()

        async def publish(at: str, payload: bytes) -> None:
            published.append((at, payload))
            if len(published) >= count:
                enough.set()

        ingest = Ingest(shelf, publish, KEY)
        task = asyncio.create_task(ingest.run())
        for at, payload in messages:
            await ingest.put(at, payload)
        async with asyncio.timeout(60):
            await enough.wait()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(work())
    assert {at for at, _ in published} == {response_topic(device)}
    found = [judge(payload, frozenset({KEY.public}), NONCE) for _, payload in published]
    answers = [each for each in found if isinstance(each, FileResponse)]
    assert len(answers) == len(found) == count, found
    return answers


def questions(content: bytes) -> tuple[tuple[str, bytes], tuple[str, bytes], tuple[str, bytes]]:
    """`init`, the only chunk, `fin`."""
    name = hashlib.sha256(content).hexdigest()
    init = Init("manifest.json", len(content), name, {"kind": "manifest", "bundle": "bundle-0001"}, NONCE)
    return (
        (init_topic(DEVICE, name), encode(init)),
        (chunk_topic(DEVICE, name, 0, name), content),
        (fin_topic(DEVICE, name, len(content)), encode(Question(NONCE))),
    )


def test_every_answer_is_signed_up_to_stored(shelf: Shelf, bundle_maker: Callable[..., Any]) -> None:
    init, chunk, fin = questions(bundle_maker().head)
    answers = said_to(shelf, init, chunk, fin, count=3)
    assert {each.topic: each.stored for each in answers} == {init[0]: False, chunk[0]: False, fin[0]: True}


def test_the_answer_to_a_fin_that_came_too_early_too(shelf: Shelf, bundle_maker: Callable[..., Any]) -> None:
    init, chunk, fin = questions(bundle_maker().head)
    answers = said_to(shelf, init, fin, chunk, count=3)
    assert [each.topic for each in answers if each.stored] == [fin[0]]


def test_a_transfer_that_an_earlier_run_began_goes_on_with_the_nonce_of_this_one(
    shelf: Shelf, bundle_maker: Callable[..., Any]
) -> None:
    """Whichever ingester answers a `fin` by and by reads it in the database."""
    init, chunk, fin = questions(bundle_maker().head)
    before = msgspec.structs.replace(msgspec.json.decode(init[1], type=Init), nonce="ee" * 16)
    desk = Desk(shelf)
    desk.handle(init[0], encode(before))
    assert desk.handle(*chunk)[0].acked == ((0, len(chunk[1])),)
    (answer,) = desk.handle(*init)
    assert answer.acked == ((0, len(chunk[1])),), "no byte is sent again"
    found = shelf.store.transfer(DEVICE, parse(fin[0]).file_id)
    assert found is not None and found[1]["nonce"] == NONCE
    assert said_to(shelf, fin, count=1)[0].stored


def test_a_refusal_too(shelf: Shelf) -> None:
    content = b"no manifest"
    answers = said_to(shelf, *questions(content), count=3)
    assert [each.reason_description.split(":")[0] for each in answers if each.reason_code] == ["bad_manifest"]


def test_a_board_with_a_name_of_the_collectors_own_hears_it_signed(shelf: Shelf) -> None:
    init = Init("f", 1, "ab" * 32, nonce=NONCE)
    (answer,) = said_to(shelf, (init_topic("runs", "ab" * 32), encode(init)), count=1, device="runs")
    assert answer.reason_description.startswith("reserved_name")


def test_the_key_is_made_once_and_only_where_none_is_named(tmp_path: Path) -> None:
    first = answer_key(tmp_path, "")
    assert stat.S_IMODE((tmp_path / ANSWER_KEY).stat().st_mode) == 0o600
    assert answer_key(tmp_path, "").public == first.public, "a restart"
    named = signing.create(tmp_path / "shared.key")
    assert answer_key(tmp_path, str(tmp_path / "shared.key")).public == named.public
    with pytest.raises(signing.KeyUnusable, match=r"elsewhere\.key"):
        answer_key(tmp_path, str(tmp_path / "elsewhere.key"))


def test_the_public_half_is_told_for_boards_to_pin(tmp_path: Path) -> None:
    config = tmp_path / "collector.toml"
    config.write_text('data = "data"\n[link]\n')
    none = CliRunner().invoke(keys, ["own", "--config", str(config)])
    assert "there is no key" in str(none.exception)
    (tmp_path / "data").mkdir()
    made = answer_key(tmp_path / "data", "")
    told = CliRunner().invoke(keys, ["own", "--config", str(config)])
    assert told.exit_code == 0, told.output
    assert made.public in told.output
