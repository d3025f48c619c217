"""From bundles in the spool to what the sender queues, and back to bytes. Blocks on the disk: run it in a thread."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from tidegauge.bundles import layout
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import blobs_of
from tidegauge.bundles.reader import read_manifest
from tidegauge.link.sender import Outgoing
from tidegauge.link.transfer import FileRef
from tidegauge.spool.store import Entry


def outgoing(entry: Entry) -> Outgoing:
    """The bundle as files to send; a file's id is its SHA-256. Raises `BundleError`."""
    manifest = read_manifest(entry.path)
    try:
        data = layout.manifest_path(entry.path).read_bytes()
    except OSError as error:
        raise BundleError(f"{entry.path} can't be read", str(error)) from error
    head = FileRef(
        file_id=hashlib.sha256(data).hexdigest(),
        size=len(data),
        name=layout.MANIFEST,
        user_data={"kind": "manifest", "bundle": entry.id},
    )
    parts = {
        sha256: FileRef(sha256, blob.stored, sha256, {"kind": "blob", "bundle": entry.id})
        for sha256, blob in blobs_of(manifest).items()
    }
    return Outgoing(entry.id, head, parts)


def file_path(folder: Path, item: Outgoing, file_id: str) -> Path:
    """Where a file of an outgoing bundle is."""
    return layout.manifest_path(folder) if file_id == item.head.file_id else layout.blob_path(folder, file_id)


def read_chunk(path: Path, offset: int, length: int) -> tuple[bytes, str]:
    """`length` bytes at `offset`, and their SHA-256. Raises OSError, and `BundleError` where the file is shorter."""
    with path.open("rb") as file:
        data = os.pread(file.fileno(), length, offset)
    if len(data) != length:
        raise BundleError(f"{path} is shorter than its manifest says")
    return data, hashlib.sha256(data).hexdigest()


def read_paid(path: Path, offset: int, length: int, spend: Callable[[int], bool] | None) -> tuple[bytes, str] | None:
    """The same, where `spend` lets so many bytes go, else None; without `spend` they are free."""
    if spend is not None and not spend(length):
        return None
    return read_chunk(path, offset, length)
