"""A file system in memory that keeps only what was synced: what a disk may hold after the power was cut.

Weaker than any real one, so that what survives here survives there:

* A name (made, renamed or removed) is durable once its folder has been synced; a rename between two folders once both
  have. Until then a cut keeps any subset of the changes, whatever their order was. A rename is never half done.
* Bytes are durable once their file has been synced. Until then each write is lost, kept, cut short anywhere, or there
  with its length and other bytes in its place.
* Errors can be switched on: a full, read-only or broken disk (`refuse`), and syncs that do nothing (`forget`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from tidegauge.filesystem import Look, Room, Writer

BLOCK = 4096
_NEEDS_ROOM = ("make folder", "create", "write", "append", "rename")


class _File:
    """`data` now, `durable` at the last sync, `writes` (offset, bytes) since then."""

    __slots__ = ("data", "durable", "writes")

    def __init__(self, data: bytes = b"") -> None:
        self.data, self.durable = bytearray(data), data
        self.writes: list[tuple[int, bytes]] = []

    def write(self, data: bytes) -> None:
        self.writes.append((len(self.data), bytes(data)))
        self.data += data

    def after_cut(self, rng: Random) -> bytes:
        if not self.writes:
            return self.durable
        left = bytearray(self.durable)
        for offset, data in self.writes:
            fate = rng.randrange(4)
            if fate == 0:
                continue
            kept = data if fate == 1 else data[: rng.randrange(len(data) + 1)] if fate == 2 else bytes(len(data))
            left.extend(bytes(max(0, offset - len(left))))
            left[offset : offset + len(kept)] = kept
        return bytes(left)


class _Folder:
    """`names` now, and as they are on the disk."""

    __slots__ = ("durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}


_Node = _File | _Folder


class _Change:
    """Names that came and went together, in folders that are not synced yet."""

    __slots__ = ("came", "unsynced", "went")

    def __init__(self, went: tuple[_Folder, str, _Node] | None, came: tuple[_Folder, str, _Node] | None) -> None:
        self.went, self.came = went, came
        self.unsynced = {id(part[0]) for part in (went, came) if part is not None}

    def apply(self) -> None:
        if self.went is not None:
            folder, name, node = self.went
            if folder.durable.get(name) is node:
                del folder.durable[name]
        if self.came is not None:
            folder, name, node = self.came
            folder.durable[name] = node


class CrashDisk:
    """A `FileSystem` under the folder `root`, which is there. Paths outside of it don't exist.

    `before`: called before each step that changes or syncs something, with its name and path; what it raises is what
    the step raises. `refuse`: the errno of every such step from now on, or 0. `forget`: whether a sync of this kind
    ("file", "folder") and path does nothing. `capacity`: bytes, in blocks.
    """

    def __init__(self, root: Path, capacity: int = 1 << 40, inodes: int = 1 << 30) -> None:
        self.root = root
        self.capacity, self.inodes = capacity, inodes
        self.before: Callable[[str, Path], None] = lambda step, path: None
        self.refuse = 0
        self.forget: Callable[[str, Path], bool] = lambda kind, path: False
        self.steps = 0
        self._depth = len(root.parts)
        self._top = _Folder()
        self._changes: list[_Change] = []

    # --- the power ---

    def after_cut(self, rng: Random) -> CrashDisk:
        """What another boot may find; this one goes on as it was."""
        kept = [change for change in self._changes if rng.random() < 0.5]
        copies: dict[int, _Folder] = {}

        def copy(folder: _Folder) -> _Folder:
            if id(folder) not in copies:
                copies[id(folder)] = twin = _Folder()
                twin.durable = dict(folder.durable)
            return copies[id(folder)]

        def part(place: tuple[_Folder, str, _Node] | None) -> tuple[_Folder, str, _Node] | None:
            return None if place is None else (copy(place[0]), place[1], place[2])

        for change in kept:
            _Change(part(change.went), part(change.came)).apply()

        def settle(node: _Node) -> _Node:
            if isinstance(node, _File):
                return _File(node.after_cut(rng))
            names = copies[id(node)].durable if id(node) in copies else node.durable
            new = _Folder()
            new.names = {name: settle(inside) for name, inside in names.items()}
            new.durable = dict(new.names)
            return new

        other = CrashDisk(self.root, self.capacity, self.inodes)
        top = settle(self._top)
        assert isinstance(top, _Folder)
        other._top = top
        return other

    # --- FileSystem ---

    def make_folder(self, path: Path) -> None:
        self._step("make folder", path)
        parent, name = self._parent(path)
        if name in parent.names:
            raise _error(errno.EEXIST, path)
        self._take(BLOCK, path, names=1)
        self._came(parent, name, _Folder())

    @contextmanager
    def create(self, path: Path) -> Iterator[Writer]:
        self._step("create", path)
        parent, name = self._parent(path)
        self._take(0, path, names=1)
        file = _File()
        # An old file of this name stays on the disk until the new name is durable: worse than cutting it to nothing.
        self._came(parent, name, file)
        yield _Growing(self, path, file)

    def grow(self, path: Path, file: _File, data: bytes) -> None:
        """One write to a new file."""
        self._step("write", path)
        self._take(len(data), path)
        file.write(data)

    def append(self, path: Path, data: bytes) -> None:
        self._step("append", path)
        parent, name = self._parent(path)
        found = parent.names.get(name)
        if isinstance(found, _Folder):
            raise _error(errno.EISDIR, path)
        self._take(len(data), path, names=found is None)
        if found is None:
            found = _File()
            self._came(parent, name, found)
        found.write(data)

    def sync_file(self, path: Path) -> None:
        self._step("sync file", path)
        file = self._file(path)
        if not self.forget("file", path):
            file.durable, file.writes = bytes(file.data), []

    def sync_folder(self, path: Path) -> None:
        self._step("sync folder", path)
        folder = self._folder(path)
        if self.forget("folder", path):
            return
        left: list[_Change] = []
        for change in self._changes:
            change.unsynced.discard(id(folder))
            if change.unsynced:
                left.append(change)
            else:
                change.apply()
        self._changes = left

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename", source)
        before, old = self._parent(source)
        after, new = self._parent(target)
        node = before.names.get(old)
        if node is None:
            raise _error(errno.ENOENT, source)
        if isinstance(after.names.get(new), _Folder):
            raise _error(errno.ENOTEMPTY, target)
        del before.names[old]
        after.names[new] = node
        self._changes.append(_Change((before, old, node), (after, new, node)))

    def unlink(self, path: Path) -> None:
        self._step("unlink", path)
        parent, name = self._parent(path)
        node = parent.names.get(name)
        if not isinstance(node, _File):
            raise _error(errno.ENOENT if node is None else errno.EISDIR, path)
        del parent.names[name]
        self._changes.append(_Change((parent, name, node), None))

    def remove_folder(self, path: Path) -> None:
        self._step("remove folder", path)
        parent, name = self._parent(path)
        node = self._folder(path)
        if node.names:
            raise _error(errno.ENOTEMPTY, path)
        del parent.names[name]
        self._changes.append(_Change((parent, name, node), None))

    def names(self, path: Path) -> list[str]:
        return sorted(self._folder(path).names)

    def look(self, path: Path) -> Look | None:
        node = self._find(path)
        if node is None:
            return None
        return Look("file", len(node.data)) if isinstance(node, _File) else Look("folder", 0)

    def read(self, path: Path, limit: int) -> bytes:
        return bytes(self._file(path).data[:limit])

    def room(self, path: Path) -> Room:
        size, count = _used(self._top)
        return Room(max(0, self.capacity - size), max(0, self.inodes - count))

    # --- inside ---

    def _step(self, step: str, path: Path) -> None:
        self.steps += 1
        self.before(step, path)
        # A full disk still takes what needs no room.
        if self.refuse and (self.refuse != errno.ENOSPC or step in _NEEDS_ROOM):
            raise _error(self.refuse, path)

    def _take(self, size: int, path: Path, names: int = 0) -> None:
        if self.capacity < 1 << 40 or self.inodes < 1 << 30:
            free = self.room(path)
            if free.bytes < size or free.inodes < names:
                raise _error(errno.ENOSPC, path)

    def _came(self, folder: _Folder, name: str, node: _Node) -> None:
        folder.names[name] = node
        self._changes.append(_Change(None, (folder, name, node)))

    def _find(self, path: Path) -> _Node | None:
        node: _Node | None = self._top
        for name in path.parts[self._depth :]:
            node = node.names.get(name) if isinstance(node, _Folder) else None
        return node

    def _parent(self, path: Path) -> tuple[_Folder, str]:
        return self._folder(path.parent), path.name

    def _folder(self, path: Path) -> _Folder:
        node = self._find(path)
        if not isinstance(node, _Folder):
            raise _error(errno.ENOENT if node is None else errno.ENOTDIR, path)
        return node

    def _file(self, path: Path) -> _File:
        node = self._find(path)
        if not isinstance(node, _File):
            raise _error(errno.ENOENT if node is None else errno.EISDIR, path)
        return node


class _Growing:
    """A file that is being written, on a disk that may become full meanwhile."""

    def __init__(self, disk: CrashDisk, path: Path, file: _File) -> None:
        self._disk, self._path, self._file = disk, path, file

    def write(self, data: bytes, /) -> object:
        self._disk.grow(self._path, self._file, data)
        return None


def _used(node: _Node) -> tuple[int, int]:
    if isinstance(node, _File):
        return -(-len(node.data) // BLOCK) * BLOCK, 1
    size, count = BLOCK, 1
    for inside in node.names.values():
        more = _used(inside)
        size, count = size + more[0], count + more[1]
    return size, count


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
