"""What is kept, what goes, what is hashed again, and the way back from a backup."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.cli.collector import command
from tidegauge.clocks import Wall
from tidegauge.collector import retention, verify
from tidegauge.collector.bundle_rows import StoredReport
from tidegauge.collector.config import RetentionConfig
from tidegauge.collector.kept import Kept
from tidegauge.collector.log_kinds import BUNDLE_GIVEN_UP, RETENTION_DONE
from tidegauge.collector.request_rows import Run
from tidegauge.collector.shelf import Shelf
from tidegauge.collector.tables import Bundle

DAY = 86400.0
LATER = Wall(100 * DAY)


def keep(shelf: Shelf, folder: Path, data: bytes, now: float = 0.0) -> str:
    """As a reception does it."""
    source, name = folder / hashlib.sha256(data).hexdigest(), hashlib.sha256(data).hexdigest()
    source.write_bytes(data)
    shelf.store.reprieve(name)
    shelf.store.add_blob(name, shelf.blobs.put(name, source), Wall(now))
    return name


def test_what_people_asked_for_goes_by_age_but_not_what_is_pinned_or_not_over(shelf: Shelf, tmp_path: Path) -> None:
    store, names = shelf.store, ("old", "pinned", "open", "new")
    sources = {name: keep(shelf, tmp_path, f"traces of {name}".encode()) for name in names}
    report = keep(shelf, tmp_path, b"the report of the old one")
    for name in names:
        asked = 95 * DAY if name == "new" else 0.0
        store.add_run(Run(name, "traces", f"{name}.zip", "", "", "ann", asked, {}, sources[name], ""))
        if name != "open":
            store.finish_run(name, "done", [StoredReport("report.html", report, 25)] if name == "old" else ())
    assert store.pin_run("pinned", True) == msgspec.structs.replace(store.run("pinned"), pinned=True)  # type: ignore[type-var]
    assert store.pin_run("nothing", True) is None
    assert apply(shelf) == apply(shelf, run_days=101) == (0, 0) and len(store.runs()) == 4
    rules = RetentionConfig(run_days=30)
    assert [each.name for each in retention.due_runs(store, rules, LATER)] == ["old.zip"]
    assert apply(shelf, run_days=30) == (0, 2)  # its traces and its report
    assert {run.run for run in store.runs()} == {"pinned", "open", "new"}
    assert store.run_file("old", "report.html") is None
    assert not shelf.blobs.has(sources["old"]) and not shelf.blobs.has(report) and shelf.blobs.has(sources["pinned"])
    store.pin_run("pinned", False)
    assert apply(shelf, run_days=30) == (0, 1)


@pytest.fixture
def add(shelf: Shelf, tmp_path: Path, bundle_maker: Callable[..., Any]) -> Callable[..., Any]:
    """A bundle that has been compared, received on day `day`."""

    def put(bundle: str, day: float = 0.0, exit_code: int = 1, **changes: Any) -> Any:
        made = bundle_maker(bundle=bundle, **changes)
        for data in (made.head, *made.blobs.values()):
            keep(shelf, tmp_path, data)
        shelf.store.add_bundle(made.manifest, made.head_id, Wall(day * DAY))
        shelf.store.set_bundle(made.manifest.device, bundle, "compared", exit_code=exit_code)
        return made

    return put


def row(shelf: Shelf, bundle: str) -> Bundle:
    found = shelf.store.bundle("cam-1", bundle)
    assert found is not None
    return found


def apply(shelf: Shelf, **rules: float) -> tuple[int, int]:
    return retention.apply(shelf.store, shelf.blobs.delete, RetentionConfig(**rules), LATER)  # type: ignore[arg-type]


def test_old_bundles_go_by_class_and_pinned_ones_stay(
    shelf: Shelf, add: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    old, pinned = add("bundle-0001", day=10), add("bundle-0002", day=10)
    add("bundle-0003", day=95)
    add("bundle-0004", day=10, exit_code=0)
    shelf.store.pin("cam-1", "bundle-0002", True)
    assert apply(shelf, culprit_days=30) == (1, 1)  # its log: the input is that of the others too
    given_up, done = [record.said for record in caplog.records]
    assert (given_up.kind, given_up.fields["device"], given_up.fields["bundle"]) == (
        BUNDLE_GIVEN_UP,
        "cam-1",
        "bundle-0001",
    )
    assert (done.kind, done.fields) == (RETENTION_DONE, {"bundles": 1, "blobs": 1})
    caplog.clear()
    gone = row(shelf, "bundle-0001")
    assert gone.state == "expired" and gone.exit_code == 1 and "older than 30 days" in gone.reason
    assert shelf.blobs.has(old.head_id)  # what the board said stays
    lost = [name for name in old.blobs if not shelf.blobs.has(name)]
    assert len(lost) == 1 and not shelf.store.has_blob(lost[0])
    assert all(shelf.blobs.has(name) for name in pinned.blobs)
    assert [row(shelf, f"bundle-000{number}").state for number in (2, 3, 4)] == ["compared"] * 3
    assert apply(shelf, culprit_days=30) == (0, 0)
    assert not caplog.records
    assert not shelf.store.add_bundle(old.manifest, old.head_id, LATER)  # a board that offers it again is told "stored"
    assert shelf.store.wanted("cam-1", "bundle-0001") == ()


def test_room_is_made_by_the_least_worth_first(shelf: Shelf, add: Callable[..., Any]) -> None:
    for number, code in ((1, 1), (2, 0), (3, 0), (4, 3)):
        add(f"bundle-000{number}", day=number, exit_code=code)
    total = shelf.store.needed_bytes()
    given_up, deleted = apply(shelf, max_bytes=total - 1)
    assert (given_up, deleted) == (1, 1) and row(shelf, "bundle-0002").state == "expired"
    apply(shelf, max_bytes=1)
    assert {row(shelf, f"bundle-000{number}").state for number in range(1, 5)} == {"expired"}
    assert sum(shelf.store.held().values()) < total


kept_bundles = st.builds(
    Kept,
    device=st.just("cam-1"),
    bundle=st.uuids().map(str),
    state=st.sampled_from(["compared", "failed", "incomplete"]),
    exit_code=st.sampled_from([None, 0, 1, 3]),
    received=st.floats(0, 100 * DAY),
    pinned=st.booleans(),
    own=st.integers(0, 1000),
)


@settings(max_examples=100)
@given(st.lists(kept_bundles, max_size=12), st.integers(0, 3000), st.floats(0, 60))
def test_plan_gives_up_no_more_than_its_rules_say(kept: list[Kept], room: int, days: float) -> None:
    total = sum(item.own for item in kept)
    rules = RetentionConfig(culprit_days=days, max_bytes=room)
    due = retention.plan(kept, total, rules, LATER)
    by_name = {item.bundle: item for item in kept}
    assert len({item.bundle for item in due}) == len(due)
    assert not any(by_name[item.bundle].pinned for item in due)
    left = total - sum(item.own for item in due)
    by_age = [item for item in due if "older" in item.reason]
    by_room = [item for item in due if "older" not in item.reason]
    assert all(days and LATER - by_name[item.bundle].received > days * DAY for item in by_age)
    if by_room:  # without the last one it would not have been enough
        assert room and left + by_room[-1].own > room
    if room and left > room:
        assert {item.bundle for item in kept if not item.pinned and item.own} <= {item.bundle for item in due}


def test_blob_that_nothing_needs_waits_for_its_bundle_a_day(shelf: Shelf, tmp_path: Path) -> None:
    name = keep(shelf, tmp_path, b"early", now=LATER - 3600)
    assert apply(shelf) == (0, 0) and shelf.blobs.has(name)
    keep(shelf, tmp_path, b"early", now=LATER - 2 * DAY)
    assert apply(shelf) == (0, 1) and not shelf.blobs.has(name)


def test_upload_during_collection_keeps_its_bytes(place: Any, tmp_path: Path) -> None:
    """However the two interleave: a blob that was called held after them is there."""
    left, right, blobs = place.open(), place.open(), place.blobs()
    for number in range(15):
        data = f"blob {number}".encode()
        name, source = hashlib.sha256(data).hexdigest(), tmp_path / f"source-{number}"
        source.write_bytes(data)
        left.keep_blob(name, blobs.put(name, source), Wall(0.0))
        start = threading.Barrier(2)

        def collect(start: threading.Barrier = start) -> None:
            start.wait()
            left.condemn(Wall(DAY), Wall(DAY))
            left.execute(blobs.delete)

        def upload(start: threading.Barrier = start, name: str = name, source: Path = source) -> None:
            start.wait()
            if not right.has_blob(name):
                right.reprieve(name)
                right.add_blob(name, blobs.put(name, source), Wall(2 * DAY))

        threads = [threading.Thread(target=each) for each in (collect, upload)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not left.has_blob(name) or blobs.has(name), number
    left.close()
    right.close()


def test_bundle_that_comes_during_collection_is_asked_for_what_went(
    shelf: Shelf, tmp_path: Path, bundle_maker: Callable[..., Any]
) -> None:
    made = bundle_maker()
    for data in made.blobs.values():
        keep(shelf, tmp_path, data)
    assert shelf.store.condemn(Wall(DAY), Wall(DAY)) == 2
    assert not shelf.store.add_bundle(made.manifest, made.head_id, Wall(DAY))
    assert set(shelf.store.wanted("cam-1", "bundle-0001")) == set(made.blobs)
    for data in made.blobs.values():
        keep(shelf, tmp_path, data)  # uploaded again, between the two steps
    assert shelf.store.execute(shelf.blobs.delete) == 0
    assert row(shelf, "bundle-0001").state == "complete" and all(map(shelf.blobs.has, made.blobs))


def spoil(shelf: Shelf, tmp_path: Path, name: str) -> None:
    """Other bytes of the same size under a blob's name, past the store's own check."""
    size = shelf.blobs.size(name)
    assert size is not None
    (tmp_path / "spoilt").write_bytes(b"x" * size)
    shelf.blobs._store.put(shelf.blobs._key(name), tmp_path / "spoilt")


def test_verification_names_what_is_wrong_and_repair_asks_again(
    shelf: Shelf, add: Callable[..., Any], tmp_path: Path
) -> None:
    made = add("bundle-0001")
    lost, damaged = made.blobs
    shelf.blobs.delete(lost)
    spoil(shelf, tmp_path, damaged)
    other = tmp_path / "other"
    other.write_bytes(b"nobody knows this")
    stray = hashlib.sha256(b"nobody knows this").hexdigest()
    shelf.blobs.put(stray, other)
    found = verify.verify(shelf.store, shelf.blobs)
    told = {fault.sha256: (fault.kind, fault.bundles) for fault in found.faults}
    needed = ("cam-1/bundle-0001",)
    assert told == {lost: ("missing", needed), damaged: ("damaged", needed), stray: ("unknown", ())}
    done = verify.repair(shelf.store, shelf.blobs, found, 1 << 20, lambda *_: None)
    assert done.asked_again == needed and verify.verify(shelf.store, shelf.blobs).faults == ()
    assert set(shelf.store.wanted("cam-1", "bundle-0001")) == {lost, damaged}
    for data in made.blobs.values():  # and a board that still has them makes the bundle whole
        keep(shelf, tmp_path, data)
    again = row(shelf, "bundle-0001")
    assert again.state == "complete" and again.generation == 1


def test_repair_takes_in_no_manifest_that_may_not_come_in(
    shelf: Shelf, tmp_path: Path, bundle_maker: Callable[..., Any]
) -> None:
    made = bundle_maker()
    source = tmp_path / "head"
    source.write_bytes(made.head)
    shelf.blobs.put(made.head_id, source)
    shelf.store.pin_key("cam-1", "ab" * 32, Wall(0.0))  # this board signs, and this manifest is not signed
    found = verify.verify(shelf.store, shelf.blobs)
    done = verify.repair(shelf.store, shelf.blobs, found, 1 << 20, shelf.trust.check)
    assert done.readmitted == () and shelf.store.bundles() == []


class Embedded:
    """The commands on a collector's data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, folder / "collector.toml"
        self.config.write_text('data = "."\n[link]\n')

    def __call__(self, *arguments: str | Path, code: int = 0) -> str:
        name, *rest = map(str, arguments)
        done = CliRunner().invoke(command, [name, "--config", str(self.config), *rest])
        assert done.exit_code == code, (done.output, done.exception)
        return done.output


@pytest.mark.parametrize("place", ["sqlite+folder"], indirect=True)
def test_older_database_loses_nothing_that_came_since(
    shelf: Shelf, add: Callable[..., Any], tmp_path: Path, bundle_maker: Callable[..., Any]
) -> None:
    collector = Embedded(tmp_path)
    add("bundle-0001")
    assert "3 blobs" in collector("backup", tmp_path / "backup")
    later = add("bundle-0002")  # taken in, told "stored", and deleted by the board
    shelf.store.close()
    assert "collector.sqlite exists" in str(
        CliRunner().invoke(command, ["restore", "--config", str(collector.config), str(tmp_path / "backup")]).exception
    )
    (tmp_path / "collector.sqlite").unlink()
    collector("restore", tmp_path / "backup")
    assert "unknown: " in collector("verify", code=1)
    assert "1 bundles taken in again" in collector("verify", "--repair")
    answer = json.loads(collector("verify", "--json", "-"))
    assert answer["faults"] == [] and answer["blobs"] == 5
    assert row(shelf, "bundle-0001").state == "compared"
    assert row(shelf, "bundle-0002").state == "complete" and row(shelf, "bundle-0002").blobs_held == len(later.blobs)


@pytest.mark.parametrize("place", ["sqlite+folder"], indirect=True)
def test_backup_on_another_disk_is_whole_and_renewed(shelf: Shelf, add: Callable[..., Any], tmp_path: Path) -> None:
    collector = Embedded(tmp_path)
    add("bundle-0001")
    collector("backup", tmp_path / "backup")
    add("bundle-0002")
    collector("backup", tmp_path / "backup")
    shelf.store.close()
    new = tmp_path / "new"
    new.mkdir()
    restored = Embedded(new)
    restored("restore", tmp_path / "backup")
    assert "0 faults" in restored("verify")
    listed = json.loads(restored("findings", "--json", "-"))
    assert listed == []


@pytest.mark.parametrize("place", ["sqlite+folder"], indirect=True)
def test_pin_and_preview(shelf: Shelf, add: Callable[..., Any], tmp_path: Path) -> None:
    collector = Embedded(tmp_path)
    add("bundle-0001")
    collector.config.write_text('data = "."\n[link]\n[retention]\nculprit_days = 1\n')
    assert "older than 1 days" in collector("retention")
    collector("pin", "cam-1", "bundle-0001")
    assert collector("retention") == "0 bundles, 0 bytes; 0 runs\n"
    collector("pin", "cam-1", "bundle-0001", "--off")
    assert len(json.loads(collector("retention", "--json", "-"))) == 1
    missing = CliRunner().invoke(command, ["pin", "--config", str(collector.config), "cam-1", "nothing-0001"])
    assert "has sent no bundle" in str(missing.exception)
