"""A copy of the embedded collector's data, taken while it runs, and its way back."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidegauge.clocks import wall
from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.config import CollectorConfig
from tidegauge.collector.storage import DATABASE
from tidegauge.collector.store import Store
from tidegauge.errors import TidegaugeError
from tidegauge.files import sync_folder, write_durably

NOTE = "backup.json"


class Backup(msgspec.Struct, frozen=True):
    """`backup.json`: what the folder holds. `collector`: the name of the database. `made`: Unix seconds."""

    collector: str
    made: float
    blobs: int
    size: int


def back_up(config: CollectorConfig, folder: Path, progress: Callable[[int], None] = lambda _: None) -> Backup:
    """Copy database and blobs to `folder`; blobs that an earlier backup has put there are not copied again.

    The database goes first, so that it never names a blob that came too late for the copy. Comparison jobs are not
    copied: those that are due are found anew. Raises TidegaugeError, OSError.
    """
    _embedded(config)
    source = config.data_folder / DATABASE
    if not source.is_file():
        raise TidegaugeError(f"there is no collector in {config.data_folder}", "check the key `data`")
    folder.mkdir(parents=True, exist_ok=True)
    _copy_database(source, folder / DATABASE)
    blobs, target = BlobStore(config.data_folder / "blobs"), BlobStore(folder / "blobs")
    there, count, total = dict(target.names()), 0, 0
    for name, size in blobs.names():
        count, total = count + 1, total + size
        if there.get(name) != size:
            with contextlib.suppress(FileNotFoundError):  # retention was quicker
                target.put(name, blobs.path(name))
        progress(size)
    store = Store(folder / DATABASE)
    try:
        note = Backup(store.collector(), wall(), count, total)
    finally:
        store.close()
    write_durably(folder / NOTE, msgspec.json.encode(note))
    return note


def restore(config: CollectorConfig, folder: Path) -> Backup:
    """Put a backup into the data folder, which must hold no database; blobs that are there already stay.

    The caller holds the lock of the data folder. Raises TidegaugeError, OSError.
    """
    _embedded(config)
    try:
        note = msgspec.json.decode((folder / NOTE).read_bytes(), type=Backup)
    except (FileNotFoundError, msgspec.DecodeError) as error:
        raise TidegaugeError(
            f"{folder} is no finished backup ({error})", "give a folder that `backup` wrote"
        ) from error
    target = config.data_folder / DATABASE
    if target.exists():
        raise TidegaugeError(f"{target} exists", "move it away first; the blobs beside it may stay")
    for left in config.data_folder.glob(f"{DATABASE}-*"):  # a journal of another database
        left.unlink()
    source, blobs = BlobStore(folder / "blobs"), BlobStore(config.data_folder / "blobs")
    for name, _ in source.names():
        blobs.put(name, source.path(name))
    _copy_database(folder / DATABASE, target)
    return note


def _embedded(config: CollectorConfig) -> None:
    if config.database.url:
        raise TidegaugeError(
            "this collector's data are in PostgreSQL and in a bucket",
            "use pg_dump and the bucket's own means, as docs/collector.md says",
        )


def _copy_database(source: Path, target: Path) -> None:
    """By SQLite's own backup, which is consistent while others write."""
    beside = target.with_name(f".{target.name}.part")
    beside.unlink(missing_ok=True)
    with (
        contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as origin,
        contextlib.closing(sqlite3.connect(beside)) as copy,
    ):
        origin.backup(copy)
    with beside.open("rb") as file:
        os.fsync(file.fileno())
    beside.rename(target)
    sync_folder(target.parent)
