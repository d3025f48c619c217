"""Files on their way in: bytes in data/partial, written at their offsets until the last one has come."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path


class Partials:
    """One file for each (device, file id), which both have been matched whole: no paths from outside."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)

    def path(self, device: str, file_id: str) -> Path:
        return self._folder / device / file_id

    def write(self, device: str, file_id: str, offset: int, data: bytes) -> None:
        """Write `data` at `offset`. Raises OSError, for instance where the disk is full."""
        path = self.path(device, file_id)
        path.parent.mkdir(exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            view = memoryview(data)
            while view:
                count = os.pwrite(handle, view, offset)
                view, offset = view[count:], offset + count
        finally:
            os.close(handle)

    def sync(self, device: str, file_id: str) -> None:
        """What has been written is on the disk when this returns."""
        handle = os.open(self.path(device, file_id), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(handle)
        finally:
            os.close(handle)

    def matches(self, device: str, file_id: str, size: int) -> bool:
        """Whether the file is whole: `size` bytes with the hash that is its id."""
        path = self.path(device, file_id)
        if size == 0:
            self.write(device, file_id, 0, b"")
        if not path.is_file() or path.stat().st_size != size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == file_id

    def discard(self, device: str, file_id: str) -> None:
        self.path(device, file_id).unlink(missing_ok=True)

    def keep_only(self, known: Iterable[tuple[str, str]]) -> int:
        """At start: remove files that no transfer in the database knows. Returns their number."""
        wanted = {self.path(*key) for key in known}
        strays = [path for path in self._folder.glob("*/*") if path not in wanted]
        for path in strays:
            path.unlink()
        return len(strays)
