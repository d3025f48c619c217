"""The database itself: its schema, made and upgraded, and what several processes may do to it at once."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text

from tidegauge.clocks import Wall
from tidegauge.collector import tables
from tidegauge.collector.log_kinds import DATABASE_MIGRATED
from tidegauge.collector.store import Store
from tidegauge.collector.transfer_rows import Claimant
from tidegauge.errors import TidegaugeError
from tidegauge.link.wire import AlarmChange, Status

FILE = "f" * 64
LEFT, RIGHT = Claimant("left", 15.0), Claimant("right", 15.0)
SCHEMA_1 = Path(__file__).parent / "data" / "schema1.sql"


def differences(store: Store) -> list[Any]:
    """Between the schema that the migrations make and the one that the program has in mind."""
    with store._engine.begin() as connection:
        return list(compare_metadata(MigrationContext.configure(connection), tables.metadata))


def test_new_database_has_the_schema_of_the_program(store: Store) -> None:
    assert differences(store) == []


def test_database_of_the_previous_version_is_upgraded_with_all_in_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "collector.sqlite"
    with sqlite3.connect(path) as old:
        old.executescript(SCHEMA_1.read_text())
    old.close()
    store = Store(path)
    (said,) = [record.said for record in caplog.records if hasattr(record, "said")]
    assert said.kind is DATABASE_MIGRATED and said.fields["before"] == "0001" < said.fields["after"]
    assert differences(store) == []
    done, waiting = store.bundles()
    assert (done.state, done.culprit, done.exit_code, done.generation) == ("compared", "conv3", 1, 0)
    assert (waiting.state, waiting.blobs, waiting.blobs_wanted, waiting.blobs_held) == ("waiting_blobs", 2, 2, 1)
    assert waiting.progress == waiting.received == 1001.0
    (transfer,) = store.open_transfers()
    assert transfer.coverage == ((0, 100), (200, 300)) and transfer.size == 950
    assert store.devices()[0].alarms == 1
    name = store.collector()
    store.close()
    caplog.clear()
    again = Store(path)
    assert again.collector() == name and len(again.bundles()) == 2
    assert not caplog.records, "nothing to tell of a database that is up to date"
    again.close()


def test_database_of_a_newer_version_is_refused_by_name(place: Any) -> None:
    store = place.open()
    with store._engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    store.close()
    with pytest.raises(TidegaugeError, match="newer version of Tidegauge"):
        place.open()


def test_what_is_no_database_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "collector.sqlite").write_bytes(b"this is no database, and long enough to look at" * 100)
    with pytest.raises(TidegaugeError, match="can't be opened") as caught:
        Store(tmp_path / "collector.sqlite")
    assert "\n" not in str(caught.value)
    with pytest.raises(TidegaugeError, match=r"can't be opened.*database\.url"):
        Store(f"postgresql://nobody@/nothing?host={tmp_path}&port=5432")


def test_coverage_is_the_union_of_what_any_ingester_has_written(place: Any) -> None:
    left, right = place.open(), place.open()
    left.set_transfer("cam-1", "f" * 64, {"name": "x"}, 10, Wall(1.0))
    assert left.add_coverage("cam-1", "f" * 64, ((0, 2), (4, 6)), Wall(2.0)) == ((0, 2), (4, 6))
    assert right.add_coverage("cam-1", "f" * 64, ((2, 4),), Wall(3.0)) == ((0, 6),)
    right.set_transfer("cam-1", "f" * 64, {"name": "y"}, 10, Wall(4.0))  # another ingester opens it: it is open
    assert left.set_fin("cam-1", "f" * 64, Wall(5.0)) == ((0, 6),)
    left.beat("left", "host-1", "1")
    claims = [left.claim_check("cam-1", FILE, LEFT), right.claim_check("cam-1", FILE, RIGHT)]
    assert [each.mine for each in claims] == [True, False]
    left.end_transfer("cam-1", "f" * 64, "stored", "", Wall(6.0))
    assert right.add_coverage("cam-1", "f" * 64, ((8, 9),), Wall(7.0)) == ()
    found = right.transfer("cam-1", "f" * 64)
    assert found is not None and found[0].coverage == ((0, 6),)
    left.close()
    right.close()


def later(store: Store, change: str) -> None:
    with store._engine.begin() as connection:
        connection.exec_driver_sql(change)


def test_check_of_a_process_that_has_died_is_free_at_once_and_of_a_living_one_when_it_is_stuck(place: Any) -> None:
    left, right = place.open(), place.open()
    for store, name in ((left, "left"), (right, "right")):
        store.beat(name, "host", "1")
    left.set_transfer("cam-1", FILE, {"name": "x"}, 10, Wall(1.0))
    assert left.claim_check("cam-1", FILE, LEFT).mine and left.has_check("cam-1", FILE, LEFT)
    later(left, "UPDATE transfers SET verifying = verifying - 200")
    refused = right.claim_check("cam-1", FILE, RIGHT)
    assert not refused.mine and 200.0 <= refused.seconds < 300.0 and not right.has_check("cam-1", FILE, RIGHT)
    later(left, "UPDATE executors SET beat = beat - 20 WHERE executor = 'left'")
    assert not right.claim_check("cam-1", FILE, Claimant("right", 500.0)).mine, "it may be only slow"
    assert right.claim_check("cam-1", FILE, RIGHT).mine and not left.has_check("cam-1", FILE, LEFT)
    left.give_back_check("cam-1", FILE, LEFT)  # a dead one that wakes up gives back nothing of the other's
    left.beat("left", "host", "1")
    assert not left.claim_check("cam-1", FILE, LEFT).mine
    right.leave("right")  # or was buried
    assert left.claim_check("cam-1", FILE, LEFT).mine
    assert left.claim_check("cam-1", FILE, LEFT).mine, "killed and started again, under its name"
    later(left, "UPDATE transfers SET verifying = verifying - 301")
    assert right.claim_check("cam-1", FILE, RIGHT).mine, "it lives, and is stuck"
    right.give_back_check("cam-1", FILE, RIGHT)
    assert left.claim_check("cam-1", FILE, LEFT).mine
    left.close()
    right.close()


def test_claim_without_a_name_is_waited_for(place: Any) -> None:
    """A process of the version before, beside one of this, until all are upgraded."""
    store = place.open()
    store.set_transfer("cam-1", FILE, {"name": "x"}, 10, Wall(1.0))
    assert store.claim_check("cam-1", FILE, LEFT).mine
    later(store, "UPDATE transfers SET verifier = ''")
    assert not store.claim_check("cam-1", FILE, RIGHT).mine
    later(store, "UPDATE transfers SET verifying = verifying - 301")
    assert store.claim_check("cam-1", FILE, RIGHT).mine
    store.end_transfer("cam-1", FILE, "stored", "", Wall(2.0))
    ended = store.claim_check("cam-1", FILE, LEFT)
    assert (ended.mine, ended.seconds) == (False, 0.0)
    store.close()


def test_of_several_that_find_a_dead_ones_check_one_takes_it(place: Any) -> None:
    names = [f"ingester-{number}" for number in range(3)]
    stores = [place.open() for _ in names]
    for store, name in zip(stores, names, strict=True):
        store.beat(name, "host", "1")
    for number in range(12):
        file_id = f"{number:064x}"
        stores[0].set_transfer("cam-1", file_id, {"name": "x"}, 10, Wall(1.0))
        assert stores[0].claim_check("cam-1", file_id, Claimant("the-dead", 15.0)).mine
        start, taken = threading.Barrier(3), list[str]()

        def take(
            store: Store,
            name: str,
            file_id: str = file_id,
            start: threading.Barrier = start,
            taken: list[str] = taken,
        ) -> None:
            start.wait()
            if store.claim_check("cam-1", file_id, Claimant(name, 15.0)).mine:
                taken.append(name)

        threads = [threading.Thread(target=take, args=each) for each in zip(stores, names, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(taken) == 1 and stores[0].has_check("cam-1", file_id, Claimant(taken[0], 15.0))
    for store in stores:
        store.close()


def test_last_two_blobs_at_once_complete_their_bundle_once(place: Any, bundle_maker: Callable[..., Any]) -> None:
    """Of two ingesters one at least must see both blobs, in every order of their transactions."""
    stores = [place.open(), place.open(), place.open()]
    for number in range(12):
        made = bundle_maker(bundle=f"bundle-{number:04d}", inputs=())
        start = threading.Barrier(3)
        done: list[Any] = []

        def add(store: Store, blob: str, start: threading.Barrier = start, done: list[Any] = done) -> None:
            start.wait()
            done.extend(store.add_blob(blob, 1, Wall(1.0)))

        def take(store: Store, made: Any = made, start: threading.Barrier = start, done: list[Any] = done) -> None:
            start.wait()
            if store.add_bundle(made.manifest, made.head_id, Wall(1.0)):
                done.append((made.manifest.device, made.manifest.bundle_id))

        threads = [
            threading.Thread(target=take, args=(stores[0],)),
            threading.Thread(target=add, args=(stores[1], next(iter(made.blobs)))),
            threading.Thread(target=add, args=(stores[2], list(made.blobs)[-1])),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        row = stores[0].bundle("cam-1", f"bundle-{number:04d}")
        assert row is not None and row.state == "complete" and set(done) == {("cam-1", f"bundle-{number:04d}")}
    for store in stores:
        store.close()


def change(number: int, active: bool, detector: str = "loss") -> AlarmChange:
    return AlarmChange(f"a{number}", active, detector, "accelerator", (), "Output is black.", 1.0, "b", 2.0)


def names(store: Store) -> list[tuple[str, str]]:
    return sorted((each.detector, each.verdict) for each in store.active_alarms())


def test_alarm_raised_while_nobody_listened_is_told_by_the_retained_status(store: Store) -> None:
    latched = Status("online", 5, alarm="loss, golden", detail={"alarm.accelerator": 1.0})
    store.set_status("cam-1", latched, Wall(100.0))
    assert names(store) == [("golden", "accelerator"), ("loss", "accelerator")]
    store.set_status("cam-1", latched, Wall(160.0))  # repeated every minute
    assert len(store.active_alarms()) == 2 and store.devices()[0].alarms == 2
    store.set_alarm("cam-1", change(7, True), Wall(161.0))  # its own message comes late: it is the same alarm
    assert len(store.active_alarms()) == 2
    store.set_status("cam-1", Status("online", 5, alarm="loss"), Wall(162.0))
    assert names(store) == [("loss", "accelerator")]
    store.set_alarm("cam-1", change(7, False), Wall(163.0))
    store.set_alarm("cam-1", change(7, True), Wall(164.0))  # out of order: what was cleared stays so
    assert names(store) == []


def test_alarm_cleared_while_nobody_listened_ends_and_a_fresh_one_is_not_taken_for_it(store: Store) -> None:
    store.set_alarm("cam-1", change(1, True), Wall(100.0))
    store.set_status("cam-1", Status("online", 5), Wall(101.0))  # overtaken by the alarm that it doesn't know yet
    assert names(store) == [("loss", "accelerator")]
    store.set_status("cam-1", Status("lost", 5), Wall(1000.0))  # a will knows nothing of alarms
    assert names(store) == [("loss", "accelerator")]
    store.set_status("cam-1", Status("online", 6), Wall(1001.0))
    assert names(store) == []


def test_only_what_a_board_says_again_is_committed_without_a_sync(tmp_path: Path) -> None:
    """On one and the same connection, in turns: 2 is FULL, 1 is NORMAL (sqlite.org/pragma.html)."""
    store = Store(tmp_path / "collector.sqlite")
    found = []
    for engine in (store._engine, store._passing, store._reading, store._engine, store._passing, store._passing):
        with engine.begin() as connection:
            found.append(connection.exec_driver_sql("PRAGMA synchronous").scalar())
    assert found == [2, 1, 1, 2, 1, 1]
    store.close()
