"""A file system whose inodes are full while it has bytes left: on the model of a disk, and on a real tmpfs."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from tidegauge.bundles.manifest import StoredTensor
from tidegauge.bundles.writer import BundleWriter
from tidegauge.clocks import Stamp
from tidegauge.evaluation.crash_disk import CrashDisk
from tidegauge.evaluation.durability_history import PLAIN
from tidegauge.filesystem import REAL, FileSystem
from tidegauge.spool.faults import SpoolFault
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.planner import DropReason
from tidegauge.spool.records import HistoryRecord, Tombstone, parse
from tidegauge.spool.store import Spool, SpoolFull
from tidegauge.tensors import TensorSpec

INODES = 60
BUNDLE = 6
LIMITS = SpoolLimits(max_mib=4, headroom_mib=0, headroom_files=0)
NOW = Stamp(1.75e9, "boot", 1000.0)


@pytest.fixture(params=["model", "tmpfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[FileSystem, Path]]:
    if request.param == "model":
        yield CrashDisk(Path("/disk"), inodes=INODES), Path("/disk")
        return
    options = f"size=16m,nr_inodes={INODES}"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path)], capture_output=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield REAL, tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def put(spool: Spool, disk: FileSystem, name: str) -> None:
    writer = BundleWriter(spool.prepare(name, 40_000, BUNDLE), disk)
    blob = writer.add_bytes(Random(name).randbytes(1000), "raw")
    tensor = StoredTensor(TensorSpec("x", (1000,), "uint8"), blob)
    writer.seal(msgspec.structs.replace(PLAIN, bundle_id=name, created=NOW, inputs=(tensor,)))
    spool.commit(name)


def fill(disk: FileSystem, root: Path) -> None:
    """Somebody else takes what there is."""
    for number in range(INODES):
        try:
            disk.append(root / f"other-{number}", b"")
        except OSError as error:
            assert error.errno == errno.ENOSPC
            return
    raise AssertionError("the inodes never run out")


def test_inodes_that_run_out_cost_the_middle_bundles_and_no_write_that_has_begun(
    place: tuple[FileSystem, Path],
) -> None:
    disk, root = place
    spool = Spool(root / "spool", LIMITS, disk, lambda: NOW)
    names = [f"bundle-{number:02d}" for number in range(20)]
    for name in names:
        put(spool, disk, name)
    left = {entry.id for entry in spool.pending()}
    assert {names[0], names[-1]} <= left < set(names)
    assert spool.faults[SpoolFault.FULL] == 0, "room is made before it is needed"
    told = [each for file in spool.journal.close() for each in parse(disk.read(file.path, 1 << 20)).records]
    assert {each.id for each in told if isinstance(each, Tombstone)} == set(names) - left


def test_inodes_that_others_have_taken_stop_neither_start_nor_deletion_nor_sending(
    place: tuple[FileSystem, Path],
) -> None:
    disk, root = place
    spool = Spool(root / "spool", LIMITS, disk, lambda: NOW)
    for number in range(3):
        put(spool, disk, f"bundle-{number:02d}")
    fill(disk, root)
    again = Spool(root / "spool", LIMITS, disk, lambda: NOW)
    assert [entry.id for entry in again.pending()] == ["bundle-00", "bundle-01", "bundle-02"]
    again.keep(HistoryRecord("h-1", 1, 1, NOW, NOW, "m"))  # a new segment needs an inode: it waits for one
    again.remove("bundle-01")
    assert [entry.id for entry in again.pending()] == ["bundle-00", "bundle-02"]
    fill(disk, root)
    put(again, disk, "bundle-03")  # in the place of another, which is told of
    assert "bundle-03" in {entry.id for entry in again.pending()}
    assert again.drops[DropReason.EVICTED] > 0
    for entry in again.pending():
        again.remove(entry.id)
    fill(disk, root)
    with pytest.raises(SpoolFull, match="no room"):
        again.prepare("bundle-04", 40_000, BUNDLE)
    assert again.drops[DropReason.NO_ROOM] == 1
    assert again.pending() == Spool(root / "spool", LIMITS, disk, lambda: NOW).pending() == []
    for number in range(INODES):
        if disk.look(root / f"other-{number}") is not None:
            disk.unlink(root / f"other-{number}")
    again.trim()
    told = [each for file in again.journal.close() for each in parse(disk.read(file.path, 1 << 20)).records]
    assert "h-1" in {each.id for each in told}, "what waited in memory is on the disk"
    assert {each.reason for each in told if isinstance(each, Tombstone)} == {DropReason.EVICTED, DropReason.NO_ROOM}
    put(again, disk, "bundle-05")
    assert [entry.id for entry in again.pending()] == ["bundle-05"]
