"""A folder of TIDL traces as people pack it: which of its files are what a comparison needs."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tidegauge.errors import TidegaugeError

MODEL_SUFFIXES = (".onnx", ".tflite")
_INPUTS = ("input.npy", "input.bin", "input.png")


class TraceFolder(msgspec.Struct, frozen=True):
    """`traces`: the folder of trace files, or of frames with some; `input`: an input elsewhere than beside them."""

    traces: Path
    tempdir: Path | None
    model: Path | None
    input: Path | None


def look_into(folder: Path) -> TraceFolder:
    """Find traces, tempDir, model and input, wherever in `folder` they are. Raises TidegaugeError."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    places = sorted({path.parent for path in files if "tidl_trace" in path.name and path.suffix in (".y", ".bin")})
    if not places:
        raise TidegaugeError(
            "the zip file holds no TIDL trace (*tidl_trace*.y or *_float.bin)",
            "pack the folder that the device has written at debug_level 3",
        )
    traces = places[0] if len(places) == 1 else Path(os.path.commonpath(places))
    models = [path for path in files if path.suffix in MODEL_SUFFIXES]
    if len(models) > 1:
        raise TidegaugeError(
            f"the zip file holds {len(models)} models ({', '.join(sorted(path.name for path in models))[:200]})",
            "pack the one that was compiled",
        )
    return TraceFolder(traces, _tempdir(folder, files), models[0] if models else None, _input(files, places))


def _tempdir(folder: Path, files: list[Path]) -> Path | None:
    """The folder with the compile's tables. Raises TidegaugeError for several."""
    found = sorted({path.parent for path in files if path.name.endswith(".layer_info.txt")})
    if len(found) > 1:
        named = ", ".join(str(path.relative_to(folder)) for path in found)[:200]
        raise TidegaugeError(f"the zip file holds several tempDirs ({named})", "pack the one of these artifacts")
    return found[0] if found else None


def _input(files: list[Path], places: list[Path]) -> Path | None:
    """An input that does not lie beside the traces, where a comparison finds it by itself."""
    found = [path for path in files if path.name in _INPUTS]
    if any(path.parent in places for path in found):
        return None
    if len(found) > 1:
        raise TidegaugeError("the zip file holds several inputs", "put each frame's input.npy beside its traces")
    return found[0] if found else None
