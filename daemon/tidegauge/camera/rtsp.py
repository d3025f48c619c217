"""An RTSP camera, through OpenCV's FFmpeg backend.

The backend's own time-outs are set, but not relied on: its first stall returns only after about three times the read
time-out, and a capture that has stalled is dead even when the camera comes back. So the camera worker keeps its own
deadline, and reopening is the work of the worker's replacement.
"""

from __future__ import annotations

import os
import time

import cv2

from tidegauge.camera.config import CameraConfig
from tidegauge.camera.faults import CameraFault, without_credentials
from tidegauge.camera.source import Picture

#: TCP, because lost UDP packets smear pictures; a short analysis, because the default takes seconds at 10 frames/s.
FFMPEG_OPTIONS = "rtsp_transport;tcp|analyzeduration;300000"


class RtspSource:
    """The newest pictures of a stream, in its own size and at its own pace."""

    def __init__(self, config: CameraConfig) -> None:
        self._shown = without_credentials(config.source)
        self.description = self._shown
        os.environ.setdefault("OPENCV_FFMPEG_CAPTURE_OPTIONS", FFMPEG_OPTIONS)
        parameters = [
            *(cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, round(config.open_timeout * 1000)),
            *(cv2.CAP_PROP_READ_TIMEOUT_MSEC, round(config.read_timeout * 1000)),
        ]
        started = time.monotonic()
        self._capture = cv2.VideoCapture(config.source, cv2.CAP_FFMPEG, parameters)
        if not self._capture.isOpened():
            self._raise_not_opened(time.monotonic() - started, config.open_timeout)
        self.width = int(self._capture.get(cv2.CAP_PROP_FRAME_WIDTH))
        self.height = int(self._capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
        self._next = 0

    def _raise_not_opened(self, elapsed: float, timeout: float) -> None:
        if elapsed >= 0.95 * timeout:
            raise CameraFault(
                "open_timeout",
                f"the camera {self._shown} did not answer within camera.open_timeout = {timeout:g} s",
                "check its power and network, or raise camera.open_timeout",
            )
        raise CameraFault(
            "open_failed",
            f"the camera {self._shown} could not be opened",
            "check address, port, path, user and password with `ffprobe` or VLC",
        )

    def read(self) -> Picture | None:
        success, pixels = self._capture.read()
        if not success:
            raise CameraFault(
                "read_failed",
                f"the stream {self._shown} has ended or stalled",
                "check the camera's power and network; the stream is opened anew",
            )
        picture = Picture(pixels, self._next)
        self._next += 1
        return picture

    def close(self) -> None:
        self._capture.release()
