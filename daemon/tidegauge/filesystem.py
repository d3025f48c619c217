"""The operations on files that survive a power cut or don't, behind one small protocol.

What must survive is written through it, so that a test can put a file system in its place that keeps only what was
synced, and cut the power at every step.
"""

from __future__ import annotations

import os
import stat
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

#: What `Room.inodes` is where a file system has no table of them.
UNLIMITED_INODES = 1 << 40


class Writer(Protocol):
    """A new file that is being written. Nothing of it is durable before `FileSystem.sync_file`."""

    def write(self, data: bytes, /) -> object: ...


class Look(NamedTuple):
    """What is at a path, symbolic links not followed: `size` in bytes."""

    kind: Literal["file", "folder", "other"]
    size: int


class Room(NamedTuple):
    """What a file system has left for this user."""

    bytes: int
    inodes: int


class FileSystem(Protocol):
    """Each method is one step that a power cut may come before; all raise OSError.

    A new name, a rename and a removal are durable once the folder has been synced (a rename between two: both); bytes
    once the file has. Until then any of them may be lost, in any order.
    """

    def make_folder(self, path: Path) -> None:
        """Raises FileExistsError where there is something."""

    def create(self, path: Path) -> AbstractContextManager[Writer]:
        """A new and empty file, in the place of one that is there."""

    def append(self, path: Path, data: bytes) -> None:
        """Add to the end of a file, which is made where it doesn't exist."""

    def sync_file(self, path: Path) -> None: ...

    def sync_folder(self, path: Path) -> None: ...

    def rename(self, source: Path, target: Path) -> None:
        """A file in the place of `target`, or a folder to a name that is free."""

    def unlink(self, path: Path) -> None: ...

    def remove_folder(self, path: Path) -> None:
        """An empty one."""

    def names(self, path: Path) -> list[str]:
        """What is in a folder, sorted."""

    def look(self, path: Path) -> Look | None:
        """None where nothing is."""

    def read(self, path: Path, limit: int) -> bytes:
        """The first `limit` bytes of a regular file; links are not followed."""

    def room(self, path: Path) -> Room: ...


class RealFileSystem:
    """The operating system's."""

    def make_folder(self, path: Path) -> None:
        path.mkdir()

    def create(self, path: Path) -> AbstractContextManager[Writer]:
        return path.open("wb")

    def append(self, path: Path, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)

    def sync_file(self, path: Path) -> None:
        _sync(path, os.O_RDONLY | os.O_NOFOLLOW)

    def sync_folder(self, path: Path) -> None:
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        path.rmdir()

    def names(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))  # noqa: PTH208 # names, not paths

    def look(self, path: Path) -> Look | None:
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISREG(found.st_mode):
            return Look("file", found.st_size)
        return Look("folder" if stat.S_ISDIR(found.st_mode) else "other", 0)

    def read(self, path: Path, limit: int) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return file.read(limit)

    def room(self, path: Path) -> Room:
        disk = os.statvfs(path)
        return Room(disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else UNLIMITED_INODES)


REAL: FileSystem = RealFileSystem()


def make_folders(disk: FileSystem, path: Path) -> None:
    """A folder with the parents that it lacks, each of them durable by its name."""
    if disk.look(path) is None:
        make_folders(disk, path.parent)
        disk.make_folder(path)
        disk.sync_folder(path.parent)


def remove_tree(disk: FileSystem, path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it; nothing there is fine."""
    found = disk.look(path)
    if found is None:
        return
    if found.kind != "folder":
        disk.unlink(path)
        return
    for name in disk.names(path):
        remove_tree(disk, path / name)
    disk.remove_folder(path)


def measure(disk: FileSystem, path: Path) -> tuple[int, int]:
    """Bytes in blocks of 4 KiB, and inodes, of all that is in a folder (the folder itself not)."""
    size = inodes = 0
    for name in disk.names(path):
        found = disk.look(path / name)
        if found is None:
            continue
        inodes += 1
        size += 4096 if found.kind == "folder" else -(-found.size // 4096) * 4096
        if found.kind == "folder":
            inside = measure(disk, path / name)
            size, inodes = size + inside[0], inodes + inside[1]
    return size, inodes


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
