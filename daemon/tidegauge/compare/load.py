"""What is compared: a bundle, or a folder of traces with a model, a tempDir and an input.

Traces are opened lazily, one at a time; a tensor that can't be used has a status and a reason from here on.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.bundles import layout
from tidegauge.bundles.archive import import_bundle
from tidegauge.bundles.manifest import Blob, Manifest, StoredFile, StoredTensor
from tidegauge.bundles.reader import read_blob, read_manifest
from tidegauge.compare.compiled import Subgraph, is_virtual, read_tempdir
from tidegauge.compare.given import Given, for_frames
from tidegauge.compare.traces import DeviceTensor, device_tensors
from tidegauge.compare.types import Finding, Subject
from tidegauge.errors import TidegaugeError
from tidegauge.tensors import TensorSpec
from tidegauge.tidl import trace_names

Array = NDArray[Any]

MAX_MODEL = 2 << 30
MAX_TENSOR = 1 << 30
MAX_LOG = 64 << 20


@dataclass
class Source:
    """Everything that a comparison reads. `step`: the difference at the output that the product does not mind.

    `reference`: float tensors of another run, which stand in for the computed ones where they are there.
    """

    subject: Subject
    model: bytes
    model_name: str
    model_folder: Path | None
    inputs: dict[str, Array]
    tensors: list[DeviceTensor]
    subgraphs: dict[str, Subgraph]
    outputs: dict[str, Array] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    step: float | None = None
    reference: Given | None = None
    tracing_changed_output: bool | None = None


@contextmanager
def open_source(
    path: Path,
    *,
    model: Path | None = None,
    tempdir: Path | None = None,
    inputs: Sequence[str] = (),
    log: Path | None = None,
    reference: Given | None = None,
) -> Iterator[Source]:
    """A bundle folder, a `.tidebundle`, or a folder of traces; the source is valid inside the `with`.

    `model`, `tempdir` and `inputs` (paths, or `NAME=PATH` where the model has several) complete or replace what a
    bundle holds; `log`: the C7x's remote log of a folder's run. `reference`: float tensors of another run, the input
    among them if it was not recorded beside the traces. Raises `TidegaugeError`.
    """
    if path.is_file():
        with tempfile.TemporaryDirectory(prefix="tidegauge-") as folder:
            inside = Path(folder) / "bundle"
            import_bundle(path, inside)
            opened = from_bundle(inside, model=model, tempdir=tempdir, label=str(path))
            opened.reference = reference
            yield opened
    elif (path / "manifest.json").is_file():
        opened = from_bundle(path, model=model, tempdir=tempdir, label=str(path))
        opened.reference = reference
        yield opened
    elif path.is_dir():
        yield from_folder(path, model=model, tempdir=tempdir, inputs=inputs, log=log, reference=reference)
    else:
        raise TidegaugeError(f"{path} does not exist", "give a bundle, a .tidebundle or a folder of traces")


# --- a folder of traces ------------------------------------------------------------------------------------------


def from_folder(
    traces: Path,
    *,
    model: Path | None,
    tempdir: Path | None,
    inputs: Sequence[str],
    log: Path | None = None,
    reference: Given | None = None,
) -> Source:
    """A folder of trace files. The model and the input are needed, and a tempDir, beside the traces or named."""
    if model is None:
        raise TidegaugeError(f"{traces} is not a bundle, so the model is needed", "add --model with the .onnx file")
    inputs = inputs or _inputs_beside(traces)
    if not inputs and reference is None:
        raise TidegaugeError(
            f"{traces} is not a bundle, so the input tensor of the traced run is needed",
            "add --input with a .npy, .png or raw float32 .bin file, or put an input.npy beside the traces",
        )
    files = {p.name: p for p in sorted(traces.iterdir()) if p.is_file() and trace_names.parse(p.name) is not None}
    if not files:
        raise TidegaugeError(f"{traces} has no trace files (*tidl_trace*.y)", "give the folder that holds the traces")
    data = _read_file(model, MAX_MODEL)
    printed = _read_file(log, MAX_LOG).decode("utf-8", "replace") if log is not None else ""
    subgraphs = read_tempdir(tempdir or traces, printed)
    sizes = {name: path.stat().st_size for name, path in files.items()}
    readers = {name: _mapped(path) for name, path in files.items()}
    tensors, findings = device_tensors(sizes, readers, {}, subgraphs)
    tensors_in, described = _read_inputs(inputs)
    subject = Subject(
        source=str(traces),
        bundle_id=None,
        device=None,
        virtual=is_virtual(tempdir or traces),
        created=None,
        model=model.name,
        hashes={model.name: hashlib.sha256(data).hexdigest()},
        versions={},
        options={},
        input=described,
    )
    return Source(
        subject, data, str(model), model.parent, tensors_in, tensors, subgraphs, findings=findings, reference=reference
    )


def _inputs_beside(folder: Path) -> tuple[str, ...]:
    found = [folder / f"input{suffix}" for suffix in (".npy", ".bin", ".png")]
    return tuple(str(path) for path in found if path.is_file())[:1]


def frame_folders(path: Path) -> list[Path]:
    """The folders of a folder of frames, in the order of their names, numbers by value; else the path itself."""
    if not path.is_dir() or (path / "manifest.json").is_file() or _holds_traces(path):
        return [path]
    inside = [p for p in path.iterdir() if p.is_dir() and ((p / "manifest.json").is_file() or _holds_traces(p))]
    return sorted(inside, key=lambda p: [int(w) if w.isdecimal() else w for w in re.split(r"(\d+)", p.name)]) or [path]


def open_frames(
    paths: Sequence[Path],
    *,
    model: Path | None = None,
    tempdir: Path | None = None,
    inputs: Sequence[str] = (),
    log: Path | None = None,
    reference: Path | None = None,
) -> Iterator[tuple[Source, Source | None]]:
    """Each frame, opened as by `open_source`, with the one before it; valid until the next is asked for.

    Of several frames each has its own input beside its traces, if one is there, else `inputs`; and its reference in
    the folder of its name.
    """
    given = for_frames(reference, paths) if reference is not None else [None] * len(paths)
    with ExitStack() as earlier:
        before = None
        for path, floats in zip(paths, given, strict=True):
            own = () if len(paths) > 1 and _inputs_beside(path) else inputs
            with ExitStack() as stack:
                opened = stack.enter_context(
                    open_source(path, model=model, tempdir=tempdir, inputs=own, log=log, reference=floats)
                )
                yield opened, before
                earlier.close()
                before = opened
                earlier.push(stack.pop_all())


def _holds_traces(folder: Path) -> bool:
    return any(trace_names.parse(p.name) is not None for p in folder.iterdir())


def _mapped(path: Path) -> Callable[[], Any]:
    def read() -> Any:
        with path.open("rb") as file:  # NumPy's own maps cost more than a small tensor's comparison
            size = os.fstat(file.fileno()).st_size
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""

    return read


def _read_inputs(inputs: Sequence[str]) -> tuple[dict[str, Array], str]:
    """Input tensors by name; a single one without a name has the name ""."""
    found: dict[str, Array] = {}
    for item in inputs:
        name, equals, file = item.rpartition("=")
        path = Path(file)
        data = _read_file(path, MAX_TENSOR)
        if path.suffix == ".npy":
            found[name if equals else ""] = _array(path, data)
        elif path.suffix == ".png":
            found[name if equals else ""] = _picture(path, data)
        elif len(data) % 4:
            raise TidegaugeError(f"{path} has {len(data)} bytes, no whole number of float32", "write raw float32")
        else:
            found[name if equals else ""] = np.frombuffer(data, "<f4")
    return found, ", ".join(Path(i.rpartition("=")[2]).name for i in inputs)


def _array(path: Path, data: bytes) -> Array:
    """One array of numbers, and nothing else that NumPy's formats can hold."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of headers that Python 2 wrote
            value = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OverflowError, MemoryError) as error:
        raise TidegaugeError(f"{path} is no NumPy array ({error})", "write it with numpy.save") from error
    if value.dtype.kind not in "biuf":
        raise TidegaugeError(f"{path} holds {value.dtype}, no numbers", "write the input tensor with numpy.save")
    return np.asarray(value)


def _picture(path: Path, data: bytes) -> Array:
    """A picture as [1, 3, height, width], RGB in 0…1: for models that are fed so, and in the model's own size."""
    try:
        import cv2  # an extra, and only for pictures
    except ImportError as error:
        cure = "install opencv-python-headless, or give the input tensor as .npy"
        raise TidegaugeError(f"OpenCV is needed to read {path}, and is not installed", cure) from error

    picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if picture is None:
        raise TidegaugeError(f"{path} is no picture", "give the input tensor as .npy")
    return np.ascontiguousarray(picture[None, :, :, ::-1].transpose(0, 3, 1, 2), np.float32) / np.float32(255)


def _read_file(path: Path, limit: int) -> bytes:
    try:
        if path.stat().st_size > limit:
            raise TidegaugeError(f"{path} is larger than {limit} bytes", "give another file")
        return path.read_bytes()
    except OSError as error:
        raise TidegaugeError(f"{path} can't be read", error.strerror or "") from error


# --- a bundle ----------------------------------------------------------------------------------------------------


def from_bundle(folder: Path, *, model: Path | None, tempdir: Path | None, label: str) -> Source:
    """A bundle's folder. The tempDir comes from outside unless the board had it; the model too, if it is not inside."""
    manifest = read_manifest(folder)
    data, name, beside = _bundle_model(folder, manifest, model)
    if tempdir is None:
        raise TidegaugeError(
            f"the bundle {label} holds no names and scales of the traced layers",
            "give --tempdir the tempDir of the compile that made the board's artifacts",
        )
    tensors, subgraphs, findings = bundle_traces(folder, tempdir)
    inputs = {item.spec.name: _stored(folder, item) for item in manifest.inputs}
    if not inputs:
        raise TidegaugeError(f"the bundle {label} holds no input tensor", "ask the board for it, or capture again")
    outputs = {item.spec.name: _stored(folder, item) for item in manifest.traced_outputs or manifest.device_outputs}
    subject = Subject(
        source=label,
        bundle_id=manifest.bundle_id,
        device=manifest.device,
        virtual=manifest.virtual,
        created=datetime.fromtimestamp(manifest.created.wall, UTC).isoformat(timespec="seconds"),
        model=manifest.model.name if manifest.model is not None else Path(name).name,
        hashes={**manifest.inventory.artifacts, "model": hashlib.sha256(data).hexdigest()},
        versions={**manifest.inventory.versions},
        options=dict(manifest.options),
        input=", ".join(f"{i.spec.name} {i.spec.dtype}{list(i.spec.shape)}" for i in manifest.inputs),
    )
    source = Source(subject, data, name, beside, inputs, tensors, subgraphs, outputs, findings)
    source.step = manifest.profile.output.step
    source.tracing_changed_output = manifest.tracing_changed_output
    return source


def bundle_traces(folder: Path, tempdir: Path) -> tuple[list[DeviceTensor], dict[str, Subgraph], list[Finding]]:
    """The traces of a bundle with the tables of its compile. Raises `TidegaugeError`; also for another compile's."""
    manifest = read_manifest(folder)
    subgraphs = read_tempdir(tempdir, _bundle_log(folder, manifest))
    _check_compile(manifest, subgraphs, tempdir)
    sizes = {t.file: t.size for t in manifest.traces}
    readers = {t.file: _blob_reader(folder, t.blob) for t in manifest.traces if t.blob and _present(folder, t.blob)}
    known = {t.file: t.dtype for t in manifest.traces if t.dtype is not None}
    tensors, findings = device_tensors(sizes, readers, known, subgraphs)
    return tensors, subgraphs, findings


def _bundle_model(folder: Path, manifest: Manifest, model: Path | None) -> tuple[bytes, str, Path | None]:
    if model is not None:
        return _read_file(model, MAX_MODEL), str(model), model.parent
    if manifest.model is None:
        raise TidegaugeError(
            f"the bundle {manifest.bundle_id} holds no model", f"add --model (sha256 {manifest.inventory.model[:16]}…)"
        )
    return read_blob(folder, manifest.model.blob, MAX_MODEL), manifest.model.name, None


def _bundle_log(folder: Path, manifest: Manifest) -> str:
    texts = [_text_of(folder, item) for item in manifest.logs if "remote" in item.name]
    return "\n".join(texts)


def _text_of(folder: Path, item: StoredFile) -> str:
    return read_blob(folder, item.blob, MAX_LOG).decode("utf-8", "replace")


def _check_compile(manifest: Manifest, subgraphs: Mapping[str, Subgraph], tempdir: Path) -> None:
    """Names and scales of another compile would give wrong answers that look right."""
    on_board = {name: sha for name, sha in manifest.inventory.artifacts.items() if name.endswith("_tidl_net.bin")}
    for subgraph in subgraphs.values():
        theirs = on_board.get(f"{subgraph.name}_tidl_net.bin")
        if theirs is not None and subgraph.net_sha256 is not None and theirs != subgraph.net_sha256:
            raise TidegaugeError(
                f"{tempdir} is of another compile than the board ran ({subgraph.name}_tidl_net.bin differs)",
                f"find the compile whose {subgraph.name}_tidl_net.bin has sha256 {theirs[:16]}…",
            )


def _stored(folder: Path, item: StoredTensor) -> Array:
    return _shaped(read_blob(folder, item.blob, MAX_TENSOR), item.spec)


def _shaped(data: bytes, spec: TensorSpec) -> Array:
    if len(data) != spec.nbytes:
        raise TidegaugeError(f"the recorded tensor {spec.name} has {len(data)} bytes instead of {spec.nbytes}")
    return np.frombuffer(data, np.dtype(spec.dtype).newbyteorder("<")).reshape(spec.shape)


def _present(folder: Path, blob: Blob) -> bool:
    return layout.blob_path(folder, blob.sha256).is_file()


def _blob_reader(folder: Path, blob: Blob) -> Callable[[], Any]:
    return lambda: read_blob(folder, blob, MAX_TENSOR)
