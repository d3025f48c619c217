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
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidegauge.bundles import layout
from tidegauge.bundles.errors import BundleError
from tidegauge.clocks import Stamp, stamp
from tidegauge.errors import TidegaugeError
from tidegauge.filesystem import REAL, FileSystem, make_folders, measure, remove_tree
from tidegauge.log_kinds import BUNDLE_SET_ASIDE
from tidegauge.spool.entry import ID, NAME, Entry, candidate, doubtful, entry_of, read_whole
from tidegauge.spool.faults import SpoolFault
from tidegauge.spool.journal import Journal
from tidegauge.spool.limits import SpoolLimits, resolved
from tidegauge.spool.planner import DropReason, Plan, Room, by_value, plan
from tidegauge.spool.records import Record, Tombstone
from tidegauge.spool.states import BUNDLES, DELETING, INCOMING, JOURNAL, QUARANTINE, States

__all__ = ["Entry", "Spool", "SpoolFull", "Usage"]

log = logging.getLogger(__name__)

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
        self.folder = folder
        self.in_transfer: frozenset[str] = frozenset()
        self.drops: Counter[DropReason] = Counter(dict.fromkeys(DropReason, 0))
        self._states = States(folder, disk)
        self.faults = self._states.faults
        self.journal = Journal(folder / JOURNAL, limits.journal_bytes, disk)
        self._disk, self._now = disk, now
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}
        self._sequence = 0
        self._untold: list[Record] = []
        self._configured = self._limits = limits
        self._predicted: int | None = None
        self._recover()
        self._resolve()

    @property
    def limits(self) -> SpoolLimits:
        """As configured, with the default quota in numbers. What is set here holds from now on."""
        return self._limits

    @limits.setter
    def limits(self, configured: SpoolLimits) -> None:
        with self._lock:
            self._configured = configured
            self._resolve()

    def expect(self, predicted: int | None) -> None:
        """Bytes that a bundle of the installed model takes, None where nobody knows: the default quota follows."""
        with self._lock:
            self._predicted = predicted
            self._resolve()

    def _resolve(self) -> None:
        with self._states.tolerated():
            used = sum(entry.bytes for entry in self._entries.values())
            free = self._disk.room(self.folder).bytes
            self._limits = resolved(self._configured, self._predicted, free + used)
        self.journal.limit = self._limits.journal_bytes

    # --- bundles in ---

    def prepare(self, bundle_id: str, size: int = TYPICAL_BYTES, inodes: int = TYPICAL_INODES) -> Path:
        """An empty folder to write the bundle into, with room made for `size` bytes and `inodes` files.

        Raises `SpoolFull`, and counts the drop; OSError, then `discard` does.
        """
        if ID.fullmatch(bundle_id) is None:
            raise ValueError(f"{bundle_id!r} is not the id of a bundle")
        with self._lock, self._states.counted():
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
        with self._lock, self._states.counted():
            if self._disk.look(layout.manifest_path(path)) is None:
                raise BundleError(f"{path} has no manifest", "seal the bundle first")
            manifest = read_whole(self._disk, path)
            size, inodes = measure(self._disk, path)
            if not self._make_room(size, inodes, written=True).fits:
                self._lose(Tombstone(bundle_id, DropReason.NO_ROOM, self._now(), manifest.created, bytes=size))
                self._states.delete(path)
                raise SpoolFull(
                    f"bundle {bundle_id} of {size} bytes is too large for the spool", "raise `spool.max_mib`"
                )
            self._sequence += 1
            target = self.folder / BUNDLES / f"{self._sequence:010d}-{bundle_id}"
            self._disk.rename(path, target)
            older = self._entries.get(bundle_id)
            entry = self._entries[bundle_id] = entry_of(target, self._sequence, manifest, size, inodes)
            self._states.sync_rename(path, target)
            if older is not None:
                self._states.delete(older.path)
            return entry

    def discard(self, bundle_id: str, reason: DropReason | None = None) -> None:
        """Give up a bundle that is being written; `reason` where it is a loss, which is counted and told."""
        with self._lock:
            if reason is not None:
                self._lose(Tombstone(bundle_id, reason, self._now()))
            self._states.remove(self.folder / INCOMING / bundle_id)

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
                self._states.delete(entry.path)

    def quarantine(self, bundle_id: str) -> None:
        """Set a bundle aside that turned out to be unreadable."""
        with self._lock:
            entry = self._entries.pop(bundle_id, None)
            if entry is not None:
                self._lose(self._tombstone(entry, DropReason.DAMAGED))
                self._states.set_aside(entry.path)

    # --- records ---

    def keep(self, record: Record) -> None:
        """Add a record to the journal. One that the disk refuses waits in memory, and is tried again by `trim`."""
        with self._lock:
            self._tell([record])
            if self._untold and self.faults[SpoolFault.FULL]:
                with self._states.tolerated():
                    self._make_room(0, 0)
                self._tell([])

    def sent(self, segment: int) -> None:
        """A segment of the journal is at the collector."""
        with self._states.tolerated():
            self.journal.remove(segment)

    # --- house-keeping ---

    def usage(self) -> Usage:
        with self._lock:
            entries = self._entries.values()
            return Usage(
                bytes=sum(entry.bytes for entry in entries),
                inodes=sum(entry.inodes for entry in entries),
                bundles=len(entries),
                quarantined=self._states.quarantined,
                journal_bytes=self.journal.bytes,
            )

    def trim(self) -> None:
        """Apply the limits now: age, and a headroom that others have eaten into. Try again what the disk refused."""
        with self._lock:
            self._states.try_again()
            with self._states.tolerated():
                self._make_room(0, 0)
            self._tell([])

    def _make_room(self, size: int, inodes: int, written: bool = False) -> Plan:
        """`written`: what comes is on the disk already, so that the free space doesn't hold it any more.

        What was set aside goes before any bundle does. Raises OSError where the file system can't be asked.
        """
        made = self._plan(size, inodes, written)
        if (made.evict or not made.fits) and self._states.quarantined:
            self._states.keep_quarantined(0)
            made = self._plan(size, inodes, written)
        entries = [(self._entries.pop(bundle_id), reason) for bundle_id, reason in made.evict]
        for _, reason in entries:
            self.drops[reason] += 1
        # First the tombstones, then the bundles: after a power cut there is always one of the two.
        self._tell([self._tombstone(entry, reason) for entry, reason in entries])
        for entry, _ in entries:
            self._states.delete(entry.path)
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
        return plan(entries, self._limits, room)

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
        with self._states.tolerated():
            self.journal.append(self._untold)
            self._untold = []
            self.journal.trim()
        self.faults[SpoolFault.JOURNAL_FULL] += self.journal.given_up
        self.journal.given_up = 0

    # --- start-up ---

    def _recover(self) -> None:
        """Own or remove everything here. What can't be read is set aside; start-up goes on."""
        for state in (INCOMING, BUNDLES, DELETING, QUARANTINE, JOURNAL):
            with self._states.tolerated():
                make_folders(self._disk, self.folder / state)
        self._states.quarantined = len(self._states.names(QUARANTINE))
        for name in self._states.names(JOURNAL):
            with self._states.tolerated():
                if not self.journal.adopt(name):
                    self._foreign(self.folder / JOURNAL / name)
        for name in self._states.names(DELETING):
            self._states.remove(self.folder / DELETING / name)
        for name in self._states.names(INCOMING):
            if ID.fullmatch(name) is not None:
                self._lose(Tombstone(name, DropReason.INTERRUPTED, self._now()))
            self._states.remove(self.folder / INCOMING / name)
        for name in self._states.names(BUNDLES):
            with self._states.tolerated():
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
            self._states.remove(path)
            return
        try:
            manifest = read_whole(self._disk, path)
            if manifest.bundle_id != name["id"]:
                raise BundleError(f"{path} holds another bundle, {manifest.bundle_id}")
            size, inodes = measure(self._disk, path)
        except (BundleError, OSError) as error:
            log.error(
                "a bundle can't be read and is set aside: %s", error, extra=BUNDLE_SET_ASIDE.of(bundle=name["id"])
            )
            self._lose(Tombstone(name["id"], DropReason.DAMAGED, self._now()))
            self._states.set_aside(path)
            return
        older = self._entries.get(manifest.bundle_id)
        if older is not None:  # replaced by this one, when the power went
            self._states.delete(older.path)
        self.faults[SpoolFault.CLOCK] += doubtful(manifest.created, self._now())
        self._entries[manifest.bundle_id] = entry_of(path, sequence, manifest, size, inodes)

    def _foreign(self, path: Path) -> None:
        self.faults[SpoolFault.FOREIGN] += 1
        log.warning("%s is not a file of the spool and is set aside", path)
        self._states.set_aside(path)
