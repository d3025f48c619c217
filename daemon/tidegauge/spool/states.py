"""The folders of the spool's states: renames between them that survive a power cut, and what the disk refuses."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegauge.bundles import layout
from tidegauge.filesystem import FileSystem, remove_tree
from tidegauge.log_kinds import SPOOL_FAULT
from tidegauge.spool.faults import SpoolFault, fault_of

log = logging.getLogger(__name__)

INCOMING, BUNDLES, DELETING, QUARANTINE, JOURNAL = "incoming", "bundles", "deleting", "quarantine", "journal"
QUARANTINED_KEPT = 4


class States:
    """`faults`: what was wrong with disk and clock, by name. `quarantined`: things set aside. `condemned`: what the
    disk would not delete.
    """

    def __init__(self, folder: Path, disk: FileSystem) -> None:
        self.folder, self._disk = folder, disk
        self.faults: Counter[SpoolFault] = Counter(dict.fromkeys(SpoolFault, 0))
        self.quarantined = 0
        self.condemned: list[Path] = []
        self._said = ""

    def try_again(self) -> None:
        """What could not be deleted."""
        condemned, self.condemned = self.condemned, []
        for path in condemned:
            self.delete(path)

    def sync_rename(self, source: Path, target: Path) -> None:
        """A rename between two folders is durable when both are. An error here is told, and the file stays usable."""
        with self.tolerated():
            self._disk.sync_folder(target.parent)
            self._disk.sync_folder(source.parent)

    def delete(self, path: Path) -> None:
        """Rename first, so that a power cut leaves a whole bundle or one that is known to go."""
        target = self._free_name(DELETING, path.name)
        try:
            self._disk.rename(path, target)
        except OSError as error:
            self.note(error)
            # A full disk may have no room for a name. Without its manifest the rest is no bundle any more.
            with self.tolerated():
                self._disk.unlink(layout.manifest_path(path))
                self._disk.sync_folder(path)
        else:
            self.sync_rename(path, target)
            path = target
        self.remove(path)

    def remove(self, path: Path) -> None:
        try:
            remove_tree(self._disk, path)
        except OSError as error:
            self.note(error)
            self.condemned.append(path)

    def set_aside(self, path: Path) -> None:
        """Where the disk refuses it stays where it is, and is met again at the next start."""
        with self.tolerated():
            self._disk.rename(path, self._free_name(QUARANTINE, path.name))
            self.quarantined += 1
            self.keep_quarantined(QUARANTINED_KEPT)

    def keep_quarantined(self, most: int) -> None:
        """The newest: they are numbered as they come."""
        names = self.names(QUARANTINE)
        for name in names[: max(0, len(names) - most)]:
            self.remove(self.folder / QUARANTINE / name)
        self.quarantined = min(len(names), most)

    def _free_name(self, state: str, name: str) -> Path:
        """In `state`, after all that is there: a number, and what it was called."""
        taken = [int(each.partition(".")[0]) for each in self.names(state) if each.partition(".")[0].isdecimal()]
        return self.folder / state / f"{max(taken, default=0) + 1:010d}.{name[-100:]}"

    def names(self, state: str) -> list[str]:
        with self.tolerated():
            return self._disk.names(self.folder / state)
        return []

    @contextmanager
    def tolerated(self) -> Iterator[None]:
        """An error of the disk is counted, and said, and what was to be done is left undone."""
        try:
            yield
        except OSError as error:
            self.note(error)

    @contextmanager
    def counted(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.note(error)
            raise

    def note(self, error: OSError) -> None:
        """One line a change, however often it is tried."""
        fault = fault_of(error)
        self.faults[fault] += 1
        text = f"{fault.value}: {error.strerror}"
        if text != self._said:
            said = SPOOL_FAULT.of(fault=fault.value)
            log.error("the spool %s can't be written as it should (%s); tried again", self.folder, text, extra=said)
        self._said = text
