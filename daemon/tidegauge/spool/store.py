"""The board's durable queue of bundles: folders that are renamed from state to state, each rename synced.

```
spool/incoming/<id>              being written; a leftover at start-up is deleted
spool/bundles/<sequence>-<id>    whole, waiting to be sent
spool/deleting/…                 sent or given up; removal is finished at start-up
spool/quarantine/…               unreadable or foreign; the newest few are kept for a person to look at
spool/journal/…                  records of history, and of what was given up (`spool/journal.py`)
```
A disk that is full, read-only or failing stops neither start-up nor the agent: what it refuses is counted by its name,
said in the log, and tried again.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tidegauge.bundles import layout
from tidegauge.bundles.errors import BundleError
from tidegauge.clocks import Stamp, stamp
from tidegauge.errors import TidegaugeError
from tidegauge.filesystem import REAL, FileSystem, make_folders, measure, remove_tree
from tidegauge.spool.entry import ID, NAME, Entry, candidate, doubtful, entry_of, read_whole
from tidegauge.spool.faults import SpoolFault, fault_of
from tidegauge.spool.journal import Journal
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.planner import DropReason, Plan, Room, by_value, plan
from tidegauge.spool.records import Record, Tombstone

__all__ = ["Entry", "Spool", "SpoolFull", "Usage"]

log = logging.getLogger(__name__)

INCOMING, BUNDLES, DELETING, QUARANTINE, JOURNAL = "incoming", "bundles", "deleting", "quarantine", "journal"
QUARANTINED_KEPT = 4
#: Records that wait in memory for a disk that refuses them.
UNTOLD_KEPT = 1000
#: What a bundle is assumed to take before it is written, where the caller doesn't know better.
TYPICAL_BYTES, TYPICAL_INODES = 16 << 20, 300


class SpoolFull(TidegaugeError):
    """There is no room for another bundle, even after giving up what may be given up."""


class Usage(msgspec.Struct, frozen=True):
    """What the spool takes: waiting bundles, the journal, and the number of things set aside as unreadable."""

    bytes: int
    inodes: int
    bundles: int
    quarantined: int
    journal_bytes: int = 0


class Spool:
    """All methods block on the disk and may be called from any thread. Only `prepare` and `commit` raise OSError.

    `in_transfer`: ids that the link is sending; they are the last to be evicted. `drops`: bundles lost, by reason;
    `faults`: what was wrong with disk and clock, by name.
    """

    def __init__(
        self, folder: Path, limits: SpoolLimits, disk: FileSystem = REAL, now: Callable[[], Stamp] = stamp
    ) -> None:
        self.folder, self.limits = folder, limits
        self.in_transfer: frozenset[str] = frozenset()
        self.drops: Counter[DropReason] = Counter(dict.fromkeys(DropReason, 0))
        self.faults: Counter[SpoolFault] = Counter(dict.fromkeys(SpoolFault, 0))
        self.journal = Journal(folder / JOURNAL, limits.journal_bytes, disk)
        self._disk, self._now = disk, now
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}
        self._sequence = 0
        self._quarantined = 0
        self._untold: list[Record] = []
        self._condemned: list[Path] = []
        self._said = ""
        self._recover()

    # --- bundles in ---

    def prepare(self, bundle_id: str, size: int = TYPICAL_BYTES, inodes: int = TYPICAL_INODES) -> Path:
        """An empty folder to write the bundle into, with room made for `size` bytes and `inodes` files.

        Raises `SpoolFull`, and counts the drop; OSError, then `discard` does.
        """
        if ID.fullmatch(bundle_id) is None:
            raise ValueError(f"{bundle_id!r} is not the id of a bundle")
        with self._lock, self._counted():
            if not self._make_room(size, inodes).fits:
                self._lose(Tombstone(bundle_id, DropReason.NO_ROOM, self._now(), bytes=size))
                raise SpoolFull(
                    f"{self.folder} has no room for bundle {bundle_id} of about {size} bytes",
                    "free disk space, or lower `spool.headroom_mib`, or raise `spool.max_mib`",
                )
            path = self.folder / INCOMING / bundle_id
            remove_tree(self._disk, path)
            self._disk.make_folder(path)
            return path

    def commit(self, bundle_id: str) -> Entry:
        """Queue a sealed bundle. Evicts others where it is larger than expected; evicts it where it alone is too large.

        Raises `BundleError` where it isn't sealed, `SpoolFull` where it can't stay, OSError where the disk refuses it.
        """
        path = self.folder / INCOMING / bundle_id
        with self._lock, self._counted():
            if self._disk.look(layout.manifest_path(path)) is None:
                raise BundleError(f"{path} has no manifest", "seal the bundle first")
            manifest = read_whole(self._disk, path)
            size, inodes = measure(self._disk, path)
            if not self._make_room(size, inodes, written=True).fits:
                self._lose(Tombstone(bundle_id, DropReason.NO_ROOM, self._now(), manifest.created, bytes=size))
                self._delete(path)
                raise SpoolFull(
                    f"bundle {bundle_id} of {size} bytes is too large for the spool", "raise `spool.max_mib`"
                )
            self._sequence += 1
            target = self.folder / BUNDLES / f"{self._sequence:010d}-{bundle_id}"
            self._disk.rename(path, target)
            older = self._entries.get(bundle_id)
            entry = self._entries[bundle_id] = entry_of(target, self._sequence, manifest, size, inodes)
            self._sync_rename(path, target)
            if older is not None:
                self._delete(older.path)
            return entry

    def discard(self, bundle_id: str, reason: DropReason | None = None) -> None:
        """Give up a bundle that is being written; `reason` where it is a loss, which is counted and told."""
        with self._lock:
            if reason is not None:
                self._lose(Tombstone(bundle_id, reason, self._now()))
            self._remove(self.folder / INCOMING / bundle_id)

    # --- bundles out ---

    def pending(self) -> list[Entry]:
        """The bundles waiting to be sent, in the order of their commit."""
        with self._lock:
            return sorted(self._entries.values(), key=lambda entry: entry.sequence)

    def by_priority(self) -> list[Entry]:
        """The same in the order in which to send them."""
        with self._lock:
            now = self._now()
            ordered = by_value(candidate(entry, now, False) for entry in self._entries.values())
            return [self._entries[each.id] for each in ordered]

    def remove(self, bundle_id: str) -> None:
        """Delete a bundle, durably; one that isn't here is fine. Where the disk refuses, it is gone for this run."""
        with self._lock:
            entry = self._entries.pop(bundle_id, None)
            if entry is not None:
                self._delete(entry.path)

    def quarantine(self, bundle_id: str) -> None:
        """Set a bundle aside that turned out to be unreadable."""
        with self._lock:
            entry = self._entries.pop(bundle_id, None)
            if entry is not None:
                self._lose(self._tombstone(entry, DropReason.DAMAGED))
                self._set_aside(entry.path)

    # --- records ---

    def keep(self, record: Record) -> None:
        """Add a record to the journal. One that the disk refuses waits in memory, and is tried again by `trim`."""
        with self._lock:
            self._tell([record])
            if self._untold and self.faults[SpoolFault.FULL]:
                with self._tolerated():
                    self._make_room(0, 0)
                self._tell([])

    # --- house-keeping ---

    def usage(self) -> Usage:
        with self._lock:
            entries = self._entries.values()
            return Usage(
                bytes=sum(entry.bytes for entry in entries),
                inodes=sum(entry.inodes for entry in entries),
                bundles=len(entries),
                quarantined=self._quarantined,
                journal_bytes=self.journal.bytes,
            )

    def trim(self) -> None:
        """Apply the limits now: age, and a headroom that others have eaten into. Try again what the disk refused."""
        with self._lock:
            condemned, self._condemned = self._condemned, []
            for path in condemned:
                self._delete(path)
            with self._tolerated():
                self._make_room(0, 0)
            self._tell([])

    def _make_room(self, size: int, inodes: int, written: bool = False) -> Plan:
        """`written`: what comes is on the disk already, so that the free space doesn't hold it any more.

        What was set aside goes before any bundle does. Raises OSError where the file system can't be asked.
        """
        made = self._plan(size, inodes, written)
        if (made.evict or not made.fits) and self._quarantined:
            self._keep_quarantined(0)
            made = self._plan(size, inodes, written)
        entries = [(self._entries.pop(bundle_id), reason) for bundle_id, reason in made.evict]
        for _, reason in entries:
            self.drops[reason] += 1
        # First the tombstones, then the bundles: after a power cut there is always one of the two.
        self._tell([self._tombstone(entry, reason) for entry, reason in entries])
        for entry, _ in entries:
            self._delete(entry.path)
        if self._untold and entries:
            self._tell([])
        return made

    def _plan(self, size: int, inodes: int, written: bool) -> Plan:
        free = self._disk.room(self.folder)
        other_bytes, other_inodes = measure(self._disk, self.folder / QUARANTINE)
        room = Room(
            free_bytes=free.bytes + (size if written else 0),
            free_inodes=free.inodes + (inodes if written else 0),
            incoming_bytes=size,
            incoming_inodes=inodes,
            other_bytes=other_bytes,
            other_inodes=other_inodes + self.journal.inodes,
        )
        now = self._now()
        entries = [candidate(entry, now, entry.id in self.in_transfer) for entry in self._entries.values()]
        return plan(entries, self.limits, room)

    def _tombstone(self, entry: Entry, reason: DropReason) -> Tombstone:
        return Tombstone(
            entry.id, reason, self._now(), entry.created, entry.kind[:200], entry.severity, bytes=entry.bytes
        )

    def _lose(self, tombstone: Tombstone) -> None:
        self.drops[tombstone.reason] += 1
        self._tell([tombstone])

    def _tell(self, records: list[Record]) -> None:
        """Into the journal, with what could not be written before."""
        self._untold = [*self._untold, *records]
        if len(self._untold) > UNTOLD_KEPT:
            self.faults[SpoolFault.JOURNAL_FULL] += len(self._untold) - UNTOLD_KEPT
            self._untold = self._untold[-UNTOLD_KEPT:]
        with self._tolerated():
            self.journal.append(self._untold)
            self._untold = []
            self.journal.trim()
        self.faults[SpoolFault.JOURNAL_FULL] += self.journal.given_up
        self.journal.given_up = 0

    # --- states of a folder ---

    def _sync_rename(self, source: Path, target: Path) -> None:
        """A rename between two folders is durable when both are. An error here is told, and the file stays usable."""
        with self._tolerated():
            self._disk.sync_folder(target.parent)
            self._disk.sync_folder(source.parent)

    def _delete(self, path: Path) -> None:
        """Rename first, so that a power cut leaves a whole bundle or one that is known to go."""
        target = self._free_name(DELETING, path.name)
        try:
            self._disk.rename(path, target)
        except OSError as error:
            self._note(error)
            # A full disk may have no room for a name. Without its manifest the rest is no bundle any more.
            with self._tolerated():
                self._disk.unlink(layout.manifest_path(path))
                self._disk.sync_folder(path)
        else:
            self._sync_rename(path, target)
            path = target
        self._remove(path)

    def _remove(self, path: Path) -> None:
        try:
            remove_tree(self._disk, path)
        except OSError as error:
            self._note(error)
            self._condemned.append(path)

    def _set_aside(self, path: Path) -> None:
        """Where the disk refuses it stays where it is, and is met again at the next start."""
        with self._tolerated():
            self._disk.rename(path, self._free_name(QUARANTINE, path.name))
            self._quarantined += 1
            self._keep_quarantined(QUARANTINED_KEPT)

    def _keep_quarantined(self, most: int) -> None:
        """The newest: they are numbered as they come."""
        names = self._names(QUARANTINE)
        for name in names[: max(0, len(names) - most)]:
            self._remove(self.folder / QUARANTINE / name)
        self._quarantined = min(len(names), most)

    def _free_name(self, state: str, name: str) -> Path:
        """In `state`, after all that is there: a number, and what it was called."""
        taken = [int(each.partition(".")[0]) for each in self._names(state) if each.partition(".")[0].isdecimal()]
        return self.folder / state / f"{max(taken, default=0) + 1:010d}.{name[-100:]}"

    # --- start-up ---

    def _recover(self) -> None:
        """Own or remove everything here. What can't be read is set aside; start-up goes on."""
        for state in (INCOMING, BUNDLES, DELETING, QUARANTINE, JOURNAL):
            with self._tolerated():
                make_folders(self._disk, self.folder / state)
        self._quarantined = len(self._names(QUARANTINE))
        for name in self._names(JOURNAL):
            with self._tolerated():
                if not self.journal.adopt(name):
                    self._foreign(self.folder / JOURNAL / name)
        for name in self._names(DELETING):
            self._remove(self.folder / DELETING / name)
        for name in self._names(INCOMING):
            if ID.fullmatch(name) is not None:
                self._lose(Tombstone(name, DropReason.INTERRUPTED, self._now()))
            self._remove(self.folder / INCOMING / name)
        for name in self._names(BUNDLES):
            with self._tolerated():
                self._adopt(self.folder / BUNDLES / name)

    def _adopt(self, path: Path) -> None:
        name = NAME.fullmatch(path.name)
        found = self._disk.look(path)
        if name is None or found is None or found.kind != "folder":
            self._foreign(path)
            return
        sequence = int(name["sequence"])
        self._sequence = max(self._sequence, sequence)
        if self._disk.look(layout.manifest_path(path)) is None:  # its deletion had begun
            self._remove(path)
            return
        try:
            manifest = read_whole(self._disk, path)
            if manifest.bundle_id != name["id"]:
                raise BundleError(f"{path} holds another bundle, {manifest.bundle_id}")
            size, inodes = measure(self._disk, path)
        except (BundleError, OSError) as error:
            log.error("a bundle can't be read and is set aside: %s", error)
            self._lose(Tombstone(name["id"], DropReason.DAMAGED, self._now()))
            self._set_aside(path)
            return
        older = self._entries.get(manifest.bundle_id)
        if older is not None:  # replaced by this one, when the power went
            self._delete(older.path)
        self.faults[SpoolFault.CLOCK] += doubtful(manifest.created, self._now())
        self._entries[manifest.bundle_id] = entry_of(path, sequence, manifest, size, inodes)

    def _foreign(self, path: Path) -> None:
        self.faults[SpoolFault.FOREIGN] += 1
        log.warning("%s is not a file of the spool and is set aside", path)
        self._set_aside(path)

    def _names(self, state: str) -> Iterable[str]:
        with self._tolerated():
            return self._disk.names(self.folder / state)
        return []

    # --- what the disk refuses ---

    @contextmanager
    def _tolerated(self) -> Iterator[None]:
        """An error of the disk is counted, and said, and what was to be done is left undone."""
        try:
            yield
        except OSError as error:
            self._note(error)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._note(error)
            raise

    def _note(self, error: OSError) -> None:
        """One line a change, however often it is tried."""
        fault = fault_of(error)
        self.faults[fault] += 1
        text = f"{fault.value}: {error.strerror}"
        if text != self._said:
            log.error("the spool %s can't be written as it should (%s); tried again", self.folder, text)
        self._said = text
