"""Writing a bundle: blobs first, the manifest last, so that a folder with a manifest is whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec
import zstandard

from tidegauge.bundles import layout
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.fingerprint import READ, Digest
from tidegauge.bundles.manifest import Blob, Manifest, blobs_of
from tidegauge.bundles.sealing import Sealer
from tidegauge.files import write_durably
from tidegauge.filesystem import REAL, FileSystem, make_folders

Encoding = Literal["zstd", "raw"]

#: Higher levels gain a few per cent on activations and cost several times the time.
LEVEL = 1


class BundleWriter:
    """Writes into `folder`, which is made where it doesn't exist. One writer a folder; not thread-safe.

    Equal content is stored once. Nothing is durable before `seal`. Raises OSError where the disk fails or is full.
    `recipient`: the public key that content which `shows` the picture is encrypted to, before it is written; empty for
    none.
    """

    def __init__(self, folder: Path, disk: FileSystem = REAL, recipient: str = "") -> None:
        self._folder, self._disk, self._recipient = folder, disk, recipient
        self._parts = 0
        make_folders(disk, layout.blobs_folder(folder))

    def add_bytes(self, data: bytes, encoding: Encoding = "zstd", *, shows: bool = False) -> Blob:
        """Store `data`."""
        return self._add(BytesIO(data), len(data), encoding, shows)

    def add_file(self, path: Path, encoding: Encoding = "zstd", *, shows: bool = False) -> Blob:
        """Store the content of a file, streamed. Raises `BundleError` where it changes size meanwhile."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            try:
                return self._add(file, size, encoding, shows)
            except _SizeChanged as error:
                raise BundleError(
                    f"{path} changed its size while it was read", "collect it again when complete"
                ) from error

    def seal(self, manifest: Manifest) -> Path:
        """Make all blobs durable, then write the manifest. Returns its path.

        Raises `BundleError` where a blob that the manifest names is not here, or the manifest breaks its own schema.
        """
        data = msgspec.json.encode(manifest)
        if len(data) > layout.MAX_MANIFEST:
            raise BundleError(f"the manifest of {manifest.bundle_id} has {len(data)} bytes", "record fewer traces")
        try:
            msgspec.json.decode(data, type=Manifest)
        except msgspec.ValidationError as error:
            raise BundleError(f"the manifest of {manifest.bundle_id!r} breaks its schema", str(error)) from error
        for blob in blobs_of(manifest).values():
            self._sync(manifest, blob)
        self._disk.sync_folder(layout.blobs_folder(self._folder))
        path = layout.manifest_path(self._folder)
        write_durably(path, data, self._disk)
        return path

    def _sync(self, manifest: Manifest, blob: Blob) -> None:
        path = layout.blob_path(self._folder, blob.sha256)
        found = self._disk.look(path)
        if found is None:
            raise BundleError(f"blob {blob.sha256} of bundle {manifest.bundle_id} is missing", "add it before sealing")
        if found.size != blob.stored:
            raise BundleError(f"blob {blob.sha256} of bundle {manifest.bundle_id} is not {blob.stored} bytes long")
        self._disk.sync_file(path)

    def _add(self, source: BinaryIO, size: int, encoding: Encoding, shows: bool) -> Blob:
        self._parts += 1
        seal = shows and bool(self._recipient)
        part = layout.blobs_folder(self._folder) / f"part-{self._parts}.tmp"
        stored = Digest()
        try:
            with self._disk.create(part) as file:

                def put(data: bytes) -> None:
                    stored.update(data)
                    file.write(data)

                if seal:
                    sealer = Sealer(self._recipient, put)
                    _encode(source, size, "zstd", sealer.write)
                    sealer.finish()
                else:
                    _encode(source, size, encoding, put)
            self._disk.rename(part, layout.blob_path(self._folder, stored.sha256))
        except BaseException:
            if self._disk.look(part) is not None:
                self._disk.unlink(part)
            raise
        return Blob(stored.sha256, stored.size, size, "sealed" if seal else encoding)


class _SizeChanged(Exception):
    pass


def _encode(source: BinaryIO, size: int, encoding: Encoding, put: Callable[[bytes], None]) -> None:
    """Copy exactly `size` bytes, as one zstd frame that states its content size, or as they are."""
    frame = zstandard.ZstdCompressor(level=LEVEL).compressobj(size=size) if encoding == "zstd" else None
    left = size
    while left:
        data = source.read(min(READ, left))
        if not data:
            raise _SizeChanged
        left -= len(data)
        put(frame.compress(data) if frame else data)
    if source.read(1):
        raise _SizeChanged
    if frame:
        put(frame.flush())
