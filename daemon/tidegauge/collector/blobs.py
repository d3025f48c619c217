"""Blobs by their content's hash, through obstore: in a folder, or in an S3-compatible store that processes share."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import obstore
from obstore.exceptions import BaseError, GenericError, NotFoundError
from obstore.store import LocalStore, S3Store

from tidegauge.collector.config import BlobsConfig
from tidegauge.errors import TidegaugeError, Unreached
from tidegauge.files import sync_folder

_KEY = re.compile(r"^[0-9a-f]{64}$")
_READ = 1 << 20
#: obstore has no error of its own for a bucket that isn't there: this is how its text says that the store has answered.
_REFUSED = re.compile(r"non-2xx status code: 4\d\d")
_FOLDER = "sha256"


class BlobMismatch(TidegaugeError):
    """The bytes are not those of the hash they came under."""


class BlobStore:
    """Write once, read many. A blob that `put` has returned for survives a power cut.

    `place`: a folder, or a bucket. Methods raise OSError where the store can't be written or reached.
    """

    def __init__(self, place: Path | S3Store) -> None:
        self._folder = place / _FOLDER if isinstance(place, Path) else None
        self._store: LocalStore | S3Store
        if self._folder is None:
            assert isinstance(place, S3Store)
            self._store, self._prefix = place, f"{_FOLDER}/"
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self._store, self._prefix = LocalStore(prefix=self._folder), ""
        for made in (self._folder, self._folder.parent, self._folder.parent.parent):
            sync_folder(made)

    def clean(self) -> None:
        """Remove what a crash left between obstore's write (`name#1`) and its rename. Only where nothing is written."""
        for stray in self._folder.glob("*#*") if self._folder is not None else ():
            stray.unlink()

    @property
    def bucket(self) -> S3Store | None:
        """The shared store, None for a folder."""
        return self._store if isinstance(self._store, S3Store) else None

    def put(self, sha256: str, source: Path, settled: bool = False) -> int:
        """Keep a file's bytes under their hash and return their number. `settled`: the caller has just hashed `source`
        and nobody writes to it any more, so that a folder may take it as it is, without a copy.

        Raises BlobMismatch where the bytes have another hash, OSError where they can't be written.
        """
        key = self._key(sha256)
        found = sha256 if settled else hash_of(source)
        if found != sha256:
            raise BlobMismatch(f"the bytes received as {sha256} have the hash {found}", "send the file again")
        size = source.stat().st_size
        if not self._whole(sha256, size) and not (settled and self._linked(sha256, source)):
            with faults(key):
                self._store.put(key, source)
        if self._folder is not None:
            with self.path(sha256).open("rb") as stored:
                os.fsync(stored.fileno())  # obstore never does
            sync_folder(self._folder)
        return size

    def _linked(self, sha256: str, source: Path) -> bool:
        """A second name for the file, in the place of a blob without its bytes. False where there can be none."""
        if self._folder is None:
            return False
        beside = self._folder / f"{sha256}#link"  # `clean` knows it by the sign
        try:
            beside.unlink(missing_ok=True)
            os.link(source, beside)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
                raise
            return False
        beside.rename(self.path(sha256))
        return True

    def _whole(self, sha256: str, size: int) -> bool:
        """Whether the blob is there already. A power cut may leave a name in a folder without its bytes."""
        if self._folder is not None:
            return self.path(sha256).is_file() and hash_of(self.path(sha256)) == sha256
        return self.size(sha256) == size

    def has(self, sha256: str) -> bool:
        return self.size(sha256) is not None

    def size(self, sha256: str) -> int | None:
        """Bytes of a blob, None where it is not here."""
        key = self._key(sha256)
        try:
            with faults(key):
                return int(self._store.head(key)["size"])
        except FileNotFoundError:
            return None

    def get(self, sha256: str, limit: int) -> bytes:
        """The whole blob. Raises TidegaugeError where it is absent or larger than `limit` bytes."""
        size = self.size(sha256)
        if size is None:
            raise TidegaugeError(f"blob {sha256} is not here", "let the device send its bundle again")
        if size > limit:
            raise TidegaugeError(f"blob {sha256} has {size} bytes, the limit is {limit}", "raise the limit")
        return b"".join(self.chunks(sha256))

    def chunks(self, sha256: str) -> Iterator[bytes]:
        """The blob piece by piece. Raises FileNotFoundError where it is absent."""
        key = self._key(sha256)
        with faults(key):
            for piece in self._store.get(key).stream(min_chunk_size=_READ):
                yield bytes(piece)

    def fetch(self, sha256: str, target: Path) -> None:
        """Make the blob a file: a second name for it where that is possible, else a copy.

        Raises FileNotFoundError where it is absent.
        """
        if target.exists():
            return
        if self._folder is not None:
            try:
                os.link(self.path(sha256), target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                shutil.copyfile(self.path(sha256), target)
            return
        beside = target.with_name(f".{target.name}.part")
        with beside.open("wb") as file:
            for piece in self.chunks(sha256):
                file.write(piece)
        beside.rename(target)

    def delete(self, sha256: str) -> None:
        """Delete a blob; one that is absent is no error."""
        key = self._key(sha256)
        with contextlib.suppress(FileNotFoundError), faults(key):
            self._store.delete(key)

    def names(self) -> Iterator[tuple[str, int]]:
        """Hash by name and size of every blob in the store."""
        prefix = self._prefix or None
        with faults(_FOLDER):
            for some in obstore.list(self._store, prefix=prefix):
                for each in some:
                    name = str(each["path"]).removeprefix(self._prefix)
                    if _KEY.match(name):
                        yield name, int(each["size"])

    def true_hash(self, sha256: str) -> str:
        """The hash of the bytes that are kept under this name. Raises FileNotFoundError."""
        digest = hashlib.sha256()
        for piece in self.chunks(sha256):
            digest.update(piece)
        return digest.hexdigest()

    def path(self, sha256: str) -> Path:
        """Where the blob's file is or would be, in a folder. Raises ValueError for anything but a hash."""
        assert self._folder is not None, "only a folder has paths"
        return self._folder / self._key(sha256)

    def _key(self, sha256: str) -> str:
        """No paths from outside: raises ValueError for anything but a hash."""
        if not _KEY.match(sha256):
            raise ValueError(f"not a SHA-256 in hex: {sha256!r}")
        return self._prefix + sha256


def open_bucket(config: BlobsConfig) -> S3Store:
    """The bucket of the configuration; keys from the environment, as AWS names them. Raises TidegaugeError; Unreached
    where the store gives no answer, or one that says nothing.
    """
    options: dict[str, str] = {"region": config.region} if config.region else {}
    if config.endpoint:
        options["endpoint"] = config.endpoint
    allow_http = config.endpoint.startswith("http://")
    try:
        bucket = S3Store(
            config.bucket,
            prefix=config.prefix or None,
            client_options={"allow_http": allow_http},
            retry_config={"max_retries": 5},
            **options,  # type: ignore[arg-type]  # a TypedDict that can't be built step by step
        )
        obstore.list_with_delimiter(bucket)
    except (BaseError, ValueError) as error:  # ValueError: a prefix that is no path
        kind = Unreached if isinstance(error, GenericError) and not _REFUSED.search(str(error)) else TidegaugeError
        raise kind(
            f"the bucket {config.bucket} (key `blobs.bucket`) can't be used ({_short(error)})",
            "check `blobs.endpoint`, `blobs.prefix`; AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment",
        ) from error
    return bucket


@contextlib.contextmanager
def faults(key: str) -> Iterator[None]:
    """obstore's errors as OSError: a name that is not there, and everything else as an input/output error."""
    try:
        yield
    except NotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "no such blob", key) from error
    except BaseError as error:  # obstore has no error of its own for a full disk
        raise OSError(errno.EIO, f"the blob store failed: {_short(error)}", key) from error


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def hash_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
