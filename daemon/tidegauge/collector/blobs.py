"""Blobs by their content's hash, in a folder, through obstore (an S3-compatible store has the same interface)."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from obstore.exceptions import GenericError, NotFoundError
from obstore.store import LocalStore

from tidegauge.errors import TidegaugeError
from tidegauge.files import sync_folder

_KEY = re.compile(r"^[0-9a-f]{64}$")
_READ = 1 << 20


class BlobMismatch(TidegaugeError):
    """The bytes are not those of the hash they came under."""


class BlobStore:
    """Write once, read many. A blob that `put` has returned for survives a power cut."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "sha256"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._clean()
        self._store = LocalStore(prefix=self._folder)
        for made in (self._folder, folder, folder.parent):
            sync_folder(made)

    def _clean(self) -> None:
        """Remove what a crash left between obstore's write (`name#1`) and its rename."""
        for stray in self._folder.glob("*#*"):
            stray.unlink()

    def put(self, sha256: str, source: Path) -> int:
        """Keep a file's bytes under their hash and return their number.

        Raises BlobMismatch where the bytes have another hash, OSError where they can't be written.
        """
        path = self.path(sha256)
        found = _hash(source)
        if found != sha256:
            raise BlobMismatch(f"the bytes received as {sha256} have the hash {found}", "send the file again")
        if not path.is_file() or _hash(path) != sha256:  # a power cut may leave a name without its bytes
            try:
                self._store.put(sha256, source)
            except GenericError as error:  # obstore has no error of its own for a full disk
                raise OSError(errno.EIO, f"can't be written: {error}", str(path)) from error
        with path.open("rb") as stored:
            os.fsync(stored.fileno())  # obstore never does
        sync_folder(self._folder)
        return path.stat().st_size

    def has(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def get(self, sha256: str, limit: int) -> bytes:
        """The whole blob. Raises TidegaugeError where it is absent or larger than `limit` bytes."""
        try:
            size = self._store.head(sha256)["size"]
            if size > limit:
                raise TidegaugeError(f"blob {sha256} has {size} bytes, the limit is {limit}", "raise the limit")
            return bytes(self._store.get(sha256).bytes())
        except (NotFoundError, FileNotFoundError) as error:
            raise TidegaugeError(f"blob {sha256} is not here", "let the device send its bundle again") from error

    def chunks(self, sha256: str) -> Iterator[bytes]:
        """The blob piece by piece. Raises FileNotFoundError where it is absent."""
        with self.path(sha256).open("rb") as file:
            while piece := file.read(_READ):
                yield piece

    def path(self, sha256: str) -> Path:
        """Where the blob's file is or would be. Raises ValueError for anything but a hash: no paths from outside."""
        if not _KEY.match(sha256):
            raise ValueError(f"not a SHA-256 in hex: {sha256!r}")
        return self._folder / sha256


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
