"""The artifacts folder on disk, read for the pure checks of `tidl.artifacts`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.tidl import artifacts, io_descriptor
from tidegauge.tidl.artifacts import Problem
from tidegauge.tidl.errors import FormatError


class Folder(msgspec.Struct, frozen=True):
    """Bytes of every file by name, and what of their contents the checks look at."""

    sizes: dict[str, int]
    contents: dict[str, bytes]


def read(path: Path) -> Folder:
    """Raises RuntimeFault where the folder or a file in it can't be read."""
    try:
        files = sorted(entry for entry in path.iterdir() if entry.is_file())
        sizes = {file.name: file.stat().st_size for file in files}
        contents = {file.name: _head(file, limit) for file in files if (limit := _limit(file.name))}
    except OSError as error:
        cure = "set `artifacts` in the profile to the folder that the compile wrote"
        raise RuntimeFault(f"artifacts folder {path} can't be read ({error.strerror})", cure) from error
    return Folder(sizes, contents)


def problems(runtime: Literal["onnx", "tflite"], path: Path) -> tuple[Problem, ...]:
    """Everything wrong with a folder, fatal or not. Raises RuntimeFault where it can't be read."""
    folder = read(path)
    return artifacts.check(runtime, folder.sizes, folder.contents)


def require(runtime: Literal["onnx", "tflite"], path: Path) -> None:
    """Raises RuntimeFault naming every fatal problem.

    TI's ONNX provider would run on the CPU in silence, TI's TFLite delegate would end the process.
    """
    fatal = [problem for problem in problems(runtime, path) if problem.fatal]
    if fatal:
        told = "; ".join(f"{problem.file}: {problem.problem}" for problem in fatal)
        raise RuntimeFault(f"artifacts folder {path}: {told}", fatal[0].cure)


def output_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the sub-graphs' outputs by name, for a model that leaves them open; what can't be read is left out."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, data in read(path).contents.items():
        if name.endswith(artifacts.IO_SUFFIX):
            try:
                descriptor = io_descriptor.parse(data)
            except FormatError:  # another release's layout: nothing is known, and the caller says so
                continue
            told = {output.name: output.shape for output in descriptor.outputs}
            shapes.update({name: shape for name, shape in told.items() if shape is not None})
    return shapes


def _limit(name: str) -> int:
    if name in (artifacts.ALLOWED_NODES, artifacts.METADATA):
        return artifacts.LARGEST_TEXT + 1
    if name.endswith(artifacts.NET_SUFFIX):
        return artifacts.NET_HEAD_BYTES
    return io_descriptor.LARGEST + 1 if name.endswith(artifacts.IO_SUFFIX) else 0


def _head(file: Path, limit: int) -> bytes:
    with file.open("rb") as opened:
        return opened.read(limit)
