"""The durable log of small records, in segments that are sent and deleted as a whole.

```
spool/journal/<number>.log       lines of `records`; the last one may be open, all others are closed
```
A record costs one write and one sync. After a start, and after a write that failed, a new segment begins, so that what
follows a torn line is never doubted.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tidegauge.filesystem import FileSystem
from tidegauge.spool.records import Record, encode_line

#: A segment is closed when it is as long as this, bytes, or has as many records: a day of history.
SEGMENT_BYTES, SEGMENT_RECORDS = 64 << 10, 24
NAME = re.compile(r"(?P<number>\d{10})\.log", re.ASCII)


class JournalFile(msgspec.Struct, frozen=True):
    """A closed segment: it never changes any more."""

    number: int
    path: Path
    bytes: int


class Journal:
    """Thread-safe. `given_up`: segments that were dropped unsent, since the journal was full."""

    def __init__(self, folder: Path, limit: int, disk: FileSystem) -> None:
        self.folder, self.limit = folder, limit
        self.given_up = 0
        self._disk = disk
        self._lock = threading.RLock()
        self._sizes: dict[int, int] = {}
        self._open: int | None = None
        self._records = 0
        self._last = 0

    def adopt(self, name: str) -> bool:
        """At start-up: take a file in the folder over; False where it is not a segment."""
        match = NAME.fullmatch(name)
        found = self._disk.look(self.folder / name)
        if match is None or found is None or found.kind != "file":
            return False
        number = int(match["number"])
        if found.size:
            self._sizes[number] = found.size
        else:  # begun when the power went
            self._disk.unlink(self.folder / name)
        self._last = max(self._last, number)
        return True

    def append(self, records: Sequence[Record]) -> None:
        """Durable on return. Raises OSError where it is not: the records are the caller's still."""
        if not records:
            return
        data = b"".join(encode_line(record) for record in records)
        with self._lock:
            fresh = self._open is None
            if self._open is None:
                self._last += 1
                self._open, self._records = self._last, 0
            number, path = self._open, self._path(self._open)
            try:
                self._disk.append(path, data)
                self._disk.sync_file(path)
                if fresh:
                    self._disk.sync_folder(self.folder)
            except OSError:
                self._open = None  # whatever is at its end now, nothing follows it
                found = self._disk.look(path)
                if found is not None:
                    self._sizes[number] = found.size
                raise
            self._sizes[number] = self._sizes.get(number, 0) + len(data)
            self._records += len(records)
            if self._sizes[number] >= SEGMENT_BYTES or self._records >= SEGMENT_RECORDS:
                self._open = None

    def close(self) -> list[JournalFile]:
        """Close the open segment; all of them, the oldest first."""
        with self._lock:
            self._open = None
            return [JournalFile(number, self._path(number), size) for number, size in sorted(self._sizes.items())]

    def remove(self, number: int) -> None:
        """It is at the collector. Raises OSError; it may come back after a power cut, which does no harm."""
        with self._lock:
            if number == self._open or self._sizes.pop(number, None) is None:
                return
            self._disk.unlink(self._path(number))

    def trim(self) -> None:
        """Give the oldest closed segments up where all together are too large. Raises OSError."""
        with self._lock:
            for number in sorted(self._sizes):
                if self.bytes <= self.limit or number == self._open:
                    return
                self.remove(number)
                self.given_up += 1

    @property
    def bytes(self) -> int:
        with self._lock:
            return sum(-(-size // 4096) * 4096 for size in self._sizes.values())

    @property
    def inodes(self) -> int:
        return len(self._sizes)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:010d}.log"
