"""A real mosquitto, the real collector as a process, and the board's own sender between them."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from integration.collector_peer import Board, Process, bundle, mosquitto, needs_mosquitto, publish
from tidegauge.link import mqtt
from tidegauge.link.commands import init_topic, response_topic
from tidegauge.link.config import LinkConfig
from tidegauge.link.sender import Done, Refused
from tidegauge.link.wire import AlarmChange, Init, Status, encode, topic

pytestmark = needs_mosquitto


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with mosquitto(tmp_path_factory.mktemp("broker")) as port:
        yield port


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory, broker: int) -> Iterator[Process]:
    """Starting takes seconds: one for all tests, each with a device of its own."""
    process = Process(tmp_path_factory.mktemp("collector"), broker)
    process.start()
    process.until("api/v1/health", lambda health: health["broker_connected"])
    yield process
    process.stop()


def ended(bundles: list[dict[str, Any]]) -> bool:
    return bool(bundles) and bundles[0]["state"] in ("compared", "failed")


def stored(collector: Process, head: bytes, blobs: dict[str, bytes]) -> bool:
    files = {**blobs, hashlib.sha256(head).hexdigest(): head}
    return all((collector.data / "blobs" / "sha256" / name).read_bytes() == data for name, data in files.items())


def of(device: str) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda rows: [row for row in rows if row["device"] == device]


def test_bundle_is_stored_compared_and_free_to_repeat(collector: Process, broker: int) -> None:
    head, blobs = bundle("cam-1", "bundle-0001", 100_000)
    board = Board(broker, head, blobs, "cam-1")
    assert asyncio.run(board.send()) == Done("b")
    assert board.chunks >= 8 and stored(collector, head, blobs)

    (row,) = collector.until("api/v1/bundles", ended)
    assert row["device"] == "cam-1" and row["symptoms"] == ["black_output"] and row["blobs_held"] == row["blobs"] == 2
    assert row["state"] == "failed" and row["reason"]  # no trace in it, so nothing that could be compared

    again = Board(broker, head, blobs, "cam-1")
    assert asyncio.run(again.send()) == Done("b")
    assert again.chunks == 0
    assert len(collector.get("api/v1/bundles")) == 1

    detail = collector.get("api/v1/bundles/cam-1/bundle-0001")
    assert detail["wanted"] == [] and detail["manifest"]["cause"]["message"] == "The golden test fails."
    assert "The golden test fails." in collector.get("bundles/cam-1/bundle-0001")
    assert "bundle-0001" in collector.get("")


def test_malformed_messages_are_answered_or_counted_and_never_fatal(collector: Process, broker: int) -> None:
    end = asyncio.run(Board(broker, b'{"schema": 1, "device": 5}', {}, "cam-3").send())
    assert isinstance(end, Refused) and end.reason.startswith("bad_manifest")
    named = asyncio.run(Board(broker, b"{}", {}, "uploads").send())
    assert isinstance(named, Refused) and "give the board another one (key `device`" in named.reason
    junk = (
        (topic("runs", "status"), encode(Status("online", 1))),
        (topic("cam-3", "status"), b"{"),
        (topic("cam-3", "status"), b"[" * 50_000),
        (topic("cam-3", "alarm"), b"\x00\xff"),
        (topic("a b", "status"), encode(Status("online", 1))),
        (topic("cam-3", "file", "..", "init"), b"{}"),
        (topic("cam-3", "file", "0" * 64, "7", "0" * 64), b"no such transfer"),
        (topic("cam-3", "file", "0" * 64, "init"), b'{"name": "x", "size": -1, "checksum": "y"}'),
        (topic("cam-3", "status"), encode(Status("online", 9, phase="acceptance"))),
    )
    asyncio.run(publish(broker, *junk))
    rows = collector.until("api/v1/devices", lambda rows: any(row["state"] == "online" for row in of("cam-3")(rows)))
    assert of("cam-3")(rows)[0]["phase"] == "acceptance"
    metrics = collector.get("metrics")
    assert not of("runs")(rows) and not of("uploads")(rows)
    for reason, count in (
        ("reserved_name", 2),
        ("bad_topic", 2),
        ("bad_status", 2),
        ("bad_alarm", 1),
        ("bad_manifest", 1),
    ):
        assert f'tidegauge_collector_refused_total{{reason="{reason}"}} {count}.0' in metrics


def test_late_will_does_not_overwrite_a_newer_birth(collector: Process, broker: int) -> None:
    alarm = AlarmChange("a1", True, "golden", "accelerator", ("black_output",), "Output is black.", 1.0, "b", 2.0)
    asyncio.run(
        publish(
            broker,
            (topic("cam-4", "status"), encode(Status("online", 2, phase="monitoring", progress=0.5))),
            (topic("cam-4", "status"), encode(Status("lost", 1))),
            (topic("cam-4", "alarm"), encode(alarm)),
        )
    )
    rows = collector.until("api/v1/devices", lambda rows: any(row["alarms"] == 1 for row in of("cam-4")(rows)))
    (device,) = of("cam-4")(rows)
    assert (device["state"], device["session"], device["phase"]) == ("online", 2, "monitoring")
    expected = 'tidegauge_device_drift_alarm{cause="accelerator",device="cam-4",model=""} 1.0'
    assert expected in collector.get("metrics")
    asyncio.run(publish(broker, (topic("cam-4", "status"), encode(Status("lost", 2)))))
    rows = collector.until("api/v1/devices", lambda rows: of("cam-4")(rows)[0]["state"] == "lost")
    assert of("cam-4")(rows)[0]["phase"] == "monitoring"  # as last told


def test_response_topic_of_another_device_is_nobodys_address(collector: Process, broker: int) -> None:
    """MQTT 5 lets a sender name where the answer goes; with that, one board could speak to another in our name."""

    def init(device: str) -> tuple[str, bytes]:
        name = hashlib.sha256(device.encode()).hexdigest()
        return init_topic(device, name), encode(Init("x", 1, name))

    async def test() -> list[str]:
        async with asyncio.timeout(60), mqtt.connect(LinkConfig(port=broker, protocol="5"), "two-faced") as connection:
            await connection.subscribe("tidegauge/v1/+/file-response")
            asked = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            asked.ResponseTopic, asked.CorrelationData = response_topic("cam-6"), b"x"
            connection._paho.publish(*init("cam-5"), 1, False, asked)
            await connection.publish(*init("cam-7"))
            heard = connection.messages()
            return [(await anext(heard))[0] for _ in range(2)]

    assert sorted(asyncio.run(test())) == [response_topic("cam-5"), response_topic("cam-7")]


def test_refusals_to_start_are_one_sentence(collector: Process, tmp_path: Path) -> None:
    port = collector.url.rsplit(":", 1)[1].rstrip("/")
    cases = {
        "missing.toml": (None, "missing.toml does not exist"),
        "typo.toml": ('data = "d"\n[link]\n[http]\nprot = 1\n', "did you mean `port`?"),
        "busy.toml": (f'data = "d"\n[link]\n[http]\nport = {port}\n', f"127.0.0.1:{port}"),
        "second.toml": (f'data = "{collector.data}"\n[link]\n[http]\nport = 0\n', "another collector"),
    }
    running = {}
    for name, (text, _) in cases.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        command = [sys.executable, "-m", "tidegauge", "collector", "run", "--config", str(tmp_path / name)]
        running[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for name, process in running.items():
        out, err = process.communicate(timeout=60)
        assert process.returncode == 2 and out == "", (name, out, err)
        assert cases[name][1] in err and err.count("\n") == 1 and "Traceback" not in err, (name, err)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[int]:
    """Beside no other collector: two with separate stores would answer for each other."""
    with mosquitto(tmp_path) as port:
        yield port


def test_kill_in_the_middle_loses_nothing(tmp_path: Path, own_broker: int) -> None:
    collector = Process(tmp_path, own_broker)
    collector.start()
    head, blobs = bundle("cam-2", "bundle-0002", 300_000)
    board = Board(own_broker, head, blobs, "cam-2")
    kills: list[int] = []

    def on_chunk(count: int) -> None:
        if count == 9:
            kills.append(count)
            collector.kill()
            collector.start()

    assert asyncio.run(board.send(on_chunk)) == Done("b")
    assert kills == [9]
    collector.kill()  # "stored" was said: what was promised is on the disk
    assert stored(collector, head, blobs)
    collector.start()
    (row,) = collector.until("api/v1/bundles", ended)
    assert row["blobs_held"] == row["blobs"] == 2
    collector.stop()
