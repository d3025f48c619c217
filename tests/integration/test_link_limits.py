"""What a board may spend, and how the link's faults are named, against a real broker."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from integration.link_peer import DEVICE, assert_whole, link, mosquitto, poll, put_bundle, running
from integration.slow_link import SlowLink
from integration.test_link import collecting
from tidegauge.errors import TidegaugeError
from tidegauge.link import mqtt
from tidegauge.link.command_wire import answer_topic, command_topic
from tidegauge.link.governor import Governor
from tidegauge.link.uplink import Uplink
from tidegauge.link.wire import AlarmChange
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.store import Spool

LIMITS = SpoolLimits(headroom_mib=0, headroom_files=0)
MIB = 1 << 20


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await test

    asyncio.run(bounded())


def alarm() -> AlarmChange:
    return AlarmChange("a-1", True, "loss", "accelerator", ("band",), "loss is high", 1.0, "boot", 2.0)


def test_a_day_costs_its_bytes_and_no_more_whatever_is_wanted(tmp_path: Path) -> None:
    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            config = link(broker.port, mib_per_day=1)
            spool = Spool(tmp_path / "spool", LIMITS)
            manifest = put_bundle(spool, "bundle-0001")  # 3 MB
            for session in (1, 2):  # a restart buys nothing
                uplink = Uplink(config, DEVICE, spool, session, account=tmp_path / "today.json")
                async with collecting(config, spool) as collector, running(uplink):
                    await poll(lambda uplink=uplink: "mib_per_day" in uplink.held)
                    uplink.publish_alarm(alarm())
                    await collector.until(lambda: bool(collector.alarms))
                    assert sum(len(data) for data in collector.stored.values()) <= MIB + 10_000
                    assert uplink.state.bytes_sent <= MIB + 10_000, "manifests are not counted"
                    await uplink.pull("bundle-0001")  # somebody without a key asks for it
                    await asyncio.sleep(1.0)
                    assert uplink.state.bytes_sent <= MIB + 20_000
            assert [entry.id for entry in spool.pending()] == ["bundle-0001"], "nothing is lost: it waits"
            whole = Uplink(link(broker.port), DEVICE, spool, 3)
            async with collecting(config, spool) as collector, running(whole):
                await poll(lambda: not spool.pending())
                assert_whole(collector, manifest)

    run(test())


def test_outside_the_window_only_what_is_small_or_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegauge.link.governor._second", lambda moment: 12 * 3600.0)  # noon

    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            config = link(broker.port, upload_window="22:00-06:00", status_interval=1.0)
            spool = Spool(tmp_path / "spool", LIMITS)
            first, second = put_bundle(spool, "bundle-0001", (5000,)), put_bundle(spool, "bundle-0002", (6000,))
            uplink = Uplink(config, DEVICE, spool, 1)
            async with collecting(config, spool) as collector, running(uplink):
                uplink.publish_alarm(alarm())
                await collector.until(lambda: len(collector.stored) == 2 and bool(collector.alarms))
                assert "upload_window" in uplink.held
                with pytest.raises(TidegaugeError, match="no bundle bundle-0009"):
                    await uplink.pull("bundle-0009")
                await uplink.pull("bundle-0002")
                await poll(lambda: len(spool.pending()) == 1)
                assert_whole(collector, second)
                assert not any(blob in collector.stored for blob in _blobs(first))
                monkeypatch.setattr("tidegauge.link.governor._second", lambda moment: 23 * 3600.0)
                await poll(lambda: not spool.pending())
                assert_whole(collector, first)

    run(test())


def _blobs(manifest: Any) -> set[str]:
    from tidegauge.bundles.manifest import blobs_of

    return set(blobs_of(manifest))


def test_a_rate_limit_holds_bundles_back_and_alarms_not(tmp_path: Path) -> None:
    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            config = link(broker.port, bytes_per_second=200_000)
            spool = Spool(tmp_path / "spool", LIMITS)
            manifest = put_bundle(spool, "bundle-0001", (1_000_000,))
            uplink = Uplink(config, DEVICE, spool, 1)
            loop = asyncio.get_running_loop()
            async with collecting(config, spool) as collector, running(uplink):
                await collector.until(lambda: collector.chunks >= 2)
                began = loop.time()
                sent = uplink.state.bytes_sent
                uplink.publish_alarm(alarm())
                await collector.until(lambda: bool(collector.alarms))
                assert spool.pending(), "the alarm has not waited for the bundle"
                await poll(lambda: not spool.pending())
                # The burst of a second, and what was on its way, beside what the time allows.
                assert uplink.state.bytes_sent - sent <= 200_000 * (loop.time() - began + 1) + 2 * config.chunk_bytes
                assert_whole(collector, manifest)

    run(test())


def test_a_broker_that_stands_still_is_no_connection(tmp_path: Path) -> None:
    """Its socket stays open; the age of its last answer tells."""

    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            uplink = Uplink(link(broker.port, keepalive=5), DEVICE, Spool(tmp_path / "spool", LIMITS), 1)
            async with running(uplink):
                await poll(lambda: uplink.state.connected)
                assert uplink.state.broker_age is not None
                assert broker._process is not None
                os.kill(broker._process.pid, signal.SIGSTOP)
                try:
                    await poll(lambda: not uplink.state.connected)
                    await poll(lambda: uplink.state.fault in ("silent", "lost", "unreachable"))
                finally:
                    os.kill(broker._process.pid, signal.SIGCONT)
                await poll(lambda: uplink.state.connected)
                assert uplink.state.error == uplink.state.fault == ""

    run(test())


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_a_takeover_is_named(tmp_path: Path, protocol: str) -> None:
    """Mosquitto 2.0 only hangs up: that it does so again and again, with nothing under way, tells."""

    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            config = link(broker.port, protocol=protocol)
            uplink = Uplink(config, DEVICE, Spool(tmp_path / "spool", LIMITS), 1)
            async with running(uplink):
                while not uplink.state.failures["taken_over"]:
                    await poll(lambda: uplink.state.connected)
                    before = uplink.state.connections
                    async with mqtt.connect(config, DEVICE):  # a copy of the board's disk
                        await poll(
                            lambda before=before: not uplink.state.connected or uplink.state.connections > before
                        )
                assert uplink.state.failures["lost"] == 2

    run(test())


@pytest.mark.parametrize("pause", [0.0, 0.3])
def test_a_takeover_that_the_broker_names_is_named_at_once(pause: float) -> None:
    """MQTT 5, DISCONNECT with reason 0x8E: as brokers do that say why. This one can say nothing else."""

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(bytes.fromhex("2003000000"))  # CONNACK, success, no properties
        await asyncio.sleep(pause)
        writer.write(bytes.fromhex("e0028e00"))
        await writer.drain()
        await reader.read()
        writer.close()

    async def test() -> None:
        forgotten: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: forgotten.append(context))
        server = await asyncio.start_server(broker, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(mqtt.TakenOver, match="another client"):
                async with mqtt.connect(link(port, protocol="5"), DEVICE) as connection:
                    await anext(connection.messages())
        gc.collect()
        assert not forgotten, "asyncio reports what nobody has looked at"

    run(test())


def test_what_the_access_list_forbids_is_named(tmp_path: Path) -> None:
    """The alarm's topic is forbidden: the link works, and says what doesn't."""

    async def test() -> None:
        acl = tmp_path / "acl"
        acl.write_text(f"topic write tidegauge/v1/{DEVICE}/status\ntopic read tidegauge/v1/{DEVICE}/#\n")
        async with mosquitto(tmp_path, f"acl_file {acl}\n") as broker:
            config = link(broker.port, protocol="5")
            uplink = Uplink(config, DEVICE, Spool(tmp_path / "spool", LIMITS), 1)
            async with running(uplink):
                uplink.publish_alarm(alarm())
                await poll(lambda: uplink.state.failures["acl"] >= 1)
                assert f"tidegauge/v1/{DEVICE}/alarm" in uplink.state.denied
                assert uplink.state.connected

    run(test())


def test_an_account_in_memory_is_enough_for_a_link(tmp_path: Path) -> None:
    governor = Governor(link(1, mib_per_day=1), None)
    assert governor.spend(MIB)
    assert not governor.spend(1)


@pytest.mark.slow
def test_small_things_pass_a_bundle_on_a_slow_link(tmp_path: Path) -> None:
    """1 Mbit/s: an alarm and the answer to a command arrive while most of the bundle is still on the board."""

    async def test() -> None:
        async with mosquitto(tmp_path) as broker, SlowLink(broker.port, 125_000.0).running() as slow:
            config = link(broker.port, answer_timeout=5.0, publish_timeout=60.0, chunk_bytes=256 * 1024)
            spool = Spool(tmp_path / "spool", LIMITS)
            manifest = put_bundle(spool, "bundle-0001", (400_000, 400_000, 400_000))
            uplink = Uplink(msgspec.structs.replace(config, port=slow.port), DEVICE, spool, 1)
            uplink.on_command = uplink.publish_answer
            async with collecting(config, spool) as collector, mqtt.connect(config, "operator") as operator:
                await operator.subscribe(answer_topic(DEVICE))
                async with running(uplink):
                    await collector.until(lambda: collector.chunks >= 2)
                    uplink.publish_alarm(alarm())
                    await operator.publish(command_topic(DEVICE), b"order")
                    _, answer = await anext(operator.messages())
                    await collector.until(lambda: bool(collector.alarms))
                    assert answer == b"order"
                    assert collector.written < 1_100_000, "they waited for the bundle"
                    await poll(lambda: not spool.pending(), 120)
                assert_whole(collector, manifest)

    run(test())
