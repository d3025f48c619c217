"""Float tensors that somebody else computed: a folder with one file a tensor, read when its layer is compared.

A file is named as the model's tensor, with `_` for `/`: `.npy`, or raw little-endian float32 as `.bin`. Tensors without
a file, and those whose file can't be used, are computed from the model; each layer says which of the two it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.match import sanitise
from tidegauge.compare.model import NET_FORMAT, ORIGINAL, Model
from tidegauge.compare.types import Finding
from tidegauge.errors import TidegaugeError

Array = NDArray[Any]

#: Below this SQNR two float runs of one model and one input do not differ by the order of additions alone.
SAME_RUN_DB = 40.0
_SUFFIXES = (".npy", ".bin")


@dataclass
class Given:
    """The folder's files by the model's tensor names. `used`: tensors taken from it, with the SQNR (dB) of the computed
    float run against them, None where they are equal or both zero; `refused`: why a file was not taken."""

    folder: Path
    files: dict[str, Path]
    used: dict[str, float | None] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def value(self, model: Model, name: str, computed: Array) -> Array | None:
        """The tensor in the computed one's shape; None where the folder has none that can be used."""
        path = self._file(name)
        if path is None:
            return None
        try:
            found = _shaped(read(path), computed.shape, bool(model.nhwc))
        except TidegaugeError as error:
            self.refused[name] = error.problem
            return None
        if found is None:
            self.refused[name] = f"{path} does not have the shape {list(computed.shape)} that the model's tensor has"
            return None
        self.used[name] = _sqnr(found, computed)
        return found

    def input(self, name: str) -> Array | None:
        """The graph input of this name as it lies in the folder. Raises `TidegaugeError` where it can't be read."""
        path = self._file(name)
        return read(path) if path is not None else None

    def _file(self, name: str) -> Path | None:
        # TIDL's aliases at the ends are identities of the model's tensors.
        names = (name, name.removesuffix(NET_FORMAT), name.removesuffix(ORIGINAL))
        return next((self.files[n] for n in map(sanitise, names) if n in self.files), None)

    def findings(self) -> list[Finding]:
        """What a reader must know: where the reference comes from, and where it is of another run."""
        found = []
        if self.used:
            text = (
                f"The float values of {len(self.used)} tensors are those in {self.folder}; where it has none, computed."
            )
            found.append(Finding("reference_given", "note", text))
        for name, problem in self.refused.items():
            text = f"The reference of {name} is computed: {problem}."
            found.append(Finding("reference_unusable", "warning", text, name))
        apart = {name: sqnr for name, sqnr in self.used.items() if sqnr is not None and sqnr < SAME_RUN_DB}
        if apart:
            first = next(iter(apart))
            text = (
                f"The reference in {self.folder} is not this model's float run of the recorded input: {len(apart)} of "
                f"{len(self.used)} tensors differ, first {first} ({apart[first]:.1f} dB). Errors against the float run "
                "are against the folder's values; a layer's own error does not depend on them."
            )
            found.append(Finding("reference_differs", "warning", text, first))
        return found


def open_given(folder: Path) -> Given:
    """The files of a reference folder. Raises `TidegaugeError` for none, and for two that claim one tensor."""
    if not folder.is_dir():
        raise TidegaugeError(f"the reference {folder} is no folder", "give a folder with one .npy file a tensor")
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.suffix not in _SUFFIXES:
            continue
        if path.stem in files:
            raise TidegaugeError(f"{path} and {files[path.stem].name} claim the same tensor", "remove one of them")
        files[path.stem] = path
    if not files:
        cure = "name each file as the model's tensor, with _ for /: numpy.save, or raw float32 as .bin"
        raise TidegaugeError(f"the reference folder {folder} has no .npy and no .bin files", cure)
    return Given(folder, files)


def for_frames(folder: Path, frames: Sequence[Path]) -> list[Given]:
    """The reference of each frame: of one the folder itself, of several its folders of the frames' names.

    Raises `TidegaugeError` where a frame has none.
    """
    if len(frames) == 1:
        return [open_given(folder)]
    for frame in frames:
        if not (folder / frame.name).is_dir():
            raise TidegaugeError(
                f"the reference {folder} has no folder {frame.name}, which the device's frames have",
                "give a folder for each frame, with the same names on both sides",
            )
    return [open_given(folder / frame.name) for frame in frames]


def check_names(given: Given, model: Model) -> None:
    """Raises `TidegaugeError` where no file is named as a tensor of the model: then the folder is of something else."""
    names = {sanitise(name) for name in (*model.inputs, *model.tensors)}
    if names.isdisjoint(given.files):
        some = ", ".join(sorted(given.files)[:3])
        cure = "name each file as the model's tensor, with _ for /"
        raise TidegaugeError(f"no file in {given.folder} ({some}, …) is named as a tensor of the model", cure)


def read(path: Path) -> Array:
    """One tensor, of any numeric type; a `.bin` is flat float32. Raises `TidegaugeError`."""
    try:
        if path.suffix == ".npy":
            found = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            found = np.memmap(path, "<f4", "r")
    except (OSError, ValueError, EOFError) as error:
        raise TidegaugeError(
            f"{path} can't be read ({error})", "write it with numpy.save, or as raw float32"
        ) from error
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiub":
        raise TidegaugeError(f"{path} holds no numbers", "write it with numpy.save from a float tensor")
    return found


def _shaped(found: Array, shape: tuple[int, ...], channels_last: bool) -> Array | None:
    """The tensor in the model's shape; of a TFLite model four dims come with the channels last, as TFLite has them."""
    if found.size != math.prod(shape):
        return None
    if channels_last and len(shape) == 4:
        last = (shape[0], shape[2], shape[3], shape[1])
        if found.ndim == 1 or _plain(found.shape) == _plain(last):
            return found.reshape(last).transpose(0, 3, 1, 2)
    if found.ndim > 1 and _plain(found.shape) != _plain(shape):
        return None
    return found.reshape(shape)


def _plain(shape: tuple[int, ...]) -> list[int]:
    return [n for n in shape if n != 1]


def _sqnr(given: Array, computed: Array) -> float | None:
    ours, theirs = (np.asarray(x, np.float64).reshape(-1) for x in (given, computed))
    error, size = float(np.square(theirs - ours).sum()), float(np.square(ours).sum())
    if error == 0 or not math.isfinite(error):
        return None
    return 10 * math.log10(size / error) if size > 0 else -math.inf
