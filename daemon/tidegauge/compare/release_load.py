"""One side of a release comparison: a compile's tables, and the traces of a run where there are any."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tidegauge.bundles.archive import import_bundle
from tidegauge.bundles.reader import read_manifest
from tidegauge.compare.compiled import Subgraph, find_proto, locate_tempdir, read_tempdir
from tidegauge.compare.exact_load import trace_files
from tidegauge.compare.load import bundle_traces
from tidegauge.compare.traces import DeviceTensor, Reader, device_tensors
from tidegauge.errors import TidegaugeError

#: Where a folder keeps traces, besides itself.
_TRACES = ("traces", "device")


@dataclass
class Side:
    """Tables by sub-graph, traces (empty where none were taken), and the quantisation proto's text, if there is one.

    `inputs`: SHA-256 of the recorded input tensors by name, where they are there.
    """

    label: str
    subgraphs: dict[str, Subgraph]
    tensors: list[DeviceTensor] = field(default_factory=list)
    proto: str | None = None
    notes: list[str] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)


@contextmanager
def open_side(path: Path, tempdir: Path | None = None) -> Iterator[Side]:
    """A compile's folder, a folder of traces with the tempDir beside them, a bundle folder or a `.tidebundle`.

    Valid inside the `with`. Raises `TidegaugeError`.
    """
    if path.is_file():
        with tempfile.TemporaryDirectory(prefix="tidegauge-") as place:
            inside = Path(place) / "bundle"
            import_bundle(path, inside)
            yield _bundle(inside, tempdir, str(path))
    elif (path / "manifest.json").is_file():
        yield _bundle(path, tempdir, str(path))
    elif path.is_dir():
        yield _folder(path, tempdir)
    else:
        raise TidegaugeError(f"{path} does not exist", "give a compile's folder, a folder of traces, or a bundle")


def _bundle(folder: Path, tempdir: Path | None, label: str) -> Side:
    if tempdir is None:
        raise TidegaugeError(
            f"the bundle {label} holds no names and scales of the traced layers",
            "give the tempDir of its compile with --before-tempdir or --after-tempdir",
        )
    tensors, subgraphs, findings = bundle_traces(folder, tempdir)
    inputs = {item.spec.name: item.blob.sha256 for item in read_manifest(folder).inputs}
    return Side(label, subgraphs, tensors, find_proto(tempdir), [f.sentence for f in findings], inputs)


def _folder(folder: Path, tempdir: Path | None) -> Side:
    place = tempdir or locate_tempdir(folder)
    if place is None:
        raise TidegaugeError(
            f"{folder} has no tempDir (layer_info, netLog), so its layers have no names",
            "put the compile's tempDir beside the traces, or give --before-tempdir or --after-tempdir",
        )
    subgraphs = read_tempdir(place)
    where = next((f for f in (folder, *(folder / name for name in _TRACES)) if f.is_dir() and trace_files(f)), None)
    files = trace_files(where) if where is not None else []
    if not files:
        return Side(str(folder), subgraphs, [], find_proto(place))
    readers: dict[str, Reader] = {f.file: f.read for f in files if f.read is not None}
    tensors, findings = device_tensors({f.file: f.size for f in files}, readers, {}, subgraphs)
    notes = [f.sentence for f in findings]
    return Side(str(folder), subgraphs, tensors, find_proto(place), notes, _inputs(where or folder))


def _inputs(folder: Path) -> dict[str, str]:
    """An input that lies beside the traces."""
    files = [folder / f"input{suffix}" for suffix in (".npy", ".bin", ".png")]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}
