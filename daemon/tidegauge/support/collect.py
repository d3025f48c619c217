"""Gathers the parts of a support file. Each part is tried alone: what can't be had is named with its reason instead."""

from __future__ import annotations

import errno
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import IO

import msgspec

from tidegauge import __version__
from tidegauge.support.redact import redact

#: Bytes kept of each log, from its end.
LOG_BYTES = 256 * 1024
JOURNAL_LINES = 2000
COMMAND_SECONDS = 20.0


class Part(msgspec.Struct, frozen=True):
    """A file of the support file, before secrets are removed."""

    name: str
    text: str


class Contents(msgspec.Struct, frozen=True):
    """What a support file holds: sizes in bytes by name, secrets removed, and what could not be had, with reasons."""

    path: str
    files: dict[str, int]
    removed: int
    missing: dict[str, str]


def tail(path: Path, size: int = LOG_BYTES) -> str:
    with path.open("rb") as file:
        length = file.seek(0, io.SEEK_END)
        file.seek(max(0, length - size))
        return file.read(size).decode(errors="replace")


def system() -> str:
    release = Path("/etc/os-release")
    load = Path("/proc/loadavg")
    lines = [
        f"tidegauge {__version__}",
        f"Python {sys.version} at {sys.executable}",
        f"system {' '.join(platform.uname())}",
        f"wall clock {time.strftime('%Y-%m-%d %H:%M:%S %z')}",
        f"load {load.read_text().strip() if load.exists() else 'unknown'}",
        "",
        release.read_text() if release.exists() else "no /etc/os-release",
    ]
    return "\n".join(lines)


def packages() -> str:
    """Everything that this Python can import, the image's own included."""
    found = {f"{each.metadata['Name']} {each.version}  ({each.locate_file('')})" for each in distributions()}
    return "\n".join(sorted(found)) + "\n"


def listing(folder: Path) -> str:
    """Names, sizes and times of what lies in a folder; contents stay where they are."""
    lines = []
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        kind = "folder" if path.is_dir() else f"{status.st_size:>12}"
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(status.st_mtime))
        lines.append(f"{kind:>12} {stamp} {path.relative_to(folder)}")
    usage = shutil.disk_usage(folder)
    lines.append(f"\nfile system: {usage.free} bytes free of {usage.total}")
    return "\n".join(lines) + "\n"


def command(*words: str) -> str:
    """What a program of the system says; raises OSError where it is not there."""
    if shutil.which(words[0]) is None:
        raise FileNotFoundError(f"{words[0]} is not installed")
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=COMMAND_SECONDS)
    return done.stdout + done.stderr


def gather(sources: dict[str, Callable[[], str]]) -> Iterator[Part | tuple[str, str]]:
    """Each source's text, or its name with the reason why there is none."""
    for name, source in sources.items():
        try:
            yield Part(name, source())
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            yield name, str(error)


def write(target: Path, parts: Iterator[Part | tuple[str, str]], secrets: tuple[str, ...]) -> Contents:
    """Write the file (gzipped tar, mode 0600), whole or not at all.

    Raises OSError where it can't be, FileExistsError among them: nothing that is there is ever replaced.
    """
    beside = target.with_name(target.name + ".part")
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    with beside.open("xb") as file:
        try:
            beside.chmod(0o600)
            contents = _pack(file, target, parts, secrets)
            file.flush()
            beside.rename(target)
        except BaseException:
            beside.unlink()  # half a file would be in the way of the next try
            raise
    return contents


def _pack(file: IO[bytes], target: Path, parts: Iterator[Part | tuple[str, str]], secrets: tuple[str, ...]) -> Contents:
    files: dict[str, int] = {}
    missing: dict[str, str] = {}
    removed = 0
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for part in parts:
            if isinstance(part, tuple):
                missing[part[0]], count = redact(part[1], secrets)
                removed += count
                continue
            text, count = redact(part.text, secrets)
            removed += count
            files[part.name] = _add(archive, part.name, text)
        _add(archive, "CONTENTS.txt", _contents(files, removed, missing))
    return Contents(str(target), files, removed, missing)


def _add(archive: tarfile.TarFile, name: str, text: str) -> int:
    data = text.encode()
    entry = tarfile.TarInfo(f"tidegauge-support/{name}")
    entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
    archive.addfile(entry, io.BytesIO(data))
    return len(data)


def _contents(files: dict[str, int], removed: int, missing: dict[str, str]) -> str:
    lines = ["A support file of Tidegauge. No picture, tensor, trace, key or password is in it; host names,"]
    lines += ["addresses and paths are.", ""]
    lines += [f"{size:>10}  {name}" for name, size in files.items()]
    lines += ["", f"{removed} secrets were removed from these texts"]
    lines += [f"not there: {name}: {reason}" for name, reason in missing.items()]
    return "\n".join(lines) + "\n"
