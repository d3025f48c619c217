"""Uplink against real brokers: bundles arrive whole through kills and restarts, and are deleted only then."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.link_peer import (
    DEVICE,
    CertificateAuthority,
    TinyCollector,
    amqtt_broker,
    assert_whole,
    free_port,
    link,
    mosquitto,
    poll,
    put_bundle,
    running,
)
from tidegauge.link import mqtt
from tidegauge.link.config import LinkConfig
from tidegauge.link.uplink import Uplink
from tidegauge.link.wire import AlarmChange, Result, Status
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.store import Spool

LIMITS = SpoolLimits(headroom_mib=0, headroom_files=0)


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(170):
            await test

    asyncio.run(bounded())


@asynccontextmanager
async def collecting(config: LinkConfig, spool: Spool) -> AsyncIterator[TinyCollector]:
    collector = TinyCollector(config, spool)
    await collector.start()
    try:
        yield collector
    finally:
        await collector.stop()


async def emptied(spool: Spool, seconds: float = 90) -> None:
    await poll(lambda: not spool.pending(), seconds)


def alarm(number: int) -> AlarmChange:
    return AlarmChange(f"a-{number}", True, "loss", "accelerator", ("scale_error",), "loss is high", 1.0, "boot", 2.0)


async def sends_whole(config: LinkConfig, folder: Path) -> None:
    spool = Spool(folder, LIMITS)
    manifests = [put_bundle(spool, "bundle-0001"), put_bundle(spool, "bundle-0002", (50_000, 1, 0))]
    uplink = Uplink(config, DEVICE, spool, 1)
    async with collecting(config, spool) as collector, running(uplink):
        await emptied(spool)
        for manifest in manifests:
            assert_whole(collector, manifest)
        assert collector.final == {"bundle-0001", "bundle-0002"}
        third = put_bundle(spool, "bundle-0003", (10_000,))
        uplink.wake()
        await emptied(spool)
        assert_whole(collector, third)
        assert uplink.state.bundles_sent == 3
        # Less than was sent where a connection broke before the broker's answers came.
        assert uplink.state.bytes_sent > 2_900_000
        assert uplink.state.last_answer_monotonic is not None
        assert not uplink.state.refused


def test_bundle_over_mosquitto(tmp_path: Path) -> None:
    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            await sends_whole(link(broker.port), tmp_path / "spool")

    run(test())


def test_bundle_over_mqtt5(tmp_path: Path) -> None:
    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            await sends_whole(link(broker.port, protocol="5"), tmp_path / "spool")

    run(test())


def test_bundle_over_amqtt(tmp_path: Path) -> None:
    async def test() -> None:
        async with amqtt_broker() as port:
            await sends_whole(link(port), tmp_path / "spool")

    run(test())


def test_survives_kill_of_broker(tmp_path: Path) -> None:
    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            config = link(broker.port)
            spool = Spool(tmp_path / "spool", LIMITS)
            manifest = put_bundle(spool, "bundle-0001")
            uplink = Uplink(config, DEVICE, spool, 1)
            async with collecting(config, spool) as collector, running(uplink):
                await collector.until(lambda: collector.chunks >= 20)
                broker.kill()
                assert [entry.id for entry in spool.pending()] == ["bundle-0001"]
                await poll(lambda: not uplink.state.connected)
                broker.start()
                await emptied(spool)
                assert_whole(collector, manifest)
                assert uplink.state.connections == 2
                # What had been acknowledged is not sent again: the window and what the kill lost, at most.
                assert uplink.state.bytes_sent < 3_000_000 + 2_000 + 12 * config.chunk_bytes

    run(test())


def test_survives_restart_of_receiver(tmp_path: Path) -> None:
    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            config = link(broker.port)
            spool = Spool(tmp_path / "spool", LIMITS)
            manifest = put_bundle(spool, "bundle-0001")
            uplink = Uplink(config, DEVICE, spool, 1)
            async with collecting(config, spool) as collector, running(uplink):
                await collector.until(lambda: collector.chunks >= 20)
                await collector.stop()
                await asyncio.sleep(0.2)
                assert [entry.id for entry in spool.pending()] == ["bundle-0001"]
                await collector.start()
                await emptied(spool)
                assert_whole(collector, manifest)
                assert not uplink.state.refused

    run(test())


def test_restart_of_the_board_goes_on(tmp_path: Path) -> None:
    """A second process with the same spool sends only what the collector lacks."""

    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            config = link(broker.port)
            spool = Spool(tmp_path / "spool", LIMITS)
            manifest = put_bundle(spool, "bundle-0001")
            first = Uplink(config, DEVICE, spool, 1)
            async with collecting(config, spool) as collector:
                async with running(first):
                    await collector.until(lambda: collector.chunks >= 40)
                again, here = Spool(tmp_path / "spool", LIMITS), collector.written
                second = Uplink(config, DEVICE, again, 2)
                async with running(second):
                    await emptied(again)
                assert_whole(collector, manifest)
                # The manifest is there too; a file that was under way may go on with chunks of another size.
                assert here > 0 and second.state.bytes_sent <= 3_000_000 - here + 10_000 + 3 * config.chunk_bytes

    run(test())


def test_status_and_will(tmp_path: Path) -> None:
    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            config = link(broker.port)
            spool = Spool(tmp_path / "spool", LIMITS)
            uplink = Uplink(config, DEVICE, spool, 3)
            uplink.set_status(Status(state="online", session=0, model="enhancer"))
            async with collecting(config, spool) as collector:
                async with running(uplink):
                    await collector.until(lambda: bool(collector.status))
                    uplink.set_status(Status(state="online", session=0, model="enhancer", alarm="loss"))
                    await collector.until(lambda: collector.status[-1].alarm == "loss")
                await collector.until(lambda: collector.status[-1].state == "stopped")
                assert {status.session for status in collector.status} == {collector.status[0].session}
                assert collector.status[0].model == "enhancer"

                again = Uplink(config, DEVICE, spool, 4)
                async with mqtt.connect(config, "watcher") as watcher:
                    await watcher.subscribe(f"tidegauge/v1/{DEVICE}/status")
                    seen = watcher.messages()
                    _, retained = await anext(seen)
                    assert b'"stopped"' in retained
                    task = asyncio.create_task(again.run())
                    await collector.until(lambda: collector.status[-1].state == "online")
                    assert collector.status[-1].session > collector.status[0].session
                    online = collector.status[-1].session
                    # A second client with the device's id makes the broker cut the first one off: the will is due.
                    async with mqtt.connect(config, DEVICE):
                        await collector.until(lambda: any(status.state == "lost" for status in collector.status))
                        lost = next(status for status in collector.status if status.state == "lost")
                        assert lost.session == online
                    await collector.until(
                        lambda: collector.status[-1].state == "online" and collector.status[-1].session > online
                    )
                    task.cancel()
                    await asyncio.wait([task], timeout=30)

    run(test())


def test_alarm_overtakes_a_bundle(tmp_path: Path) -> None:
    async def test() -> None:
        async with mosquitto(tmp_path) as broker:
            config = link(broker.port, chunk_bytes=16 * 1024)
            spool = Spool(tmp_path / "spool", LIMITS)
            put_bundle(spool, "bundle-0001")
            uplink = Uplink(config, DEVICE, spool, 1)
            uplink.publish_alarm(alarm(1))  # before there is a link: kept
            async with collecting(config, spool) as collector, running(uplink):
                await collector.until(lambda: collector.chunks >= 20)
                assert collector.order[0] == "alarm"
                before = len(collector.order)
                uplink.publish_alarm(alarm(2))
                await collector.until(lambda: len(collector.alarms) == 2)
                # On the wire before it: what the socket and the broker held, a window at most.
                assert collector.order[before:].index("alarm") <= config.window_chunks + 2
                assert [change.id for change in collector.alarms] == ["a-1", "a-2"]
                await emptied(spool)

    run(test())


def test_no_broker_is_one_line_and_no_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        spool = Spool(tmp_path / "spool", LIMITS)
        put_bundle(spool, "bundle-0001", (1000,))
        config = link(free_port())
        uplink = Uplink(config, DEVICE, spool, 1)
        async with running(uplink):
            uplink.publish_result(Result(1, 1.0, "enhancer", {"mean": 0.5}))
            await asyncio.sleep(0.6)
            assert not uplink.state.connected
            assert "no connection to the broker" in uplink.state.error
        assert uplink.state.publishes["dropped"] == 1
        assert [entry.id for entry in spool.pending()] == ["bundle-0001"]

    with caplog.at_level(logging.INFO):
        run(test())
    assert len([record for record in caplog.records if "no link" in record.message]) == 1


def test_stop_is_quick_where_the_network_swallows_packets(tmp_path: Path) -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and never says a word
            port = silent.getsockname()[1]
            uplink = Uplink(link(port, connect_timeout=30.0), DEVICE, Spool(tmp_path / "spool", LIMITS), 1)
            task = asyncio.create_task(uplink.run())
            await asyncio.sleep(0.3)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=2)
            assert done

    run(test())


def test_errors_have_names(tmp_path: Path) -> None:
    async def open_and_close(config: LinkConfig) -> None:
        async with mqtt.connect(config, "probe"):
            pass

    async def test() -> None:
        passwords = tmp_path / "passwords"
        passwords.write_text("")
        secret = tmp_path / "secret"
        secret.write_text("wrong\n")
        with pytest.raises(mqtt.Unreachable, match="no connection"):
            await open_and_close(link(free_port()))
        async with mosquitto(tmp_path, f"password_file {passwords}\n") as broker:
            await open_and_close(link(broker.port))
            with pytest.raises(mqtt.TlsFailed):
                await open_and_close(link(broker.port, tls=True))
            with pytest.raises(mqtt.TlsFailed, match=r"link\.ca"):
                await open_and_close(link(broker.port, ca=str(tmp_path / "none.pem")))
            with pytest.raises(mqtt.AuthRefused, match="password_file"):
                await open_and_close(link(broker.port, username="cam-7", password_file=str(tmp_path / "none")))
            for protocol in ("3.1.1", "5"):
                with pytest.raises(mqtt.AuthRefused, match="identity"):
                    await open_and_close(
                        link(broker.port, username="cam-7", password_file=str(secret), protocol=protocol)
                    )

    run(test())


def test_refused_publish_is_seen_under_mqtt5(tmp_path: Path) -> None:
    async def test() -> None:
        acl = tmp_path / "acl"
        acl.write_text("topic write allowed/#\n")
        async with (
            mosquitto(tmp_path, f"acl_file {acl}\n") as broker,
            mqtt.connect(link(broker.port, protocol="5"), "probe") as connection,
        ):
            await connection.publish("allowed/1", b"x")
            with pytest.raises(mqtt.PublishRefused, match="0x87"):
                await connection.publish("forbidden/1", b"x")

    run(test())


def test_publishes_in_flight_fail_with_the_connection(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            mosquitto(tmp_path) as broker,
            mqtt.connect(link(broker.port, publish_timeout=30.0), "probe") as connection,
        ):
            waiting = [asyncio.create_task(connection.publish("t", bytes(200_000))) for _ in range(30)]
            await asyncio.sleep(0)
            broker.kill()
            done, pending = await asyncio.wait(waiting, timeout=5)
            assert not pending
            assert any(isinstance(task.exception(), mqtt.LinkLost) for task in done)

    run(test())


def test_oversized_chunks_shrink_until_the_broker_takes_them(tmp_path: Path) -> None:
    """MQTT 3.1.1 tells nobody the limit; the broker hangs up on each chunk that is too large."""

    async def test() -> None:
        async with mosquitto(tmp_path, "max_packet_size 20000\n") as broker:
            config = link(broker.port, chunk_bytes=32 * 1024)
            spool = Spool(tmp_path / "spool", LIMITS)
            manifest = put_bundle(spool, "bundle-0001", (100_000,))
            async with collecting(config, spool) as collector, running(Uplink(config, DEVICE, spool, 1)):
                await emptied(spool, 30)
                assert_whole(collector, manifest)

    run(test())


def test_bundle_over_mutual_tls(tmp_path: Path) -> None:
    """With the access list of the protocol's document; a client without a certificate gets a name for it."""
    ca = CertificateAuthority(tmp_path)
    ca.issue("server", "127.0.0.1")
    ca.issue("device", DEVICE)
    ca.issue("collector", "collector")
    acl = tmp_path / "acl"
    acl.write_text(
        "\n".join(
            [
                *(f"pattern write tidegauge/v1/%u/{leaf}" for leaf in ("status", "alarm", "result", "file/#")),
                "pattern read tidegauge/v1/%u/file-response",
                "user collector",
                "topic write tidegauge/v1/+/file-response",
                *(f"topic read tidegauge/v1/+/{leaf}" for leaf in ("status", "alarm", "result", "file/#")),
                "",
            ]
        )
    )
    extra = f"""cafile {tmp_path}/ca.pem
certfile {tmp_path}/server.pem
keyfile {tmp_path}/server.key
require_certificate true
use_identity_as_username true
acl_file {acl}
"""

    def as_user(port: int, name: str) -> LinkConfig:
        files = {"ca": tmp_path / "ca.pem", "cert": tmp_path / f"{name}.pem", "key": tmp_path / f"{name}.key"}
        return link(port, **{key: str(path) for key, path in files.items()})

    async def test() -> None:
        async with mosquitto(tmp_path, extra) as broker:
            spool = Spool(tmp_path / "spool", LIMITS)
            manifest = put_bundle(spool, "bundle-0001")
            uplink = Uplink(as_user(broker.port, "device"), DEVICE, spool, 1)
            async with collecting(as_user(broker.port, "collector"), spool) as collector, running(uplink):
                await emptied(spool)
                assert_whole(collector, manifest)
            # Which of the two depends on whether the broker hangs up before or after the handshake has ended here.
            with pytest.raises((mqtt.TlsFailed, mqtt.Unreachable), match=r"certificate|link\.cert"):
                async with mqtt.connect(link(broker.port, ca=str(tmp_path / "ca.pem"), connect_timeout=1.0), "thief"):
                    pass
            strangers = tmp_path / "strangers"
            strangers.mkdir()
            CertificateAuthority(strangers)
            with pytest.raises(mqtt.TlsFailed, match=r"link\.ca"):
                async with mqtt.connect(link(broker.port, ca=str(strangers / "ca.pem")), "probe"):
                    pass

    run(test())
