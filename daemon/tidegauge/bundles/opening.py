"""A bundle whose pictures were encrypted, as one that can be read: for whoever holds the private key."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tidegauge.bundles import layout
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import Blob, Manifest, blobs_of
from tidegauge.bundles.reader import read_blob, read_manifest
from tidegauge.bundles.writer import BundleWriter

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

T = TypeVar("T")
#: Of one tensor, bytes.
MAX_BLOB = 1 << 30


def decrypt(folder: Path, target: Path, key: X25519PrivateKey) -> Manifest:
    """Write the bundle in `folder` to a new folder `target`, with every sealed blob opened by `key`.

    The new manifest has no signature, since it isn't what the board has signed. Raises BundleError, and then leaves
    nothing behind.
    """
    if target.exists():
        raise BundleError(f"{target} exists already", "give a folder that doesn't exist")
    manifest = read_manifest(folder)
    if not any(blob.encoding == "sealed" for blob in blobs_of(manifest).values()):
        raise BundleError(f"{folder} holds nothing that is encrypted", "read it as it is")
    try:
        writer = BundleWriter(target)
        opened = {sha256: _opened(folder, target, writer, blob, key) for sha256, blob in blobs_of(manifest).items()}
        plain = msgspec.structs.replace(_with(manifest, opened), signature=None)
        writer.seal(plain)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return plain


def _opened(folder: Path, target: Path, writer: BundleWriter, blob: Blob, key: X25519PrivateKey) -> Blob:
    if blob.encoding == "sealed":
        return writer.add_bytes(read_blob(folder, blob, MAX_BLOB, key))
    read_blob(folder, blob, MAX_BLOB)  # what isn't copied byte for byte by its hash is no part of a bundle
    shutil.copyfile(layout.blob_path(folder, blob.sha256), layout.blob_path(target, blob.sha256))
    return blob


def _with(item: T, blobs: Mapping[str, Blob]) -> T:
    """The same with every blob replaced by its opened one."""
    changed: Any = item
    if isinstance(item, Blob):
        changed = blobs[item.sha256]
    elif isinstance(item, tuple):
        changed = tuple(_with(each, blobs) for each in item)
    elif isinstance(item, msgspec.Struct):
        names = (field.name for field in msgspec.structs.fields(item))
        changed = msgspec.structs.replace(item, **{name: _with(getattr(item, name), blobs) for name in names})
    result: T = changed
    return result
