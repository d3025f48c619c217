"""`tidegauge inspect`."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from rich.console import Console

from tidegauge.bundles import layout
from tidegauge.bundles.archive import import_bundle
from tidegauge.bundles.manifest import Manifest
from tidegauge.bundles.reader import missing_blobs, read_blob, read_manifest
from tidegauge.cli.inspect_view import show
from tidegauge.errors import TidegaugeError
from tidegauge.tidl import artifacts, file_names, io_descriptor
from tidegauge.tidl.inspection import Inspection, inspect, network_differences

#: Columns where the output is a file or a pipe.
_PIPE_WIDTH = 160
_LARGEST = 64 << 20
_LARGEST_SUM = 512 << 20
_MOST_FILES = 20_000
#: Where the files of one compile or run lie, seen from the folder that is given.
_PLACES = ("", "artifacts", "tempDir", "artifacts/tempDir", "traces")


class _Files:
    """Files by path relative to what was given: their sizes, and the contents of those that are read."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.contents: dict[str, bytes] = {}
        self.logs: dict[str, bytes] = {}
        self._sum = 0

    def _require_room(self, path: Path, role: str, size: int) -> None:
        """Raises TidegaugeError where a text would be read in part, or all together would fill the memory."""
        if role not in ("net", "io") and size > _LARGEST:
            cure = "give only its end: tail -c 60M FILE > end.log" if role == "log" else "this is no file of a compile"
            raise TidegaugeError(f"{path} has {size} bytes, more than {_LARGEST}", cure)
        self._sum += min(size, _limit(role))
        if self._sum > _LARGEST_SUM:
            raise TidegaugeError(f"the files up to {path} have more than {_LARGEST_SUM} bytes", "give a smaller folder")

    def add(self, name: str, path: Path, *, log: bool = False) -> None:
        """Raises TidegaugeError for a file that can't be read."""
        named = file_names.identify(path.name)
        try:
            size = path.stat().st_size
            self.sizes[name] = size
            if named is not None and named.role == "trace":
                return
            if named is None and not log and not _is_log(path.name):
                return
            self._require_room(path, named.role if named else "log", size)
            with path.open("rb") as file:
                data = file.read(_limit(named.role if named else "log"))
        except OSError as error:
            raise TidegaugeError(f"{path} can't be read", error.strerror or "check its owner and mode") from error
        if named is None:
            self.logs[name] = data
        else:
            self.contents[name] = data


@click.command("inspect")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--artifacts", "compiled", type=click.Path(path_type=Path), help="The compile that traces or a log belong to."
)
@click.option("--same-as", "other", type=click.Path(path_type=Path), help="Another compile: is its network the same?")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option("--layers/--no-layers", default=True, help="List every layer and every trace (default), or only sums.")
def command(path: Path, compiled: Path | None, other: Path | None, as_json: bool, layers: bool) -> None:
    """Say what the TIDL files at PATH hold.

    PATH is an artifacts folder, a tempDir, a folder of traces, a bundle (folder or .tidebundle), or one file: a log,
    param.yaml, a descriptor, any file of a compile. Exit code: 0, or 2 where a file is damaged or a trace is not whole;
    with --same-as 1 where the networks differ.
    """
    files = _Files()
    _collect(path, files)
    if other is not None:
        sys.exit(_compare(files, other, as_json))
    if compiled is not None:
        _collect(compiled, files, beside=True)
    found = inspect(files.sizes, files.contents, logs=files.logs)
    if not found.what:
        raise TidegaugeError(
            f"{path}: no file of a TIDL compile, no trace and no log is here",
            "give the artifacts folder, its tempDir, a folder of traces, a bundle, or a log file",
        )
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        show(found, Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH), layers)
    sys.exit(_exit_code(found))


def _compare(files: _Files, other: Path, as_json: bool) -> int:
    """Print where the two networks differ; 1 if they do."""
    second = _Files()
    _collect(other, second)
    found = network_differences(files.contents, second.contents)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    for name, told in found.items() if not as_json else ():
        click.echo(f"{name}: " + ("the same layers, edges and shapes" if not told else "the networks differ"))
        for line in told:
            click.echo(f"  {line}")
    return 1 if any(found.values()) else 0


def _exit_code(found: Inspection) -> int:
    damaged = any(finding.fatal for finding in found.findings)
    return 2 if damaged or any(trace.status in ("truncated", "too long") for trace in found.traces) else 0


def _collect(path: Path, files: _Files, *, beside: bool = False) -> None:
    """Raises TidegaugeError where the path does not exist or can't be read."""
    if path.is_dir() and layout.manifest_path(path).is_file() and (path / "blobs").is_dir():
        _collect_bundle(path, read_manifest(path), files)
    elif path.is_dir():
        for name, file in _folder(path):
            files.add(f"{path.name}/{name}" if beside else name, file)
    elif path.suffix == ".tidebundle" and path.is_file():
        with tempfile.TemporaryDirectory(prefix="tidegauge-") as work:
            folder = Path(work) / "bundle"
            _collect_bundle(folder, import_bundle(path, folder), files)
    elif path.is_file():
        files.add(path.name, path, log=True)
    elif path.exists():
        raise TidegaugeError(f"{path} is neither a folder nor a file", "give a folder of TIDL files or one of them")
    else:
        raise TidegaugeError(f"{path} does not exist", "give the path of a folder of TIDL files, or of one of them")


def _folder(path: Path) -> Iterator[tuple[str, Path]]:
    """Regular files of the folder and of the places where a compile puts the rest."""
    places = [path / place for place in _PLACES]
    if path.name == "tempDir":
        places.append(path.parent)
    temp = next((place for place in places if place.name == "tempDir" and place.is_dir()), None)
    if temp is not None:  # perfsim's summary lies one folder deeper
        places += sorted(child for child in temp.iterdir() if child.is_dir() and not child.is_symlink())[:64]
    count = 0
    for place in places:
        if not place.is_dir():
            continue
        try:
            children = sorted(place.iterdir())
        except OSError as error:
            raise TidegaugeError(f"{place} can't be read", error.strerror or "check its owner and mode") from error
        for child in children:
            if stat.S_ISREG(child.lstat().st_mode):
                count += 1
                if count > _MOST_FILES:
                    raise TidegaugeError(f"{path} holds more than {_MOST_FILES} files", "give a smaller folder")
                yield os.path.relpath(child, path), child


def _collect_bundle(folder: Path, manifest: Manifest, files: _Files) -> None:
    """The logs, artifacts and traces of a bundle, as far as their blobs are here."""
    lacking = {blob.sha256 for blob in missing_blobs(folder, manifest)}
    files.sizes.update({trace.file: trace.size for trace in manifest.traces})
    for stored in manifest.logs:
        if stored.blob.sha256 not in lacking:
            files.logs[stored.name] = read_blob(folder, stored.blob, _LARGEST)
            files.sizes[stored.name] = stored.blob.size
    for stored in manifest.artifacts:
        files.sizes[stored.name] = stored.blob.size
        named = file_names.identify(stored.name)
        if named is not None and named.role != "net" and stored.blob.sha256 not in lacking:
            files.contents[stored.name] = read_blob(folder, stored.blob, _LARGEST)


def _is_log(name: str) -> bool:
    return name.endswith(".log") or (name.endswith(".txt") and "log" in name.lower() and "wlinfolog" not in name)


def _limit(role: str) -> int:
    if role == "net":
        return artifacts.NET_HEAD_BYTES
    return io_descriptor.LARGEST + 1 if role == "io" else _LARGEST
