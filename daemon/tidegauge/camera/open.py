"""From the `[camera]` table to an open source."""

from __future__ import annotations

from tidegauge.camera.config import CameraConfig
from tidegauge.camera.faults import CameraFault
from tidegauge.camera.folder import FolderSource
from tidegauge.camera.gstreamer import GStreamerSource
from tidegauge.camera.rtsp import RtspSource
from tidegauge.camera.source import FrameSource
from tidegauge.camera.synthetic import SyntheticSource
from tidegauge.camera.video import VideoSource


def open_source(config: CameraConfig) -> FrameSource:
    """Open the source; may block for `open_timeout` and a little more. Raises `CameraFault`."""
    match config.kind:
        case "folder":
            return FolderSource(config)
        case "video":
            return VideoSource(config)
        case "synthetic":
            return SyntheticSource(config)
        case "rtsp":
            return RtspSource(config)
        case "v4l2" | "gstreamer":
            return GStreamerSource(config)
        case "tap":
            raise CameraFault("open_failed", "an application's frames are no camera", "see docs/tap.md")
