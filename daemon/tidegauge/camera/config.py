"""The `[camera]` table of `agent.toml`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class CameraConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where frames come from.

    `kind`: "folder" (pictures of a folder, in name order, again and again), "video" (a file, again and again),
    "synthetic" (a clip made of the photographs in a folder: pan, zoom, exposure, sensor noise), "rtsp" (a URL), "v4l2"
    (a device such as /dev/video0, through GStreamer), "gstreamer" (a pipeline without its sink, as `gst-launch-1.0`
    takes it), "tap" (a socket at which an application hands over what it runs itself; docs/tap.md).
    `frames_per_second` paces folder, video and synthetic, and says how many frames an application is asked for; cameras
    pace themselves. `width` and `height` are
    the size of the frames; video and RTSP come in their own. `seed` makes the synthetic clip;
    `loop` starts folder and video again at their end. `scene_frames`: frames
    of one scene of a synthetic clip. `open_timeout` and `read_timeout` in seconds.
    """

    kind: Literal["folder", "video", "synthetic", "rtsp", "v4l2", "gstreamer", "tap"]
    source: str
    frames_per_second: Annotated[float, Meta(gt=0, le=240)] = 10.0
    width: Annotated[int, Meta(ge=16, le=8192)] = 640
    height: Annotated[int, Meta(ge=16, le=8192)] = 360
    seed: int = 0
    scene_frames: Annotated[int, Meta(ge=2)] = 120
    loop: bool = True
    open_timeout: Annotated[float, Meta(gt=0)] = 10.0
    read_timeout: Annotated[float, Meta(gt=0)] = 5.0

    @property
    def live(self) -> bool:
        """A camera, which may go and come back; else files, whose absence is a mistake in the configuration."""
        return self.kind in ("rtsp", "v4l2", "gstreamer", "tap")

    @property
    def read_deadline(self) -> float:
        """Seconds between two pictures that are still in order: the time-out, and the pause of a paced source."""
        return self.read_timeout + (0.0 if self.live and self.kind != "tap" else 1.0 / self.frames_per_second)
