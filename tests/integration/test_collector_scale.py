"""Several processes of one collector on one broker, two collectors on one broker, and boards that spoke to nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from integration import database_servers
from integration.collector_peer import DEADLINE, Board, Process, bundle, mosquitto, needs_mosquitto
from tidegauge.link import mqtt
from tidegauge.link.config import LinkConfig
from tidegauge.link.sender import Done
from tidegauge.link.wire import Status, encode, topic

pytestmark = needs_mosquitto


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[int]:
    folder = tmp_path / "broker"
    folder.mkdir()
    with mosquitto(folder) as port:
        yield port


def made(folder: Path, broker: int, more: str = "", environment: dict[str, str] | None = None) -> Process:
    folder.mkdir()
    return Process(folder, broker, more, environment)


@pytest.mark.slow
def test_ingesters_share_a_transfer_and_one_of_them_may_be_killed(tmp_path: Path, broker: int) -> None:
    database_servers.required()
    with database_servers.postgresql() as cluster, database_servers.s3() as s3:
        more = (
            f'[database]\nurl = "{cluster.database()}"\n[ingest]\ngroup = "ingest"\n'
            f'[blobs]\nbucket = "{s3.bucket()}"\nendpoint = "{s3.endpoint}"\nregion = "us-east-1"\n'
        )
        one, two = (made(tmp_path / name, broker, more, s3.environment) for name in ("one", "two"))
        for each in (one, two):
            each.start()
        for each in (one, two):
            each.until("api/v1/health", lambda health: health["broker_connected"])
        head, blobs = bundle("cam-1", "bundle-0001", 400_000)
        board = Board(broker, head, blobs, "cam-1")
        received: list[float] = []

        def on_chunk(count: int) -> None:
            if count == 12:
                received.extend(bytes_received(each) for each in (one, two))
                one.kill()

        assert asyncio.run(board.send(on_chunk)) == Done("b")
        assert len(received) == 2 and all(count > 0 for count in received), "one of them had all"
        rows = two.until("api/v1/bundles", lambda rows: bool(rows) and rows[0]["state"] in ("compared", "failed"))
        assert rows[0]["blobs_held"] == rows[0]["blobs"] == 2
        one.start()  # it shows what the other has taken in
        one.until("api/v1/bundles", lambda rows: bool(rows) and rows[0]["blobs_held"] == 2)
        for each in (one, two):
            each.kill()


@pytest.mark.slow
def test_file_that_a_killed_ingester_was_checking_is_stored_by_another(tmp_path: Path, broker: int) -> None:
    """The kill falls between claim and commit. A living one's claim would last far longer than the deadline."""
    database_servers.required()
    with database_servers.postgresql() as cluster, database_servers.s3() as s3:
        url = cluster.database()
        more = (
            f'[database]\nurl = "{url}"\n[ingest]\ngroup = "ingest"\n[workers]\nheartbeat = 0.5\ndead_after = 5.0\n'
            f'[blobs]\nbucket = "{s3.bucket()}"\nendpoint = "{s3.endpoint}"\nregion = "us-east-1"\n'
        )
        one, two = (made(tmp_path / name, broker, more, s3.environment) for name in ("one", "two"))
        one.start()
        one.until("api/v1/health", lambda health: health["broker_connected"])
        head, blobs = bundle("cam-1", "bundle-0001", 40_000)
        board = Board(broker, head, blobs, "cam-1")

        async def send() -> None:
            with psycopg.connect(url, autocommit=True) as watching, psycopg.connect(url) as holding:
                holding.execute("LOCK TABLE blobs IN EXCLUSIVE MODE")  # which "stored" must write
                sending = asyncio.create_task(board.send())
                while watching.execute("SELECT 1 FROM transfers WHERE verifying > 0").fetchone() is None:
                    assert not sending.done(), sending
                    await asyncio.sleep(0.05)
                await asyncio.to_thread(one.kill)
                holding.rollback()
            await asyncio.to_thread(two.start)
            assert await sending == Done("b")

        try:
            asyncio.run(send())
            (row,) = two.get("api/v1/bundles")
            assert row["blobs_held"] == row["blobs"] == 2
        finally:
            for each in (one, two):
                if each.process is not None:
                    each.kill()


def bytes_received(process: Process) -> float:
    lines = process.get("metrics").splitlines()
    return float(
        next(line for line in lines if line.startswith("tidegauge_collector_received_bytes_total")).split()[-1]
    )


@pytest.mark.slow
def test_second_collector_stands_back_by_name_until_the_first_is_gone(tmp_path: Path, broker: int) -> None:
    first, second = made(tmp_path / "first", broker), made(tmp_path / "second", broker)
    first.start()
    first.until("api/v1/health", lambda health: health["broker_connected"])
    second.start()
    health = second.until("api/v1/health", lambda health: bool(health["stands_back"]))
    assert health["status"] == "degraded" and not health["broker_connected"]
    assert "serves this broker, with a database of its own" in second.log()
    head, blobs = bundle("cam-1", "bundle-0001", 10_000)
    assert asyncio.run(Board(broker, head, blobs, "cam-1").send()) == Done("b")
    first.until("api/v1/bundles", lambda rows: len(rows) == 1)
    assert second.get("api/v1/bundles") == []
    first.stop()
    second.until("api/v1/health", lambda health: health["broker_connected"] and not health["stands_back"])
    second.stop()


@pytest.mark.slow
def test_alarm_that_was_raised_while_no_collector_ran_is_seen(tmp_path: Path, broker: int) -> None:
    status = Status("online", 7, model="enhancer", alarm="golden", detail={"alarm.accelerator": 1.0})

    async def speak() -> None:
        async with mqtt.connect(LinkConfig(port=broker), "cam-1") as connection:
            await connection.publish(topic("cam-1", "status"), encode(status), retain=True)

    asyncio.run(speak())
    collector = made(tmp_path / "collector", broker)
    collector.start()
    rows = collector.until("api/v1/devices", lambda rows: bool(rows) and rows[0]["alarms"] == 1)
    assert rows[0]["alarm"] == "golden"
    series = 'tidegauge_device_drift_alarm{cause="accelerator",device="cam-1",model="enhancer"} 1.0'
    deadline = time.monotonic() + DEADLINE
    while series not in collector.get("metrics"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    collector.stop()
