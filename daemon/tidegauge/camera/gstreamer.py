"""A GStreamer pipeline, or a V4L2 camera through one: `gst-launch-1.0` as a child that writes raw pictures into a pipe.

A child, because OpenCV's packages for PCs have no GStreamer, because a driver that hangs then hangs a process that can
be ended, and because the text of a pipeline is then what a person has tried in a shell. Only the newest picture waits:
the queue before the pipe drops older ones.
"""

from __future__ import annotations

import fcntl
import os
import select
import shlex
import shutil
import subprocess
import tempfile

import numpy as np

from tidegauge.camera.config import CameraConfig
from tidegauge.camera.faults import CameraFault, FaultKind, shown_pipeline
from tidegauge.camera.source import Picture
from tidegauge.clocks import monotonic

PROGRAM = "gst-launch-1.0"
#: Seconds for the pipeline to close its devices.
CLOSE_SECONDS = 1.0
#: Bytes of what GStreamer prints, beyond which it is dropped.
MOST_SAID = 256 * 1024
#: Rows of raw video begin at multiples of this many bytes (gst-plugins-base, video-info.c).
ROW_ALIGNMENT = 4


def v4l2_pipeline(device: str) -> str:
    """For a camera that gives pictures or JPEG. One that gives raw sensor data needs the ISP: a pipeline of its own."""
    return f"v4l2src device={shlex.quote(device)} ! decodebin"


def row_bytes(width: int) -> int:
    """Bytes of a row of `width` BGR pixels, padding included."""
    return -(-3 * width // ROW_ALIGNMENT) * ROW_ALIGNMENT


class GStreamerSource:
    """Pictures of `width` × `height` pixels: converted and stretched to it, where the pipeline ends with others."""

    def __init__(self, config: CameraConfig) -> None:
        pipeline = v4l2_pipeline(config.source) if config.kind == "v4l2" else config.source
        self.description = shown_pipeline(pipeline) if config.kind == "gstreamer" else config.source
        self.width, self.height = config.width, config.height
        self._row = row_bytes(self.width)
        self._timeout = config.read_timeout
        self._next = 0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the source
        fcntl.fcntl(self._errors, fcntl.F_SETFL, os.O_APPEND)
        self._pipe, writes = os.pipe()
        try:
            self._process = self._start(pipeline, writes)
        except CameraFault:
            os.close(self._pipe)
            self._errors.close()
            raise
        finally:
            os.close(writes)
        self._waiting: Picture | None = None
        try:
            self._waiting = self._read(config.open_timeout, "open_timeout", "open_failed")
        except CameraFault:
            self.close()
            raise

    def _start(self, pipeline: str, writes: int) -> subprocess.Popen[bytes]:
        program = shutil.which(PROGRAM)
        if program is None:
            raise CameraFault(
                "open_failed", f"{PROGRAM} is not installed", "install GStreamer's tools (gstreamer1.0-tools)"
            )
        try:
            words = shlex.split(pipeline)
        except ValueError as error:
            raise CameraFault(
                "open_failed", f"the pipeline of camera.source can't be read ({error})", "close its quotes"
            ) from error
        caps = f"video/x-raw,format=BGR,width={self.width},height={self.height}"
        newest = ["queue", "leaky=downstream", "max-size-buffers=1", "max-size-bytes=0", "max-size-time=0"]
        sink = ["fdsink", f"fd={writes}", "sync=false"]
        tail = ["!", *newest, "!", "videoconvert", "!", "videoscale", "add-borders=false", "!", caps, "!", *sink]
        # The child must not outlive a worker that is killed; without setpriv it ends with its next picture.
        tied = [setpriv, "--pdeathsig", "KILL", "--"] if (setpriv := shutil.which("setpriv")) else []
        return subprocess.Popen(
            [*tied, program, "-q", *words, *tail],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            pass_fds=[writes],
        )

    def read(self) -> Picture | None:
        picture, self._waiting = self._waiting, None
        return picture or self._read(self._timeout, "read_timeout", "read_failed")

    def _read(self, timeout: float, late: FaultKind, ended: FaultKind) -> Picture:
        data = bytearray(self._row * self.height)
        view, deadline = memoryview(data), monotonic() + timeout
        while view:
            ready, _, _ = select.select([self._pipe], [], [], max(0.0, deadline - monotonic()))
            if not ready:
                raise CameraFault(
                    late,
                    f"the pipeline `{self.description}` gave no picture within {timeout:g} s",
                    f"try it in a shell: {PROGRAM} {self.description} ! fakesink; or raise camera.{late}",
                )
            count = os.readv(self._pipe, [view])
            if count == 0:
                self._raise_ended(ended)
            view = view[count:]
        rows = np.frombuffer(data, np.uint8).reshape(self.height, self._row)
        pixels = rows[:, : 3 * self.width].reshape(self.height, self.width, 3)
        picture = Picture(pixels, self._next)
        self._next += 1
        if os.fstat(self._errors.fileno()).st_size > MOST_SAID:  # an element that complains at each picture
            self._errors.truncate(0)
        return picture

    def _raise_ended(self, kind: FaultKind) -> None:
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        said = self._said()
        raise CameraFault(
            kind,
            f"the pipeline `{self.description}` has ended{f': {said}' if said else ''}",
            f"try it in a shell: {PROGRAM} {self.description} ! fakesink",
        )

    def _said(self) -> str:
        """The first error that GStreamer printed, without its debug details."""
        self._errors.seek(0)
        lines = self._errors.read(64 * 1024).decode(errors="replace").splitlines()
        found = [line.strip() for line in lines if line.startswith(("ERROR", "WARNING: erroneous pipeline"))]
        return found[0].removeprefix("ERROR: ").removeprefix("WARNING: ") if found else ""

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._pipe)
        self._errors.close()
