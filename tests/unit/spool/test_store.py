"""The spool on a real file system: states, recovery after every crash point, quotas, drops that are counted."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest

from tidegauge.bundles import layout
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import Cause, Inventory, Manifest, StoredTensor
from tidegauge.bundles.reader import read_manifest
from tidegauge.bundles.writer import BundleWriter
from tidegauge.clocks import Stamp, stamp
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.spool import store
from tidegauge.spool.faults import SpoolFault
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.planner import DropReason
from tidegauge.spool.states import QUARANTINED_KEPT
from tidegauge.spool.store import Spool, SpoolFull
from tidegauge.tensors import TensorSpec

LIMITS = SpoolLimits(headroom_mib=0, headroom_files=0)


def write(folder: Path, bundle_id: str, size: int, created: Stamp | None = None, loss: float | None = 0.5) -> None:
    writer = BundleWriter(folder)
    blob = writer.add_bytes(Random(bundle_id).randbytes(size))
    manifest = Manifest(
        bundle_id=bundle_id,
        device="cam-1",
        virtual=True,
        created=created or stamp(),
        cause=Cause("loss", "accelerator", (), {}, "The loss has risen."),
        profile=Profile("m", "onnx", "m.onnx", "a", Preprocess(8, 8), Output("enhanced", "image", 1 / 255)),
        inventory=Inventory({}, "cd" * 32, {}, {}),
        options={},
        benchmark={},
        inputs=(StoredTensor(TensorSpec("input", (size,), "uint8"), blob),),
        device_outputs=(),
        reference_outputs=(),
        traced_outputs=(),
        tracing_changed_output=False,
        errors=(),
        loss=loss,
        traces=(),
        logs=(),
        model=None,
        artifacts=(),
    )
    writer.seal(manifest)


def put(spool: Spool, bundle_id: str, size: int = 1000, created: Stamp | None = None) -> store.Entry:
    write(spool.prepare(bundle_id, size, 10), bundle_id, size, created)
    return spool.commit(bundle_id)


def ids(spool: Spool) -> list[str]:
    return [entry.id for entry in spool.pending()]


def test_commit_pending_remove(tmp_path: Path) -> None:
    spool = Spool(tmp_path, LIMITS)
    names = [f"bundle-{n}" for n in (3, 1, 2)]
    for name in names:
        put(spool, name)
    assert ids(spool) == names
    entry = spool.pending()[0]
    assert read_manifest(entry.path).bundle_id == "bundle-3"
    usage = spool.usage()
    assert usage.bundles == 3
    assert usage.bytes == sum(item.bytes for item in spool.pending()) > 3000
    spool.remove("bundle-1")
    spool.remove("bundle-1")
    assert ids(spool) == ["bundle-3", "bundle-2"]
    assert ids(Spool(tmp_path, LIMITS)) == ["bundle-3", "bundle-2"]
    assert list((tmp_path / "deleting").iterdir()) == []
    assert not any(spool.drops.values()), "what was removed on purpose is not a drop"


def test_order_goes_on_after_a_restart(tmp_path: Path) -> None:
    put(Spool(tmp_path, LIMITS), "bundle-9")
    again = Spool(tmp_path, LIMITS)
    put(again, "bundle-1")
    assert ids(again) == ["bundle-9", "bundle-1"]


def test_an_unsealed_bundle_is_not_queued(tmp_path: Path) -> None:
    spool = Spool(tmp_path, LIMITS)
    BundleWriter(spool.prepare("bundle-1")).add_bytes(b"x")
    with pytest.raises(BundleError):
        spool.commit("bundle-1")
    assert ids(spool) == []


def test_leftovers_are_deleted_and_damage_is_set_aside(tmp_path: Path) -> None:
    spool = Spool(tmp_path, LIMITS)
    for number in range(6):
        put(spool, f"bundle-{number}")
    paths = [entry.path for entry in spool.pending()]
    write(spool.prepare("bundle-x"), "bundle-x", 10)  # power cut before commit
    paths[0].rename(tmp_path / "deleting" / "half")  # power cut while deleting
    (paths[1] / "manifest.json").write_bytes(b"{")
    next(layout.blobs_folder(paths[2]).iterdir()).unlink()
    paths[3].rename(paths[3].with_name("0000000099-bundle-z"))
    (tmp_path / "bundles" / "stray").write_text("x")

    again = Spool(tmp_path, LIMITS)
    assert ids(again) == ["bundle-4", "bundle-5"]
    assert list((tmp_path / "incoming").iterdir()) == []
    assert list((tmp_path / "deleting").iterdir()) == []
    assert again.drops[DropReason.INTERRUPTED] == 1
    assert again.drops[DropReason.DAMAGED] == 3
    assert again.faults[SpoolFault.FOREIGN] == 1
    assert again.usage().quarantined == QUARANTINED_KEPT == 4
    put(again, "bundle-new")
    assert ids(Spool(tmp_path, LIMITS)) == ["bundle-4", "bundle-5", "bundle-new"]


def test_quota_evicts_and_counts(tmp_path: Path) -> None:
    spool = Spool(tmp_path, SpoolLimits(max_mib=1, headroom_mib=0, headroom_files=0))
    for number in range(8):
        put(spool, f"bundle-{number}", 200_000)
    assert spool.usage().bytes <= 1 << 20
    assert spool.drops[DropReason.EVICTED] == 8 - len(ids(spool))
    assert "bundle-0" in ids(spool), "the first shows how it began"
    assert "bundle-7" in ids(spool), "the newest shows it as it is"
    on_disk = sum(path.stat().st_size for path in (tmp_path / "bundles").rglob("*") if path.is_file())
    assert on_disk <= 1 << 20


def test_too_large_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path, SpoolLimits(max_mib=1, headroom_mib=0, headroom_files=0))
    put(spool, "bundle-1")
    with pytest.raises(SpoolFull, match="max_mib"):
        spool.prepare("bundle-2", 2 << 20, 10)
    write(spool.prepare("bundle-3", 1000, 10), "bundle-3", 2 << 20)  # larger than it was expected to be
    with pytest.raises(SpoolFull, match="too large"):
        spool.commit("bundle-3")
    assert ids(spool) == ["bundle-1"]
    assert spool.drops[DropReason.NO_ROOM] == 2
    assert list((tmp_path / "incoming").iterdir()) == []


def test_a_smaller_quota_after_a_restart(tmp_path: Path) -> None:
    spool = Spool(tmp_path, LIMITS)
    for number in range(8):
        put(spool, f"bundle-{number}", 200_000)
    again = Spool(tmp_path, SpoolLimits(max_mib=1, headroom_mib=0, headroom_files=0))
    again.trim()
    assert again.usage().bytes <= 1 << 20


def test_in_transfer_is_kept(tmp_path: Path) -> None:
    spool = Spool(tmp_path, SpoolLimits(max_mib=1, headroom_mib=0, headroom_files=0, first_share=0.0, worst_share=0.0))
    put(spool, "bundle-0", 300_000)
    spool.in_transfer = frozenset({"bundle-0"})
    for number in range(1, 8):
        put(spool, f"bundle-{number}", 300_000)
    assert ids(spool) == ["bundle-0", "bundle-6", "bundle-7"]


def test_age_survives_a_wrong_clock(tmp_path: Path) -> None:
    spool = Spool(tmp_path, SpoolLimits(max_age_days=1, headroom_mib=0, headroom_files=0))
    now = stamp()
    put(spool, "bundle-fresh", created=Stamp(0.0, now.boot_id, now.uptime))  # 1970, but of this boot
    put(spool, "bundle-unknown", created=Stamp(5.0, "another boot", 1e9))
    put(spool, "bundle-old", created=Stamp(now.wall - 2 * 86_400, "another boot", 1.0))
    spool.trim()
    assert ids(spool) == ["bundle-fresh", "bundle-unknown"]
    assert spool.drops[DropReason.EXPIRED] == 1


def test_deleting_works_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, LIMITS)
    put(spool, "bundle-1")

    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "rename", full)
    spool.remove("bundle-1")
    monkeypatch.undo()
    assert spool.faults[SpoolFault.FULL] == 1
    assert ids(Spool(tmp_path, LIMITS)) == []
    assert list((tmp_path / "bundles").iterdir()) == []


@pytest.mark.parametrize("name", ["../../x", "short", "a/b/c/d/e/f", "", "bundle_1234"])
def test_ids_that_could_be_paths_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="id of a bundle"):
        Spool(tmp_path, LIMITS).prepare(name)


def test_the_same_id_again_replaces(tmp_path: Path) -> None:
    spool = Spool(tmp_path, LIMITS)
    put(spool, "bundle-1", 10)
    put(spool, "bundle-1", 20_000)
    assert len(spool.pending()) == 1
    assert spool.pending()[0].bytes > 20_000


class _Disk:
    """What `statvfs` tells of a nearly full file system."""

    f_frsize = 4096
    f_files, f_favail = 1000, 900

    def __init__(self, free: int) -> None:
        self.f_bavail = free // 4096


def test_what_is_written_already_needs_no_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, LIMITS)
    put(spool, "bundle-1", 100_000)
    write(spool.prepare("bundle-2", 1000, 10), "bundle-2", 300_000)
    monkeypatch.setattr(os, "statvfs", lambda _: _Disk(50_000))
    spool.commit("bundle-2")
    assert ids(spool) == ["bundle-1", "bundle-2"]
    with pytest.raises(SpoolFull):
        spool.prepare("bundle-3", 1_000_000, 10)
    assert ids(spool) == ["bundle-1", "bundle-2"]
    spool.prepare("bundle-4", 100_000, 10)
    assert ids(spool) == ["bundle-2"] or ids(spool) == ["bundle-1"]
