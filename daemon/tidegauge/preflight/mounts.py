"""Which file system a folder is on."""

from __future__ import annotations

from pathlib import PurePosixPath

#: File systems that live in RAM and are empty after a reboot.
IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})


def kind_of(path: str, mounts: str) -> str:
    """The type of the file system that holds `path` (absolute), from the text of /proc/mounts; "unknown" without one.

    Later lines win: a mount hides an earlier one at the same place.
    """
    best, kind = -1, "unknown"
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = PurePosixPath(fields[1].replace("\\040", " "))
        parts = len(point.parts)
        if parts >= best and PurePosixPath(path).is_relative_to(point):
            best, kind = parts, fields[2]
    return kind
