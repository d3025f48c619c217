"""Reading a bundle that comes from elsewhere. Nothing in it is believed: sizes, hashes, encodings are all checked."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zstandard

from tidegauge.bundles import layout
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import SCHEMA, Blob, Manifest, blobs_of
from tidegauge.bundles.sealing import Sealed, recipient_of, unseal
from tidegauge.tensors import ELEMENT_SIZES

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


class _Version(msgspec.Struct):
    schema: int


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the bundle in `folder`. Raises `BundleError`."""
    return decode_manifest(_read(layout.manifest_path(folder), layout.MAX_MANIFEST), str(folder))


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Decode a manifest; `where` names it in errors. Raises `BundleError`."""
    if len(data) > layout.MAX_MANIFEST:
        raise BundleError(
            f"the manifest of {where} is larger than {layout.MAX_MANIFEST} bytes", "it is not a bundle of ours"
        )
    _check_amount(data, where)
    try:
        version = msgspec.json.decode(data, type=_Version).schema
        if version != SCHEMA:
            cure = "update Tidegauge here" if version > SCHEMA else "read it with the release that wrote it"
            raise BundleError(f"the manifest of {where} has schema {version}, this release reads {SCHEMA}", cure)
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"the manifest of {where} is damaged", str(error)) from error
    _check_blobs(manifest, where)
    _check_tensors(manifest, where)
    return manifest


def read_blob(folder: Path, blob: Blob, limit: int, key: X25519PrivateKey | None = None) -> bytes:
    """The decoded content of a blob, at most `limit` bytes, stored or decoded. `key` opens sealed ones.

    Raises `BundleError`, `Sealed` for a sealed one without its key.
    """
    if blob.size > limit or blob.stored > limit:
        raise BundleError(f"blob {blob.sha256} has {max(blob.size, blob.stored)} bytes, the limit is {limit}")
    stored = _read(layout.blob_path(folder, blob.sha256), blob.stored)
    return decode_blob(stored, blob, key)


def decode_blob(stored: bytes, blob: Blob, key: X25519PrivateKey | None = None) -> bytes:
    """Check the stored bytes against the blob's hash and sizes, and decode them. Raises `BundleError`.

    Memory is bounded by `blob.size`, whatever a zstd frame claims.
    """
    if len(stored) != blob.stored:
        raise BundleError(f"blob {blob.sha256} has {len(stored)} bytes instead of {blob.stored}", "transfer it again")
    if hashlib.sha256(stored).hexdigest() != blob.sha256:
        raise BundleError(f"blob {blob.sha256} is damaged: its content has another hash", "transfer it again")
    if blob.encoding == "sealed":
        stored = _opened(stored, key)
    data = stored if blob.encoding == "raw" else _decompress(stored, blob)
    if len(data) != blob.size:
        raise BundleError(f"blob {blob.sha256} decodes to {len(data)} bytes instead of {blob.size}")
    return data


def missing_blobs(folder: Path, manifest: Manifest) -> list[Blob]:
    """The blobs that the manifest names and that aren't in `folder` with their stored size; content is not read."""
    out = []
    for blob in blobs_of(manifest).values():
        try:
            found = layout.blob_path(folder, blob.sha256).lstat()
        except FileNotFoundError:
            out.append(blob)
            continue
        if not stat.S_ISREG(found.st_mode) or found.st_size != blob.stored:
            out.append(blob)
    return out


def _opened(stored: bytes, key: X25519PrivateKey | None) -> bytes:
    if key is None:
        raise Sealed(
            f"the bundle's tensors are encrypted to the key {recipient_of(stored)[:16]}…",
            "decrypt it first: `tidegauge bundle decrypt BUNDLE FOLDER --key FILE`",
        )
    return unseal(stored, key)


def _decompress(stored: bytes, blob: Blob) -> bytes:
    limit = max(1, blob.size)  # 0 would mean no limit
    try:
        claimed = zstandard.frame_content_size(stored)
        if claimed not in (-1, blob.size):
            raise BundleError(f"blob {blob.sha256} claims to decode to {claimed} bytes instead of {blob.size}")
        decompressor = zstandard.ZstdDecompressor(max_window_size=layout.MAX_WINDOW)
        return decompressor.decompress(stored, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BundleError(f"blob {blob.sha256} is not one zstd frame within its limits", str(error)) from error


def _check_amount(data: bytes, where: str) -> None:
    """Before memory is taken: a short name or number costs many times its own bytes once it is read."""
    if data.count(b'"') > layout.MAX_QUOTES or data.count(b",") > layout.MAX_ITEMS:
        raise BundleError(f"the manifest of {where} has more members than a bundle can need", "it is no bundle of ours")


def _check_blobs(manifest: Manifest, where: str) -> None:
    """A raw blob is stored as it is, so it has one size."""
    for blob in blobs_of(manifest).values():
        if blob.encoding == "raw" and blob.stored != blob.size:
            raise BundleError(f"the manifest of {where} contradicts itself about blob {blob.sha256}")


def _check_tensors(manifest: Manifest, where: str) -> None:
    """What a shape says is believed by whoever reads the tensor: no dimension below 0 that makes a product come out
    right, no product that overflows an index, no element type that NumPy would take for an object.
    """
    stored = (manifest.inputs, manifest.device_outputs, manifest.reference_outputs, manifest.traced_outputs)
    for spec in (item.spec for group in stored for item in group):
        if (
            spec.dtype not in ELEMENT_SIZES
            or len(spec.shape) > layout.MAX_RANK
            or min(spec.shape, default=0) < 0
            or max(spec.shape, default=0) > layout.MAX_ELEMENTS
            or spec.nbytes > layout.MAX_ELEMENTS
        ):
            raise BundleError(f"the manifest of {where} has a tensor of an impossible shape or type", spec.name[:80])


def _read(path: Path, limit: int) -> bytes:
    """A regular file of at most `limit` bytes, not through a symbolic link."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise BundleError(f"{path} does not exist", "give the folder of a complete bundle") from error
    except OSError as error:
        raise BundleError(f"{path} can't be read", os.strerror(error.errno or 0)) from error
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise BundleError(f"{path} is not a regular file")
        if found.st_size > limit:
            raise BundleError(f"{path} has {found.st_size} bytes, the limit is {limit}")
        return file.read(limit + 1)
