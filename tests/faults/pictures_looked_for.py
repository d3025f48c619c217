"""Looks for a picture in bytes of any kind: its own bytes, and its look in any plane that has its size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

#: Bytes of a picture that nothing else holds by chance.
SLICE = 32
ELEMENTS = ("uint8", "int8", "<i2", "<f4")


class Wanted:
    """A picture: uint8, (height, width, 3), BGR."""

    def __init__(self, picture: NDArray[np.uint8]) -> None:
        self.height, self.width, _ = picture.shape
        rgb = picture[..., ::-1].transpose(2, 0, 1)
        forms = (picture, rgb, (rgb.astype(np.float32) * np.float32(1 / 255)))
        self._slices = [piece for form in forms for piece in _slices(np.ascontiguousarray(form).tobytes())]
        self._luma = picture.astype(np.float64).mean(2)

    def bytes_in(self, data: bytes) -> bool:
        return any(piece in data for piece in self._slices)

    def look_in(self, data: bytes) -> float:
        """The largest |correlation| of any plane with the picture, also thinned by two; one with NaN has none."""
        best = 0.0
        for shrink in (1, 2):
            want = _normal(_small(self._luma[np.newaxis], shrink))[0]
            for planes in self._planes(data):
                found = np.abs(_normal(_small(planes, shrink)) @ want)
                best = max(best, float(found.max(initial=0.0)))
        return best

    def _planes(self, data: bytes) -> Iterator[NDArray[Any]]:
        """What the bytes would be as planes of the picture's size, count × height × width, of each element type."""
        for element in ELEMENTS:
            size = self.height * self.width * np.dtype(element).itemsize
            if data and len(data) % size == 0:
                planes = np.frombuffer(data, element).reshape(-1, self.height, self.width)
                with np.errstate(invalid="ignore"):
                    planes = planes.astype(np.float64)
                usable = np.isfinite(planes).all((1, 2)) & (np.nan_to_num(np.abs(planes)).max((1, 2)) < 1e6)
                yield planes[usable]


def _slices(data: bytes) -> list[bytes]:
    return [data[start : start + SLICE] for start in range(0, len(data) - SLICE, max(SLICE, len(data) // 7))]


def _small(planes: NDArray[Any], by: int) -> NDArray[Any]:
    height, width = (size // by * by for size in planes.shape[1:])
    cut = planes[:, :height, :width]
    small: NDArray[Any] = cut.reshape(len(planes), height // by, by, width // by, by).mean((2, 4))
    return small


def _normal(planes: NDArray[Any]) -> NDArray[Any]:
    """Each as a row of mean 0 and length 1; one without any contrast is 0."""
    rows = planes.reshape(len(planes), planes.shape[1] * planes.shape[2])
    rows = rows - rows.mean(1, keepdims=True)
    length = np.sqrt((rows**2).sum(1, keepdims=True))
    normal: NDArray[Any] = np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)
    return normal


def with_opened(contents: Iterable[bytes]) -> list[bytes]:
    """Each as it is, once, and what a zstd frame has in it."""
    found = []
    for data in dict.fromkeys(contents):
        found.append(data)
        try:
            found.append(zstandard.ZstdDecompressor().decompress(data, max_output_size=1 << 26))
        except zstandard.ZstdError:
            continue
    return found


def files(*folders: Path) -> list[bytes]:
    return [path.read_bytes() for each in folders for path in sorted(each.rglob("*")) if path.is_file()]
