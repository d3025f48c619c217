"""Every trouble that a disk or a clock can give: defined, counted by its name, and never the end of the agent."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import msgspec
import pytest

from tidegauge.bundles.manifest import StoredTensor
from tidegauge.bundles.writer import BundleWriter
from tidegauge.clocks import Stamp
from tidegauge.evaluation.crash_disk import CrashDisk
from tidegauge.evaluation.durability_history import PLAIN
from tidegauge.spool.faults import SpoolFault
from tidegauge.spool.limits import MIB, SpoolLimits, resolved
from tidegauge.spool.planner import DropReason
from tidegauge.spool.records import HistoryRecord, Record, Tombstone, parse
from tidegauge.spool.store import Entry, Spool
from tidegauge.tensors import TensorSpec

ROOT = Path("/disk")
FOLDER = ROOT / "spool"
LIMITS = SpoolLimits(max_mib=4, headroom_mib=0, headroom_files=0)
NOW = Stamp(1.75e9, "boot", 1000.0)


def put(spool: Spool, disk: CrashDisk, name: str, size: int = 50_000, created: Stamp = NOW) -> Entry:
    writer = BundleWriter(spool.prepare(name, size + 32_768, 6), disk)
    blob = writer.add_bytes(Random(name).randbytes(size), "raw")
    tensor = StoredTensor(TensorSpec("x", (size,), "uint8"), blob)
    writer.seal(msgspec.structs.replace(PLAIN, bundle_id=name, created=created, inputs=(tensor,)))
    return spool.commit(name)


def start(disk: CrashDisk, limits: SpoolLimits = LIMITS, now: Stamp = NOW) -> Spool:
    return Spool(FOLDER, limits, disk, lambda: now)


def ids(spool: Spool) -> list[str]:
    return [entry.id for entry in spool.pending()]


def records(spool: Spool, disk: CrashDisk) -> list[Record]:
    return [each for file in spool.journal.close() for each in parse(disk.read(file.path, 1 << 20)).records]


def history(number: int) -> HistoryRecord:
    return HistoryRecord(f"h-{number}", 1, number, NOW, NOW, "m")


def test_room_is_made_before_the_first_byte_is_written() -> None:
    disk = CrashDisk(ROOT, capacity=400_000)
    spool = start(disk)
    for number in range(4):
        put(spool, disk, f"bundle-{number}", 60_000)
    assert disk.room(ROOT).bytes < 150_000
    put(spool, disk, "bundle-large", 120_000)  # would raise ENOSPC in the middle
    assert "bundle-large" in ids(spool)
    assert spool.faults[SpoolFault.FULL] == 0
    dropped = [each for each in records(spool, disk) if isinstance(each, Tombstone)]
    assert {each.id for each in dropped} == {f"bundle-{number}" for number in range(4)} - set(ids(spool))
    assert all(each.reason is DropReason.EVICTED and each.created == NOW and each.bytes > 60_000 for each in dropped)


def test_deletion_works_on_a_full_disk_and_its_tombstone_follows() -> None:
    disk = CrashDisk(ROOT)
    spool = start(disk)
    for number in range(3):
        put(spool, disk, f"bundle-{number}")
    disk.refuse = errno.ENOSPC
    spool.limits = msgspec.structs.replace(LIMITS, max_files=16, headroom_files=(1 << 30) - 8)
    spool.trim()
    gone = {f"bundle-{number}" for number in range(3)} - set(ids(spool))
    assert gone
    assert spool.faults[SpoolFault.FULL] > 0
    disk.refuse = 0
    spool.trim()
    assert {each.id for each in records(spool, disk)} == gone
    again = start(disk)
    assert set(ids(again)) == set(ids(spool))
    assert disk.names(FOLDER / "bundles") == [entry.path.name for entry in again.pending()]


@pytest.mark.parametrize(
    ("number", "fault"),
    [(errno.EROFS, SpoolFault.READ_ONLY), (errno.EIO, SpoolFault.IO), (errno.ENOSPC, SpoolFault.FULL)],
)
def test_what_the_disk_refuses_is_counted_and_tried_again(number: int, fault: SpoolFault) -> None:
    disk = CrashDisk(ROOT)
    spool = start(disk)
    put(spool, disk, "bundle-1")
    put(spool, disk, "bundle-2")
    disk.refuse = number
    with pytest.raises(OSError, match=str(number)):
        spool.prepare("bundle-3", 1000, 5)
    spool.keep(history(1))
    spool.remove("bundle-1")
    assert ids(spool) == ["bundle-2"], "it is not sent again by this run, whatever the disk says"
    assert spool.faults[fault] >= 3
    disk.refuse = 0
    spool.trim()
    assert [each.id for each in records(spool, disk)] == ["h-1"], "a record waits in memory for the disk"
    assert ids(start(disk)) == ["bundle-2"]


def test_a_start_on_a_read_only_disk_still_sends_what_is_there() -> None:
    disk = CrashDisk(ROOT)
    put(start(disk), disk, "bundle-1")
    disk.refuse = errno.EROFS
    spool = start(disk)
    assert ids(spool) == ["bundle-1"]
    spool.trim()
    spool.quarantine("bundle-1")
    assert ids(spool) == []


def test_an_fsync_that_fails_is_never_repeated_on_the_same_file() -> None:
    disk = CrashDisk(ROOT)
    spool = start(disk)
    synced: list[Path] = []

    def failing(step: str, path: Path) -> None:
        if step == "sync file":
            synced.append(path)
            if len(synced) == 1:
                raise OSError(errno.EIO, "Input/output error")

    disk.before = failing
    spool.keep(history(1))
    spool.keep(history(2))
    assert spool.faults[SpoolFault.IO] == 1
    assert len(set(synced)) == len(synced) == 2, "after a failure another segment begins"
    found = [each.id for each in records(spool, disk)]
    assert sorted(set(found)) == ["h-1", "h-2"]


def test_a_corrupt_entry_and_a_foreign_file_are_set_aside_by_name() -> None:
    disk = CrashDisk(ROOT)
    spool = start(disk)
    for name in ("bundle-1", "bundle-2"):
        put(spool, disk, name)
    manifest = spool.pending()[0].path / "manifest.json"
    with disk.create(manifest) as file:
        file.write(b"{")
    for place in ("bundles", "journal"):
        disk.append(FOLDER / place / "notes.txt", b"not ours")
    disk.make_folder(FOLDER / "lost+found")
    again = start(disk)
    assert ids(again) == ["bundle-2"]
    assert again.drops[DropReason.DAMAGED] == 1
    assert again.faults[SpoolFault.FOREIGN] == 2
    assert again.usage().quarantined == 3
    assert [(each.id, each.reason) for each in records(again, disk) if isinstance(each, Tombstone)] == [
        ("bundle-1", DropReason.DAMAGED)
    ]
    assert disk.look(FOLDER / "lost+found") is not None, "what is beside the spool's own folders is nobody's business"


def test_what_was_set_aside_goes_before_any_bundle() -> None:
    disk = CrashDisk(ROOT)
    spool = start(disk, SpoolLimits(max_mib=1, headroom_mib=0, headroom_files=0))
    put(spool, disk, "bundle-1", 500_000)
    spool.quarantine("bundle-1")
    put(spool, disk, "bundle-2", 400_000)
    put(spool, disk, "bundle-3", 400_000)
    assert ids(spool) == ["bundle-2", "bundle-3"]
    assert spool.usage().quarantined == 0


def test_a_clock_in_1970_and_one_that_jumped_back_expire_nothing_and_are_counted() -> None:
    disk = CrashDisk(ROOT)
    spool = start(disk)
    put(spool, disk, "bundle-1970", created=Stamp(5.0, "an older boot", 5.0))
    put(spool, disk, "bundle-back", created=Stamp(1.75e9 + 10 * 86_400, "an older boot", 5.0))
    put(spool, disk, "bundle-old", created=Stamp(1.75e9 - 91 * 86_400, "an older boot", 5.0))
    again = start(disk)
    assert again.faults[SpoolFault.CLOCK] == 2
    again.trim()
    assert ids(again) == ["bundle-1970", "bundle-back"]
    assert again.drops[DropReason.EXPIRED] == 1


def test_a_smaller_quota_holds_at_once_and_keeps_the_first_the_worst_and_the_newest() -> None:
    disk = CrashDisk(ROOT)
    spool = start(disk)
    for number in range(20):
        put(spool, disk, f"bundle-{number:02d}")
    spool.limits = SpoolLimits(max_mib=1, headroom_mib=0, headroom_files=0)
    spool.trim()
    assert spool.usage().bytes <= MIB
    assert {"bundle-00", "bundle-19"} <= set(ids(spool))
    assert spool.drops[DropReason.EVICTED] == 20 - len(ids(spool)) > 0


def test_a_bundle_that_comes_again_replaces_itself_and_is_never_lost_in_between() -> None:
    disk = CrashDisk(ROOT)
    spool = start(disk)
    put(spool, disk, "bundle-1", 10)
    seen: list[int] = []
    disk.before = lambda step, path: seen.append(len(ids(start(disk.after_cut(Random(len(seen)))))))
    put(spool, disk, "bundle-1", 20)
    assert set(seen) == {1}


def test_the_journal_gives_up_its_oldest_segments_when_it_is_full() -> None:
    disk = CrashDisk(ROOT)
    spool = start(disk, msgspec.structs.replace(LIMITS, journal_mib=1))
    for number in range(7000):
        spool.keep(history(number))
    assert spool.journal.bytes <= MIB + 100_000
    kept = [each.id for each in records(spool, disk)]
    assert kept[-1] == "h-6999"
    assert spool.faults[SpoolFault.JOURNAL_FULL] > 0


def test_the_default_quota_follows_the_model() -> None:
    default = SpoolLimits()
    assert resolved(default, None, 10 << 30).bytes == 512 * MIB
    assert resolved(default, 200 * MIB, 10 << 30).bytes == 600 * MIB
    assert resolved(default, MIB, 10 << 30).bytes == 64 * MIB
    assert resolved(default, 200 * MIB, 500 * MIB).bytes == 244 * MIB, "within free space, less the headroom"
    assert resolved(SpoolLimits(max_mib=7), 200 * MIB, 10 << 30).bytes == 7 * MIB, "what is configured holds"


def test_a_torn_line_costs_nothing_but_itself() -> None:
    disk = CrashDisk(ROOT)
    spool = start(disk)
    spool.keep(history(1))
    path = spool.journal.close()[0].path
    whole = disk.read(path, 1000)
    for cut in range(len(whole)):
        assert parse(whole + whole[:cut]).records == (history(1),) or cut == len(whole) - 1
        assert parse(whole[:cut]).damaged <= 1
    assert parse(b"\0" * 100 + b"\n" + whole).records == (history(1),)
    assert parse(whole.replace(b"h-1", b"h-2")).records == (), "another byte is told by the CRC"
