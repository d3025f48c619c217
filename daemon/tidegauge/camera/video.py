"""A video file, through OpenCV."""

from __future__ import annotations

from pathlib import Path

import cv2

from tidegauge.camera.config import CameraConfig
from tidegauge.camera.faults import CameraFault
from tidegauge.camera.pace import Pace
from tidegauge.camera.source import Picture


class VideoSource:
    """The frames of a file in their own size; played again from its start where `loop` is set."""

    def __init__(self, config: CameraConfig) -> None:
        path = Path(config.source)
        if not path.is_file():
            raise CameraFault("open_failed", f"camera.source {path} is not a file", "give the path of a video file")
        self.description = f"video {path}"
        self._path = path
        self._loop = config.loop
        self._pace = Pace(config.frames_per_second)
        self._next = 0
        self._capture = self._open()
        self.width = int(self._capture.get(cv2.CAP_PROP_FRAME_WIDTH))
        self.height = int(self._capture.get(cv2.CAP_PROP_FRAME_HEIGHT))

    def _open(self) -> cv2.VideoCapture:
        capture = cv2.VideoCapture(str(self._path))
        if not capture.isOpened():
            raise CameraFault(
                "open_failed", f"{self._path} is not a video that OpenCV can open", "convert it to H.264 in MP4"
            )
        return capture

    def read(self) -> Picture | None:
        success, pixels = self._capture.read()
        if not success and self._next and self._loop:
            # Opened again rather than rewound: a seek to frame 0 lands wherever the container's index says.
            self._capture.release()
            self._capture = self._open()
            success, pixels = self._capture.read()
        if not success:
            if self._next and not self._loop:
                return None
            raise CameraFault("read_failed", f"{self._path} gives no frame", "convert it to H.264 in MP4")
        self._pace.wait()
        picture = Picture(pixels, self._next)
        self._next += 1
        return picture

    def close(self) -> None:
        self._capture.release()
