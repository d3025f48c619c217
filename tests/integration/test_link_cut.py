"""How connections end, and how brokers forget: by reset, by FIN, by silence, with a queue that is lost or overflows."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest

from integration.cut_link import PUBLISH, CutLink, How, packets
from integration.link_peer import DEVICE, assert_whole, link, mosquitto, poll, put_bundle, running
from integration.test_link import LIMITS, alarm, collecting, emptied, run
from tidegauge.link import mqtt
from tidegauge.link.uplink import Uplink
from tidegauge.link.wire import Status, encode
from tidegauge.spool.store import Spool

CHUNK = 32 * 1024


@pytest.mark.parametrize("how", ["reset", "end", "silence"])
def test_a_publish_in_flight_at_a_cut_fails_and_goes_once_more_by_one_way_only(
    tmp_path: Path, how: How, caplog: pytest.LogCaptureFixture
) -> None:
    """The library keeps what was in flight and would send it by itself too, were its client used a second time. The
    publish's own time-out is longer than this test may take: what ends it is the connection's end, or the keep-alive.
    """

    async def test() -> None:
        async with mosquitto(tmp_path) as broker, CutLink(broker.port).running() as proxy:
            config = link(proxy.port, keepalive=2, publish_timeout=600.0, answer_timeout=60.0)
            spool = Spool(tmp_path / "spool", LIMITS)
            manifest = put_bundle(spool, "bundle-0001", (1_000_000,))
            uplink = Uplink(config, DEVICE, spool, 1)
            proxy.cut_at = (12, how)
            async with collecting(link(broker.port), spool) as collector, running(uplink):
                await emptied(spool)
                assert_whole(collector, manifest)
                assert (proxy.cuts, uplink.state.connections) == (1, 2)
                assert uplink.state.publishes["lost"] >= 1
                # Nothing is counted as under way for ever.
                await poll(lambda: uplink._sender.in_flight == uplink._sender._unsent == uplink._packets == 0)
            assert not [each for each in proxy.published if each.duplicate]
            places = [(each.connection, *each.topic.split("/")[-3:-1]) for each in proxy.published]
            times = Counter(place for place in places if place[2].isdecimal())
            assert set(times.values()) == {1}, "no chunk twice on a connection"
            again = Counter(place[1:] for place in times)
            assert 1 <= sum(count == 2 for count in again.values()) <= config.window_chunks
            assert max(again.values()) == 2

    with caplog.at_level(logging.WARNING):
        run(test())
    assert not [each for each in caplog.records if each.name == "asyncio"]


def test_a_connection_that_is_lost_just_after_a_publish_leaves_nothing_to_the_loop(tmp_path: Path) -> None:
    """The packet was to be written at the loop's next turn: then the socket's number is nobody's, or another's."""
    wrong: list[object] = []

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
        async with mosquitto(tmp_path) as broker, mqtt.connect(link(broker.port), DEVICE) as connection:
            publish = asyncio.create_task(connection.publish("t", b"x"))
            await asyncio.sleep(0)  # it is queued
            connection._paho._sock_close()
            with socket.socket() as heir:  # which has the number now
                await asyncio.sleep(0)
                assert not asyncio.get_running_loop().remove_writer(heir.fileno()), "somebody else's socket is watched"
            publish.cancel()
            await asyncio.wait([publish])

    run(test())
    assert wrong == []


@pytest.mark.parametrize(("how", "seen"), [("reset", "reset"), ("end", "end"), ("silence", "nothing")])
def test_the_cuts_are_what_they_are_called(how: How, seen: str) -> None:
    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def test() -> None:
        server = await asyncio.start_server(broker, "127.0.0.1", 0)
        async with server, CutLink(server.sockets[0].getsockname()[1]).running() as proxy:
            with socket.create_connection(("127.0.0.1", proxy.port)) as sock:
                sock.setblocking(False)
                await poll(lambda: bool(proxy._pairs))
                sock.send(b"\xc0\x00" * 1000)
                proxy.cut(how)
                found = "nothing"
                try:
                    async with asyncio.timeout(0.5 if how == "silence" else 60):
                        data = await asyncio.get_running_loop().sock_recv(sock, 1)
                        found = "data" if data else "end"
                except ConnectionResetError:
                    found = "reset"
                except TimeoutError:
                    found = "nothing"
                assert found == seen

    run(test())


def test_the_age_of_the_last_answer_ends_a_connection_of_which_the_library_thinks_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own keep-alive is far longer here than the patience."""
    monkeypatch.setattr("tidegauge.link.uplink.PATIENCE", 0.001)

    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            config = link(broker.port, keepalive=600, status_interval=600.0)
            uplink = Uplink(config, DEVICE, Spool(tmp_path / "spool", LIMITS), 1)
            async with running(uplink):
                await poll(lambda: uplink.state.failures["silent"] >= 1)
                await poll(lambda: uplink.state.connections >= 2)

    run(test())


def test_a_broker_killed_with_a_queue_costs_no_bundle_and_holds_nobody_up(tmp_path: Path) -> None:
    """It has acknowledged what the collector never gets. The alarm's message is lost for good; the status tells it."""

    async def test() -> None:
        async with mosquitto(tmp_path) as broker, CutLink(broker.port).running() as proxy:
            spool = Spool(tmp_path / "spool", LIMITS)
            manifest = put_bundle(spool, "bundle-0001")
            config = link(broker.port)
            uplink = Uplink(config, DEVICE, spool, 1)
            async with collecting(link(proxy.port), spool) as collector, running(uplink):
                await collector.until(lambda: collector.chunks >= 20)
                proxy.hold()
                uplink.publish_alarm(alarm(1))
                uplink.set_status(Status(state="online", session=0, alarm="loss"))
                await poll(
                    lambda: uplink.state.bytes_sent >= collector.written + 5 * CHUNK
                )  # acknowledged, and in a queue
                await poll(lambda: not uplink._outbox.alarms and not uplink._outbox.status_due)
                broker.kill()
                proxy.cut("reset")
                broker.start()
                await emptied(spool)
                assert_whole(collector, manifest)
                await collector.until(lambda: collector.status[-1].alarm == "loss")
                assert collector.alarms == [], "the queue was not lost: this test shows nothing"
                assert not uplink.state.refused

    run(test())


def test_a_broker_that_drops_what_it_has_acknowledged_costs_resends_only(tmp_path: Path) -> None:
    """A queue that is full drops the newest, and every PUBACK says success."""

    async def test() -> None:
        async with (
            mosquitto(tmp_path, "max_queued_messages 4\nmax_inflight_messages 2\n") as broker,
            CutLink(broker.port).running() as proxy,
        ):
            spool = Spool(tmp_path / "spool", LIMITS)
            manifest = put_bundle(spool, "bundle-0001", (1_000_000,))
            uplink = Uplink(link(broker.port, window_chunks=16), DEVICE, spool, 1)
            async with collecting(link(proxy.port), spool) as collector, running(uplink):
                await collector.until(lambda: collector.chunks >= 4)
                proxy.hold()
                await poll(
                    lambda: uplink.state.bytes_sent >= collector.written + 8 * CHUNK
                )  # of which six have a place
                proxy.let_go()
                await emptied(spool)
                assert_whole(collector, manifest)
                assert uplink.state.bytes_sent >= 1_000_000 + CHUNK, "nothing was dropped: this test shows nothing"
                assert uplink.state.publishes["refused"] == uplink.state.publishes["lost"] == 0

    run(test())


@pytest.mark.parametrize("code", [0x80, 0x83, 0x87, 0x97, 0x99])
def test_a_puback_that_says_no_is_an_error(code: int) -> None:
    """aiomqtt drops the reason, and so calls a publish that nobody may get a success."""
    with pytest.raises(mqtt.PublishRefused, match=f"{code:#04x}"):
        run(_published(code))


@pytest.mark.parametrize("code", [0x00, 0x10])
def test_a_puback_without_a_reader_is_none(code: int) -> None:
    """0x10: nobody has subscribed. That is no refusal: a collector may be away for weeks."""
    run(_published(code))


async def _published(code: int) -> None:
    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        buffer = bytearray()
        while data := await reader.read(4096):
            buffer += data
            for first, body in packets(buffer):
                if first >> 4 == 1:
                    writer.write(bytes.fromhex("2003000000"))
                elif first >> 4 == PUBLISH:
                    at = 2 + int.from_bytes(body[:2], "big")
                    writer.write(b"\x40\x03" + body[at : at + 2] + bytes([code]))
        writer.close()

    server = await asyncio.start_server(broker, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with mqtt.connect(link(port, protocol="5", publish_timeout=60.0), DEVICE) as connection:
            await connection.publish("t", b"x")


def test_publishes_that_were_given_up_hold_no_place(tmp_path: Path) -> None:
    """More than the library lets be in flight, all cancelled: the next one goes."""

    async def test() -> None:
        async with mosquitto(tmp_path) as broker, mqtt.connect(link(broker.port), "probe") as connection:
            given_up = [asyncio.create_task(connection.publish("t", bytes(1000))) for _ in range(100)]
            await asyncio.sleep(0)
            for each in given_up:
                each.cancel()
            await asyncio.wait(given_up)
            await connection.publish("t", b"x", timeout=60.0)
            assert not connection._waiting

    run(test())


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_no_broker_keeps_a_queue_for_who_is_away(tmp_path: Path, protocol: Literal["3.1.1", "5"]) -> None:
    """What came meanwhile would come back as load: sessions are clean."""

    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            config = link(broker.port, protocol=protocol)
            async with mqtt.connect(config, DEVICE) as connection:
                await connection.subscribe("t")
            async with mqtt.connect(config, "other") as other:
                await other.publish("t", b"while away")
                async with mqtt.connect(config, DEVICE) as connection:
                    await connection.subscribe("t")
                    await other.publish("t", b"now")
                    assert await anext(connection.messages()) == ("t", b"now")

    run(test())


def test_what_comes_faster_than_it_is_read_is_counted_and_takes_no_more_memory(tmp_path: Path) -> None:
    """aiomqtt acknowledges a message before anybody has seen it, and holds as many as come."""

    async def test() -> None:
        async with (
            mosquitto(tmp_path) as broker,
            mqtt.connect(link(broker.port), "reader", inbound_limit=5) as reader,
            mqtt.connect(link(broker.port), "writer") as writer,
        ):
            await reader.subscribe("t")
            for number in range(20):
                await writer.publish("t", b"%d" % number)
            await poll(lambda: reader.inbound_dropped == 15)
            messages = reader.messages()
            assert [(await anext(messages))[1] for _ in range(5)] == [b"%d" % number for number in range(5)]

    run(test())


def test_a_late_will_is_put_right_by_the_next_status(tmp_path: Path) -> None:
    """It replaces what the broker retains, whatever its session number."""

    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            config = link(broker.port, status_interval=1.0)
            uplink = Uplink(config, DEVICE, Spool(tmp_path / "spool", LIMITS), 7)
            topic = f"tidegauge/v1/{DEVICE}/status"
            async with running(uplink), mqtt.connect(config, "late") as late:
                await poll(lambda: uplink.state.connected)
                await late.publish(topic, encode(Status(state="lost", session=1)), retain=True)
                await late.subscribe(topic)
                async for _, payload in late.messages():
                    if b'"online"' in payload:
                        break
                async with mqtt.connect(config, "newcomer") as newcomer:  # and what it is told is the board's word
                    await newcomer.subscribe(topic)
                    _, payload = await anext(newcomer.messages())
                    assert b'"online"' in payload

    run(test())
