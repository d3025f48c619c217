"""The pictures of a folder, in name order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from tidegauge.camera.config import CameraConfig
from tidegauge.camera.faults import CameraFault
from tidegauge.camera.pace import Pace
from tidegauge.camera.source import Picture

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


def list_pictures(folder: Path) -> list[Path]:
    """Files with a picture's suffix, by name. Raises `CameraFault` where there is none."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
    except OSError as error:
        raise CameraFault(
            "open_failed",
            f"camera.source {folder} can't be listed ({error.strerror})",
            "give a folder of pictures that the agent's user can read",
        ) from error
    if not paths:
        raise CameraFault(
            "no_pictures",
            f"camera.source {folder} holds no picture",
            f"put pictures there ({', '.join(sorted(SUFFIXES))})",
        )
    return paths


def load_picture(path: Path) -> NDArray[Any]:
    """Decode a file to BGR, uint8, (height, width, 3). Raises `CameraFault` where it is no picture."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CameraFault(
            "read_failed", f"the picture {path} can't be read ({error.strerror})", "make it readable or remove it"
        ) from error
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if data else None
    if pixels is None:
        raise CameraFault("read_failed", f"{path} is not a picture that OpenCV can decode", "replace or remove it")
    return pixels


def fit(pixels: NDArray[Any], width: int, height: int) -> NDArray[Any]:
    """Resize to (height, width): by area averages where it gets smaller, else linearly."""
    if pixels.shape[:2] == (height, width):
        return pixels
    shrinks = pixels.shape[0] >= height and pixels.shape[1] >= width
    return cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)


class FolderSource:
    """Each picture of the folder as it lay there at the start, resized to the configured size."""

    def __init__(self, config: CameraConfig) -> None:
        folder = Path(config.source)
        self.description = f"pictures of {folder}"
        self.width = config.width
        self.height = config.height
        self._paths = list_pictures(folder)
        self._loop = config.loop
        self._pace = Pace(config.frames_per_second)
        self._next = 0

    def read(self) -> Picture | None:
        if self._next >= len(self._paths) and not self._loop:
            return None
        pixels = fit(load_picture(self._paths[self._next % len(self._paths)]), self.width, self.height)
        self._pace.wait()
        picture = Picture(pixels, self._next)
        self._next += 1
        return picture

    def close(self) -> None:
        """Nothing is held open."""
