"""Models and compile outputs that an operator has registered: put in, and laid out on a host that needs them."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tidegauge.clocks import wall
from tidegauge.collector.blobs import BlobStore, hash_of
from tidegauge.collector.library_rows import Kind, LibraryEntry
from tidegauge.collector.store import Store
from tidegauge.errors import TidegaugeError

NET_SUFFIX = "_tidl_net.bin"
MODEL_SUFFIXES = (".onnx", ".tflite")
#: Largest tempDir that is laid out, bytes and files. Pictures of a graph are large; nothing else is.
_MOST_BYTES, _MOST_FILES = 2 << 30, 10_000
_READ = 1 << 20


class Registered:
    """`folder`: where this host lays out what it needs, under the hash of its content."""

    def __init__(self, store: Store, blobs: BlobStore, folder: Path) -> None:
        self._store, self._blobs, self._folder = store, blobs, folder

    def add_model(self, path: Path) -> LibraryEntry:
        """Register a float model. Raises TidegaugeError."""
        if path.suffix not in MODEL_SUFFIXES or not path.is_file():
            raise TidegaugeError(f"{path} is no model file", f"give one that ends with {' or '.join(MODEL_SUFFIXES)}")
        return self._put("model", hash_of(path), path.name, path)

    def add_compile(self, path: Path) -> list[LibraryEntry]:
        """Register a compile's output folder: for each of its networks its tempDir. Raises TidegaugeError."""
        nets = sorted(net for net in path.rglob(f"*{NET_SUFFIX}") if net.is_file())
        out: list[LibraryEntry] = []
        for net in nets:
            tempdir = net.parent if net.parent.name == "tempDir" else net.parent / "tempDir"
            key = hash_of(net)
            if tempdir.is_dir() and key not in {entry.key for entry in out}:
                with tempfile.NamedTemporaryFile(suffix=".zip") as packed:
                    pack(sorted(each for each in tempdir.iterdir() if each.is_file()), Path(packed.name))
                    out.append(self._put("compile", key, f"{path.name}/{net.name}", Path(packed.name)))
        if not out:
            raise TidegaugeError(
                f"{path} holds no compile output (*{NET_SUFFIX} with a tempDir beside it)",
                "give the artifacts folder of the compile, on the PC: a board has no tempDir",
            )
        return out

    def model(self, sha256: str) -> Path | None:
        """A model's file; one that boards have sent serves as well."""
        entry = self._store.in_library("model", sha256)
        if entry is None and not self._store.has_blob(sha256):
            return None
        place = self._folder / f"{sha256}{Path(entry.name).suffix if entry else ''}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._blobs.fetch(sha256, place)
        return place

    def tempdir(self, net_sha256: str) -> Path | None:
        """The tempDir of a compile, as a folder."""
        entry = self._store.in_library("compile", net_sha256)
        if entry is None:
            return None
        place = self._folder / entry.sha256
        if not place.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            beside = Path(tempfile.mkdtemp(prefix="new-", dir=self._folder))
            try:
                self._blobs.fetch(entry.sha256, beside / "packed.zip")
                unpack(beside / "packed.zip", beside / "tempDir")
                (beside / "packed.zip").unlink()
                beside.rename(place)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
        return place / "tempDir"

    def _put(self, kind: Kind, key: str, name: str, path: Path) -> LibraryEntry:
        sha256, now = hash_of(path), wall()
        self._store.reprieve(sha256)
        size = self._blobs.put(sha256, path)
        self._store.keep_blob(sha256, size, now)
        self._store.add_to_library(kind, key, sha256, name, size, now)
        return LibraryEntry(kind, key, sha256, name, size, now)


def pack(files: Sequence[Path], target: Path) -> None:
    """Files as a zip whose bytes depend on their names and content only, so that the same tempDir is the same blob."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            entry = zipfile.ZipInfo(path.name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as out, path.open("rb") as source:
                shutil.copyfileobj(source, out, _READ)


def unpack(source: Path, folder: Path) -> None:
    """Raises TidegaugeError for anything that `pack` doesn't write: no folders, bounded sizes, no file twice."""
    folder.mkdir()
    room = _MOST_BYTES
    try:
        with zipfile.ZipFile(source) as archive:
            entries = archive.infolist()
            if len(entries) > _MOST_FILES:
                raise TidegaugeError(f"a registered compile has {len(entries)} files", "register it again")
            for entry in entries:
                if not entry.filename or Path(entry.filename).name != entry.filename or entry.filename in (".", ".."):
                    raise TidegaugeError(f"a registered compile holds the path {entry.filename!r}", "register it again")
                with archive.open(entry) as stream, (folder / entry.filename).open("xb") as out:
                    while piece := stream.read(_READ):
                        room -= len(piece)
                        if room < 0:
                            raise TidegaugeError(f"a registered compile is larger than {_MOST_BYTES} bytes")
                        out.write(piece)
    except (zipfile.BadZipFile, FileExistsError, NotImplementedError, EOFError) as error:
        raise TidegaugeError(f"a registered compile is damaged ({error})", "register it again") from error
