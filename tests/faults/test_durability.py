"""The spool survives a power cut at any instant; and the proof of that is one: it fails where a sync is left out."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from tidegauge.evaluation import durability
from tidegauge.evaluation.crash_disk import CrashDisk
from tidegauge.evaluation.durability import ROLES, histories, role
from tidegauge.evaluation.durability_history import LIMITS, history
from tidegauge.spool.faults import SpoolFault
from tidegauge.spool.store import Spool

ROOT = Path("/disk")
FILE = ROOT / "file"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "tidegauge.spool")


def test_nothing_that_was_promised_is_lost_in_a_thousand_histories() -> None:
    outcome = histories(range(1000), share=0.15)
    assert outcome.found == {}, outcome.first
    assert outcome.cuts > 8_000


@pytest.mark.parametrize("dropped", ROLES)
def test_a_sync_that_is_left_out_is_found(dropped: str) -> None:
    assert any(history(seed, 0.3, lambda kind, path: role(kind, path) == dropped).found for seed in range(40))


def test_every_sync_of_the_spool_has_a_name() -> None:
    seen: set[str] = set()

    def note(kind: str, path: Path) -> bool:
        seen.add(role(kind, path))
        return False

    for seed in range(5):
        history(seed, 0.0, note)
    assert seen == set(ROLES)


def test_an_evaluation_of_a_spool_without_a_sync_misses_its_goal() -> None:
    report = durability.evaluate(40, 1, 1, share=0.2, dropped="the manifest", mutants=1)
    assert "promised bundles that were lost" in {figure.name for figure in report.missed}


# --- the model itself ---


def outcomes(disk: CrashDisk, number: int = 200) -> set[bytes | None]:
    """What `FILE` may be after a cut; None where it isn't there."""
    found = set()
    for seed in range(number):
        after = disk.after_cut(Random(seed))
        found.add(after.read(FILE, 100) if after.look(FILE) is not None else None)
    return found


def test_model_bytes_without_a_sync_may_be_anything_of_their_length() -> None:
    disk = CrashDisk(ROOT)
    with disk.create(FILE) as file:
        file.write(b"abc")
    disk.sync_folder(ROOT)
    assert outcomes(disk) >= {b"", b"a", b"ab", b"abc", b"\0\0\0"}
    disk.sync_file(FILE)
    assert outcomes(disk) == {b"abc"}
    disk.append(FILE, b"def")
    assert {found[:3] for found in outcomes(disk) if found is not None} == {b"abc"}
    assert outcomes(disk) >= {b"abc", b"abcd", b"abcdef", b"abc\0\0\0"}


def test_model_names_without_a_sync_come_and_go_in_any_order() -> None:
    disk = CrashDisk(ROOT)
    for name in ("one", "two"):
        disk.append(ROOT / name, b"x")
        disk.sync_file(ROOT / name)
    seen = {tuple(disk.after_cut(Random(seed)).names(ROOT)) for seed in range(100)}
    assert seen == {(), ("one",), ("two",), ("one", "two")}
    disk.sync_folder(ROOT)
    disk.rename(ROOT / "one", ROOT / "three")
    disk.unlink(ROOT / "two")
    seen = {tuple(disk.after_cut(Random(seed)).names(ROOT)) for seed in range(100)}
    assert seen == {("one", "two"), ("one",), ("three", "two"), ("three",)}


def test_model_a_rename_between_folders_needs_both_synced_and_is_never_half() -> None:
    disk = CrashDisk(ROOT)
    for name in ("a", "b"):
        disk.make_folder(ROOT / name)
    disk.append(ROOT / "a" / "x", b"x")
    disk.sync_file(ROOT / "a" / "x")
    for folder in (ROOT / "a", ROOT / "b", ROOT):
        disk.sync_folder(folder)
    disk.rename(ROOT / "a" / "x", ROOT / "b" / "y")

    def seen() -> set[tuple[str, ...]]:
        after = [disk.after_cut(Random(seed)) for seed in range(60)]
        return {(*each.names(ROOT / "a"), *each.names(ROOT / "b")) for each in after}

    assert seen() == {("x",), ("y",)}
    disk.sync_folder(ROOT / "b")
    assert seen() == {("x",), ("y",)}
    disk.sync_folder(ROOT / "a")
    assert seen() == {("y",)}


def test_model_what_is_in_a_folder_without_a_name_is_lost() -> None:
    disk = CrashDisk(ROOT)
    disk.make_folder(ROOT / "a")
    disk.append(ROOT / "a" / "x", b"x")
    disk.sync_file(ROOT / "a" / "x")
    disk.sync_folder(ROOT / "a")
    assert any(disk.after_cut(Random(seed)).look(ROOT / "a" / "x") is None for seed in range(50))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.ENOSPC])
def test_a_start_on_a_disk_that_refuses_succeeds_and_is_counted(number: int) -> None:
    disk = CrashDisk(ROOT)
    disk.refuse = number
    spool = Spool(ROOT / "spool", LIMITS, disk)
    assert spool.pending() == []
    fault = {errno.EROFS: SpoolFault.READ_ONLY, errno.EIO: SpoolFault.IO, errno.ENOSPC: SpoolFault.FULL}[number]
    assert spool.faults[fault] > 0
    spool.trim()
    spool.remove("bundle-0001")
