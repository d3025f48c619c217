"""A folder in memory, for what must not be written to a disk, or can't be."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path

from tidegauge.errors import TidegaugeError

SHM = Path("/dev/shm")


class RamFolder:
    """A folder in memory that only this user may enter, the same one for each agent with this state folder."""

    def __init__(self, state: Path, base: Path = SHM, sub: str = "") -> None:
        """`sub`: for what is not cleared with the rest."""
        name = hashlib.sha256(str(state.resolve()).encode()).hexdigest()[:16]
        self.path = base / f"tidegauge-{name}{sub and '-'}{sub}"

    def ready(self) -> Path:
        """Make it. Raises TidegaugeError where somebody else has, or where there is no memory to be had."""
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            found = self.path.lstat()
        except OSError as error:
            raise TidegaugeError(
                f"no folder in memory can be made at {self.path} ({error.strerror})",
                "let this user write to /dev/shm: what is private must not be written to a disk",
            ) from error
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise TidegaugeError(f"{self.path} belongs to another user, or is open to others", "remove it")
        return self.path

    def clear(self) -> None:
        """Remove it with all in it, also what an agent that was killed has left."""
        shutil.rmtree(self.path, ignore_errors=True)


def read_only(folder: Path) -> bool:
    """Whether the disk of a folder takes no writes, as one that has found itself damaged."""
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def own_files(state: Path) -> Path:
    """Where what only this run of the agent needs lies (logs, work, control socket): the state folder, or memory where
    that is on a read-only disk. Raises TidegaugeError or OSError."""
    return RamFolder(state, sub="run").ready() if read_only(state) else state
