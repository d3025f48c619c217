"""The board's durable queue of bundles: folders that are renamed from state to state, each rename synced.

```
spool/incoming/<id>              being written; a leftover at start-up is deleted
spool/bundles/<sequence>-<id>    whole, waiting to be sent
spool/deleting/…                 sent or given up; removal is finished at start-up
spool/quarantine/…               unreadable; the newest few are kept for a person to look at
```
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections import Counter
from pathlib import Path

import msgspec

from tidegauge.bundles import layout
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import Manifest
from tidegauge.bundles.reader import missing_blobs, read_manifest
from tidegauge.clocks import Stamp, stamp
from tidegauge.errors import TidegaugeError
from tidegauge.files import sync_folder
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.planner import Candidate, DropReason, Plan, Room, plan

INCOMING, BUNDLES, DELETING, QUARANTINE = "incoming", "bundles", "deleting", "quarantine"
QUARANTINED_KEPT = 4
#: What a bundle is assumed to take before it is written, where the caller doesn't know better.
TYPICAL_BYTES, TYPICAL_INODES = 16 << 20, 300
#: A wall clock before this (2024-01-01) has not been set.
CLOCK_IS_SET = 1_704_067_200.0

_NAME = re.compile(r"(?P<sequence>\d{10})-(?P<id>[0-9A-Za-z-]{8,64})", re.ASCII)
_ID = re.compile(r"[0-9A-Za-z-]{8,64}", re.ASCII)


class SpoolFull(TidegaugeError):
    """There is no room for another bundle, even after giving up what may be given up."""


class Entry(msgspec.Struct, frozen=True):
    """A bundle in the spool. `bytes` as the file system counts them, rounded up to its blocks."""

    id: str
    path: Path
    sequence: int
    bytes: int
    inodes: int
    created: Stamp
    severity: float
    kind: str


class Usage(msgspec.Struct, frozen=True):
    """What the spool takes: waiting bundles, and folders set aside as unreadable."""

    bytes: int
    inodes: int
    bundles: int
    quarantined: int


class Spool:
    """All methods block on the disk and may be called from any thread. Raises OSError where the disk fails.

    `in_transfer`: ids that the link is sending; they are the last to be evicted. `drops`: bundles lost, by reason.
    """

    def __init__(self, folder: Path, limits: SpoolLimits) -> None:
        self.folder, self.limits = folder, limits
        self.in_transfer: frozenset[str] = frozenset()
        self.drops: Counter[DropReason] = Counter(dict.fromkeys(DropReason, 0))
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}
        self._sequence = 0
        for name in (INCOMING, BUNDLES, DELETING, QUARANTINE):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._recover()

    def prepare(self, bundle_id: str, size: int = TYPICAL_BYTES, inodes: int = TYPICAL_INODES) -> Path:
        """An empty folder to write the bundle into, with room made for about `size` bytes and `inodes` files.

        Raises `SpoolFull`, and counts the drop.
        """
        if _ID.fullmatch(bundle_id) is None:
            raise ValueError(f"{bundle_id!r} is not the id of a bundle")
        with self._lock:
            if not self._make_room(size, inodes).fits:
                self.drops[DropReason.NO_ROOM] += 1
                raise SpoolFull(
                    f"{self.folder} has no room for bundle {bundle_id} of about {size} bytes",
                    "free disk space, or lower `spool.headroom_mib`, or raise `spool.max_mib`",
                )
            path = self.folder / INCOMING / bundle_id
            if path.exists():
                shutil.rmtree(path)
            path.mkdir()
            return path

    def commit(self, bundle_id: str) -> Entry:
        """Queue a sealed bundle. Evicts others where it is larger than expected; evicts it where it alone is too large.

        Raises `BundleError` where it isn't sealed, `SpoolFull` where it can't stay.
        """
        path = self.folder / INCOMING / bundle_id
        manifest = read_manifest(path)
        size, inodes = _measure(path)
        with self._lock:
            if not self._make_room(size, inodes, written=True).fits:
                self.drops[DropReason.NO_ROOM] += 1
                self._delete(path)
                raise SpoolFull(
                    f"bundle {bundle_id} of {size} bytes is too large for the spool", "raise `spool.max_mib`"
                )
            if bundle_id in self._entries:
                self.remove(bundle_id)
            self._sequence += 1
            target = self.folder / BUNDLES / f"{self._sequence:010d}-{bundle_id}"
            path.rename(target)
            sync_folder(target.parent)
            sync_folder(path.parent)
            entry = _entry(target, bundle_id, self._sequence, manifest, size, inodes)
            self._entries[bundle_id] = entry
            return entry

    def discard(self, bundle_id: str) -> None:
        """Give up a bundle that is being written."""
        with self._lock:
            shutil.rmtree(self.folder / INCOMING / bundle_id, ignore_errors=True)

    def pending(self) -> list[Entry]:
        """The bundles waiting to be sent, in the order of their commit."""
        with self._lock:
            return sorted(self._entries.values(), key=lambda entry: entry.sequence)

    def remove(self, bundle_id: str) -> None:
        """Delete a bundle, durably; one that isn't here is fine."""
        with self._lock:
            entry = self._entries.pop(bundle_id, None)
            if entry is not None:
                self._delete(entry.path)

    def quarantine(self, bundle_id: str) -> None:
        """Set a bundle aside that turned out to be unreadable."""
        with self._lock:
            entry = self._entries.pop(bundle_id, None)
            if entry is not None:
                self._set_aside(entry.path)

    def usage(self) -> Usage:
        with self._lock:
            entries = self._entries.values()
            return Usage(
                bytes=sum(entry.bytes for entry in entries),
                inodes=sum(entry.inodes for entry in entries),
                bundles=len(entries),
                quarantined=sum(1 for _ in (self.folder / QUARANTINE).iterdir()),
            )

    def trim(self) -> None:
        """Apply the limits now: age, and a headroom that others have eaten into."""
        with self._lock:
            self._make_room(0, 0)

    def _make_room(self, size: int, inodes: int, written: bool = False) -> Plan:
        """`written`: what comes is on the disk already, so that the free space doesn't hold it any more."""
        disk = os.statvfs(self.folder)
        other_bytes, other_inodes = _measure(self.folder / QUARANTINE)
        room = Room(
            free_bytes=disk.f_bavail * disk.f_frsize + (size if written else 0),
            # File systems without an inode table report 0 of 0.
            free_inodes=(disk.f_favail if disk.f_files else 1 << 40) + (inodes if written else 0),
            incoming_bytes=size,
            incoming_inodes=inodes,
            other_bytes=other_bytes,
            other_inodes=other_inodes,
        )
        now = stamp()
        made = plan([self._candidate(entry, now) for entry in self._entries.values()], self.limits, room)
        for bundle_id, reason in made.evict:
            self.drops[reason] += 1
            self.remove(bundle_id)
        return made

    def _candidate(self, entry: Entry, now: Stamp) -> Candidate:
        return Candidate(
            id=entry.id,
            bytes=entry.bytes,
            inodes=entry.inodes,
            sequence=entry.sequence,
            age=_age(entry.created, now),
            severity=entry.severity,
            kind=entry.kind,
            in_transfer=entry.id in self.in_transfer,
        )

    def _delete(self, path: Path) -> None:
        """Rename first, so that a power cut leaves a whole bundle or one that is known to go."""
        target = self._free_name(DELETING, path.name)
        try:
            path.rename(target)
            sync_folder(path.parent)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # A full disk may have no room for a name. Without its manifest the rest is no bundle any more.
            layout.manifest_path(path).unlink(missing_ok=True)
            target = path
        shutil.rmtree(target)
        sync_folder(target.parent)

    def _set_aside(self, path: Path) -> None:
        self.drops[DropReason.DAMAGED] += 1
        path.rename(self._free_name(QUARANTINE, path.name))
        sync_folder(path.parent)
        kept = sorted((self.folder / QUARANTINE).iterdir(), key=lambda item: (item.lstat().st_ctime_ns, item.name))
        for old in kept[:-QUARANTINED_KEPT]:
            _remove_tree(old)

    def _free_name(self, state: str, name: str) -> Path:
        folder = self.folder / state
        number = 0
        while (path := folder / (f"{name}.{number}" if number else name)).exists():
            number += 1
        return path

    def _recover(self) -> None:
        """Own or remove everything here. What can't be read is set aside; start-up goes on."""
        for leftover in (self.folder / DELETING).iterdir():
            _remove_tree(leftover)
        for leftover in (self.folder / INCOMING).iterdir():
            self.drops[DropReason.INTERRUPTED] += 1
            _remove_tree(leftover)
        for path in sorted((self.folder / BUNDLES).iterdir()):
            self._adopt(path)

    def _adopt(self, path: Path) -> None:
        name = _NAME.fullmatch(path.name)
        try:
            if name is None or path.is_symlink():
                raise BundleError(f"{path} is not a bundle of this spool")
            manifest = read_manifest(path)
            if manifest.bundle_id != name["id"] or missing_blobs(path, manifest):
                raise BundleError(f"{path} is not whole")
        except BundleError:
            self._set_aside(path)
            return
        size, inodes = _measure(path)
        sequence = int(name["sequence"])
        self._sequence = max(self._sequence, sequence)
        self._entries[name["id"]] = _entry(path, name["id"], sequence, manifest, size, inodes)


def _entry(path: Path, bundle_id: str, sequence: int, manifest: Manifest, size: int, inodes: int) -> Entry:
    cause = manifest.cause
    return Entry(
        id=bundle_id,
        path=path,
        sequence=sequence,
        bytes=size,
        inodes=inodes,
        created=manifest.created,
        # Where no loss could be measured the fault is of the plain kind (crash, non-finite): as bad as it gets.
        severity=1.0 if manifest.loss is None else manifest.loss,
        kind="/".join((cause.detector, cause.verdict, *cause.symptoms)),
    )


def _age(created: Stamp, now: Stamp) -> float | None:
    """Seconds since `created`: by uptime within one boot, by wall clocks that have been set, else unknown."""
    if created.boot_id == now.boot_id:
        return max(0.0, now.uptime - created.uptime)
    if created.wall >= CLOCK_IS_SET and now.wall >= CLOCK_IS_SET:
        return max(0.0, now.wall - created.wall)
    return None


def _measure(folder: Path) -> tuple[int, int]:
    """Bytes in blocks of 4 KiB, and inodes, of all that is in `folder`."""
    size = inodes = 0
    for root, folders, files in os.walk(folder):
        inodes += len(folders) + len(files)
        size += 4096 * len(folders)
        for name in files:
            size += -(-os.lstat(Path(root) / name).st_size // 4096) * 4096
    return size, inodes


def _remove_tree(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
