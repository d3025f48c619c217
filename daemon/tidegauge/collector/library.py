"""The compile library: folders of compile outputs, found by the hash of the network file that a board runs."""

from __future__ import annotations

import hashlib
from pathlib import Path

NET_SUFFIX = "_tidl_net.bin"
MODEL_SUFFIXES = (".onnx", ".tflite")


class CompileLibrary:
    """Finds the tempDir that belongs to a board's artifacts. A file is hashed again only where size or time changed."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._hashes: dict[Path, tuple[int, int, str]] = {}

    def find_tempdir(self, artifacts: dict[str, str]) -> Path | None:
        """`artifacts`: SHA-256 by file name, as a board took inventory. None where no compile output has that network.

        Raises OSError where the library can't be read.
        """
        wanted = {digest for name, digest in artifacts.items() if name.endswith(NET_SUFFIX)}
        if self._folder is None or not wanted:
            return None
        for net in sorted(self._folder.rglob(f"*{NET_SUFFIX}")):
            if net.is_file() and self._hash(net) in wanted:
                tempdir = net.parent if net.parent.name == "tempDir" else net.parent / "tempDir"
                if tempdir.is_dir():
                    return tempdir
        return None

    def find_model(self, sha256: str) -> Path | None:
        """A float model by the hash of its file."""
        if self._folder is None or not sha256:
            return None
        models = sorted(path for suffix in MODEL_SUFFIXES for path in self._folder.rglob(f"*{suffix}"))
        return next((path for path in models if path.is_file() and self._hash(path) == sha256), None)

    def _hash(self, path: Path) -> str:
        stat = path.stat()
        known = self._hashes.get(path)
        if known is not None and known[:2] == (stat.st_size, stat.st_mtime_ns):
            return known[2]
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._hashes[path] = (stat.st_size, stat.st_mtime_ns, digest)
        return digest
