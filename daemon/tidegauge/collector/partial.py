"""Files on their way in: bytes written at their offsets until the last one has come.

In a folder for one process; as objects in the shared store where any ingester may get the next chunk.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import obstore
from obstore.store import S3Store

from tidegauge.collector.blobs import faults

_PART = re.compile(r"^(?P<start>[0-9]{16})-(?P<stop>[0-9]{16})$")
_PREFIX = "partial"
_READ = 1 << 20
_WRITING = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
#: Files that are hashed while they come.
_RUNNING = 256


class Partials(Protocol):
    """One file for each (device, file id), which both have been matched whole: no paths from outside.

    `shared`: what is written is durable at once and seen by other processes. Methods raise OSError.
    """

    shared: bool

    def write(self, device: str, file_id: str, offset: int, data: bytes) -> None:
        """Write `data` at `offset`. Raises OSError, for instance where the disk is full."""

    def sync(self, device: str, file_id: str) -> None:
        """What has been written is durable when this returns."""

    def exists(self, device: str, file_id: str) -> bool:
        """Whether any of it can be here."""

    def whole(self, device: str, file_id: str, size: int) -> contextlib.AbstractContextManager[Path | None]:
        """The file, where it has `size` bytes with the hash that is its id; else None."""

    def discard(self, device: str, file_id: str) -> None:
        """Throw away what has been written."""

    def keep_only(self, known: Iterable[tuple[str, str]]) -> int:
        """Remove what no open transfer knows. Returns its number."""


class Running:
    """The hash of a file as far as it has been written without a gap: what comes in order is hashed as it comes.

    In the thread that writes: to hand so little work to another one costs as much as it saves. Not thread-safe.
    """

    def __init__(self) -> None:
        self._digest, self._at = hashlib.sha256(), 0

    def wrote(self, offset: int, data: bytes | memoryview) -> None:
        """Bytes that lie behind a gap are read again in the end; bytes written over spoil the hash, and all are."""
        if offset < self._at:
            self._digest, self._at = hashlib.sha256(), 0
        elif offset == self._at:
            self._digest.update(data)
            self._at += len(data)

    def finish(self, path: Path) -> str:
        """The hash of the whole, with what is missing here read from the file."""
        with path.open("rb") as file:
            file.seek(self._at)
            while data := file.read(_READ):
                self._digest.update(data)
                self._at += len(data)
        return self._digest.hexdigest()


class FolderPartials:
    """In a folder of one process."""

    shared = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Of files that this process has begun, the latest; of others all is read.
        self._running: OrderedDict[tuple[str, str], Running] = OrderedDict()
        self._lock = threading.Lock()
        self._folder.mkdir(parents=True, exist_ok=True)

    def path(self, device: str, file_id: str) -> Path:
        return self._folder / device / file_id

    def write(self, device: str, file_id: str, offset: int, data: bytes) -> None:
        path = self.path(device, file_id)
        try:
            handle = os.open(path, _WRITING, 0o640)
        except FileNotFoundError:
            path.parent.mkdir(exist_ok=True)
            handle = os.open(path, _WRITING, 0o640)
        try:
            view = memoryview(data)
            while view:
                count = os.pwrite(handle, view, offset)
                self._hash(device, file_id).wrote(offset, view[:count])
                view, offset = view[count:], offset + count
        finally:
            os.close(handle)

    def _hash(self, device: str, file_id: str) -> Running:
        with self._lock:
            found = self._running.get((device, file_id)) or self._running.setdefault((device, file_id), Running())
            self._running.move_to_end((device, file_id))
            while len(self._running) > _RUNNING:
                self._running.popitem(last=False)
        return found

    def sync(self, device: str, file_id: str) -> None:
        handle = os.open(self.path(device, file_id), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(handle)
        finally:
            os.close(handle)

    def exists(self, device: str, file_id: str) -> bool:
        return self.path(device, file_id).exists()

    @contextlib.contextmanager
    def whole(self, device: str, file_id: str, size: int) -> Iterator[Path | None]:
        path = self.path(device, file_id)
        if size == 0:
            self.write(device, file_id, 0, b"")
        running = self._forget(device, file_id)  # a second check trusts nothing but the file
        right = path.is_file() and path.stat().st_size == size and running.finish(path) == file_id
        yield path if right else None

    def _forget(self, device: str, file_id: str) -> Running:
        with self._lock:
            return self._running.pop((device, file_id), None) or Running()

    def discard(self, device: str, file_id: str) -> None:
        self._forget(device, file_id)
        self.path(device, file_id).unlink(missing_ok=True)

    def keep_only(self, known: Iterable[tuple[str, str]]) -> int:
        wanted = {self.path(*key) for key in known}
        strays = [path for path in self._folder.glob("*/*") if path not in wanted]
        for path in strays:
            path.unlink()
        return len(strays)


class BucketPartials:
    """An object a chunk, named by its range, put together when all are there. `work`: a folder for that moment."""

    shared = True

    def __init__(self, bucket: S3Store, work: Path) -> None:
        self._bucket, self._work = bucket, work
        self._work.mkdir(parents=True, exist_ok=True)

    def write(self, device: str, file_id: str, offset: int, data: bytes) -> None:
        key = f"{_PREFIX}/{device}/{file_id}/{offset:016d}-{offset + len(data):016d}"
        with faults(key):
            self._bucket.put(key, data)

    def sync(self, device: str, file_id: str) -> None:
        """Each object was durable when it was written."""

    def exists(self, device: str, file_id: str) -> bool:
        """Not asked of the store: where a chunk is gone, the hash of the whole tells."""
        return True

    @contextlib.contextmanager
    def whole(self, device: str, file_id: str, size: int) -> Iterator[Path | None]:
        with tempfile.NamedTemporaryFile(prefix="whole-", dir=self._work) as file:
            digest, at = hashlib.sha256(), 0
            for start, stop, key in self._parts(device, file_id):
                if start > at:
                    break  # a gap
                if stop <= at:
                    continue
                try:
                    with faults(key):
                        data = bytes(self._bucket.get(key).bytes())[at - start :]
                except FileNotFoundError:
                    break  # thrown away since it was listed, by another process
                digest.update(data)
                file.write(data)
                at += len(data)
            file.flush()
            yield Path(file.name) if at == size and digest.hexdigest() == file_id else None

    def discard(self, device: str, file_id: str) -> None:
        keys = [key for _, _, key in self._parts(device, file_id)]
        if keys:
            with contextlib.suppress(FileNotFoundError), faults(keys[0]):
                self._bucket.delete(keys)

    def keep_only(self, known: Iterable[tuple[str, str]]) -> int:
        wanted, strays = set(known), set()
        with faults(_PREFIX):
            for some in obstore.list(self._bucket, prefix=_PREFIX):
                for each in some:
                    parts = str(each["path"]).split("/")
                    if len(parts) == 4 and (parts[1], parts[2]) not in wanted:
                        strays.add((parts[1], parts[2]))
        for key in strays:
            self.discard(*key)
        return len(strays)

    def _parts(self, device: str, file_id: str) -> list[tuple[int, int, str]]:
        """Start, stop and key of each chunk, in order; of those that begin together the longest first."""
        folder, found = f"{_PREFIX}/{device}/{file_id}", []
        with faults(folder):
            for some in obstore.list(self._bucket, prefix=folder):
                for each in some:
                    key = str(each["path"])
                    name = _PART.match(key.rpartition("/")[2])
                    if name is not None:
                        found.append((int(name["start"]), int(name["stop"]), key))
        return sorted(found, key=lambda part: (part[0], -part[1]))
