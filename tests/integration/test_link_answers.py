"""Who may publish on the answers' topic: with the collector's key pinned, nobody makes a board delete its evidence."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from integration.link_peer import (
    DEVICE,
    TinyCollector,
    assert_whole,
    beside,
    link,
    mosquitto,
    poll,
    put_bundle,
    running,
)
from tidegauge.clocks import stamp
from tidegauge.link import commands, mqtt
from tidegauge.link.answers import nonce_of, sign_response
from tidegauge.link.commands import ChunkCommand, FinCommand
from tidegauge.link.config import LinkConfig
from tidegauge.link.uplink import Uplink
from tidegauge.link.wire import FileResponse, encode
from tidegauge.signing import FileKey
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.records import HistoryRecord
from tidegauge.spool.store import Spool

LIMITS = SpoolLimits(headroom_mib=0, headroom_files=0)
COLLECTOR, THIEF = FileKey(b"c" * 32), FileKey(b"t" * 32)


@asynccontextmanager
async def answering(config: LinkConfig, *forgeries: Callable[[FileResponse], bytes]) -> AsyncIterator[None]:
    """Somebody who says `stored` to all that the board asks, in each of these ways, and hears what the board says."""

    async def serve(connection: mqtt.Connection) -> None:
        async for topic, payload in connection.messages():
            command = commands.parse(topic).command
            stored = not isinstance(command, ChunkCommand)
            answer = FileResponse(topic, 0, stored=stored, nonce=nonce_of(command, payload))
            for forge in forgeries:
                await connection.publish(commands.response_topic(DEVICE), forge(answer))

    async with mqtt.connect(config, "forger") as connection:
        await connection.subscribe(f"tidegauge/v1/{DEVICE}/file/#")
        async with beside(serve(connection)):
            yield


def filled(folder: Path) -> Spool:
    """A bundle and a record, so that both lanes have something to lose."""
    spool = Spool(folder, LIMITS)
    now = stamp()
    spool.keep(HistoryRecord("h-1", 1, 1, now, now, "m"))
    return spool


def claimed(answer: FileResponse) -> bytes:
    """The thief's signature under the collector's name."""
    whole = sign_response(answer, THIEF)
    return whole.replace(THIEF.public.encode(), COLLECTOR.public.encode())


def test_a_forged_stored_deletes_nothing_and_is_named(tmp_path: Path) -> None:
    forgeries: dict[str, Callable[[FileResponse], bytes]] = {
        "unsigned": encode,
        "unknown_key": lambda answer: sign_response(answer, THIEF),
        "bad_signature": claimed,
        "stale": lambda answer: sign_response(msgspec.structs.replace(answer, nonce="ab" * 16), COLLECTOR),
    }

    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            config = link(broker.port, collector_keys=(COLLECTOR.public,))
            spool = filled(tmp_path / "spool")
            manifest = put_bundle(spool, "bundle-0001", (50_000,))
            uplink = Uplink(config, DEVICE, spool, 1)
            async with running(uplink):
                async with answering(config, *forgeries.values()):
                    # One for the lane of bundles, one for that of records.
                    await poll(lambda: all(uplink.state.dropped[reason] >= 2 for reason in forgeries), 90)
                assert any(reason in uplink.state.dropped_last for reason in forgeries)
                assert [entry.id for entry in spool.pending()] == ["bundle-0001"]
                assert spool.journal.close(), "the record is here too"
                assert uplink.state.bundles_sent == 0
                assert uplink.state.last_answer_monotonic is None, "nobody has answered"
                collector = TinyCollector(config, spool, COLLECTOR)
                await collector.start()
                await poll(lambda: not spool.pending() and not spool.journal.close(), 90)
                await collector.stop()
            assert_whole(collector, manifest)
            assert collector.final == {"bundle-0001"}

    asyncio.run(asyncio.wait_for(test(), 250))


def test_where_no_key_is_pinned_a_forged_stored_deletes(tmp_path: Path) -> None:
    """What the key is for; and an older collector's answers, which nobody signs, are taken."""

    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            config = link(broker.port)
            spool = filled(tmp_path / "spool")
            put_bundle(spool, "bundle-0001", (50_000,))
            uplink = Uplink(config, DEVICE, spool, 1)
            assert not uplink.state.pinned
            async with answering(config, encode), running(uplink):
                await poll(lambda: not spool.pending() and not spool.journal.close(), 90)
            assert uplink.state.dropped.total() == 0

    asyncio.run(asyncio.wait_for(test(), 150))


def test_what_was_stored_once_is_no_answer_to_a_later_run(tmp_path: Path) -> None:
    """A collector restored from an older backup has lost the bundle; its old answers must not delete the board's."""

    async def test() -> None:
        heard: list[bytes] = []

        async with mosquitto(tmp_path) as broker:
            config = link(broker.port, collector_keys=(COLLECTOR.public,))

            async def listen() -> None:
                async with mqtt.connect(config, "recorder") as connection:
                    await connection.subscribe(commands.response_topic(DEVICE))
                    ready.set()
                    async for _topic, payload in connection.messages():
                        heard.append(payload)

            ready = asyncio.Event()
            recorder = asyncio.create_task(listen())
            await ready.wait()
            first = Spool(tmp_path / "first", LIMITS)
            put_bundle(first, "bundle-0001", (50_000,))
            shutil.copytree(tmp_path / "first", tmp_path / "again")
            collector = TinyCollector(config, first, COLLECTOR)
            await collector.start()
            async with running(Uplink(config, DEVICE, first, 1)):
                await poll(lambda: not first.pending(), 90)
            await collector.stop()
            recorder.cancel()
            old = {msgspec.json.decode(each, type=FileResponse).topic: each for each in heard}

            def replayed(answer: FileResponse) -> bytes:
                """To `fin` the old answer. What comes before is answered as the collector does that has lost it all."""
                if isinstance(commands.parse(answer.topic).command, FinCommand):
                    return old[answer.topic]
                fresh = FileResponse(answer.topic, 0, acked=((0, 1 << 30),), nonce=answer.nonce)
                return sign_response(fresh, COLLECTOR)

            again = Spool(tmp_path / "again", LIMITS)
            uplink = Uplink(config, DEVICE, again, 2)
            async with answering(config, replayed), running(uplink):
                await poll(lambda: uplink.state.dropped["stale"] >= 1, 90)
                assert [entry.id for entry in again.pending()] == ["bundle-0001"]

    asyncio.run(asyncio.wait_for(test(), 300))
