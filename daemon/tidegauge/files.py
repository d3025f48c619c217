"""Files that survive a power cut: written beside, synced, renamed, folder synced."""

from __future__ import annotations

from pathlib import Path

from tidegauge.filesystem import REAL, FileSystem


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    REAL.sync_folder(folder)


def write_durably(path: Path, data: bytes, disk: FileSystem = REAL) -> None:
    """Replace `path` as a whole or not at all."""
    beside = path.with_name(f".{path.name}.part")
    with disk.create(beside) as file:
        file.write(data)
    disk.sync_file(beside)
    disk.rename(beside, path)
    disk.sync_folder(path.parent)
