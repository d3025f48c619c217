"""The compile library: compile outputs by the hash of the network file that a board runs, and models by their own.

They are in a folder of this host, or registered by an operator (`tidegauge model add`) and shared by all hosts.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tidegauge.collector.registered import MODEL_SUFFIXES, NET_SUFFIX, Registered


class CompileLibrary:
    """Finds the tempDir that belongs to a board's artifacts. A file is hashed again only where size or time changed."""

    def __init__(self, folder: Path | None, registered: Registered | None = None) -> None:
        self._folder, self._registered = folder, registered
        self._hashes: dict[Path, tuple[int, int, str]] = {}

    def find_tempdir(self, artifacts: dict[str, str]) -> Path | None:
        """`artifacts`: SHA-256 by file name, as a board took inventory. None where no compile output has that network.

        Raises OSError where the library can't be read, TidegaugeError where what is registered is damaged.
        """
        wanted = {digest for name, digest in artifacts.items() if name.endswith(NET_SUFFIX)}
        for net in self._files((NET_SUFFIX,)) if wanted else ():
            if self._hash(net) in wanted:
                tempdir = net.parent if net.parent.name == "tempDir" else net.parent / "tempDir"
                if tempdir.is_dir():
                    return tempdir
        if self._registered is None:
            return None
        found = (self._registered.tempdir(digest) for digest in sorted(wanted))
        return next((folder for folder in found if folder is not None), None)

    def find_model(self, sha256: str) -> Path | None:
        """A float model by the hash of its file."""
        if not sha256:
            return None
        for path in self._files(MODEL_SUFFIXES):
            if self._hash(path) == sha256:
                return path
        return self._registered.model(sha256) if self._registered is not None else None

    def _files(self, suffixes: tuple[str, ...]) -> list[Path]:
        if self._folder is None:
            return []
        return sorted(path for suffix in suffixes for path in self._folder.rglob(f"*{suffix}") if path.is_file())

    def _hash(self, path: Path) -> str:
        stat = path.stat()
        known = self._hashes.get(path)
        if known is not None and known[:2] == (stat.st_size, stat.st_mtime_ns):
            return known[2]
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._hashes[path] = (stat.st_size, stat.st_mtime_ns, digest)
        return digest
