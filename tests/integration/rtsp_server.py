"""A real RTSP camera for tests: GStreamer's RTSP server with H.264, run by the system's own Python.

Prints the port it listens on, on 127.0.0.1 (the argument, else any that is free); serves `/camera`; ends when its
standard input is closed. Needs Debian's python3-gi, gir1.2-gst-rtsp-server-1.0 and
gstreamer1.0-plugins-{base,good,bad,ugly}.
"""

from __future__ import annotations

import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402 (the versions come first)

PIPELINE = (
    "( videotestsrc is-live=true pattern=ball ! video/x-raw,format=I420,width=320,height=240,framerate=15/1"
    " ! x264enc tune=zerolatency speed-preset=ultrafast key-int-max=15 ! rtph264pay name=pay0 pt=96 )"
)


def main() -> None:
    Gst.init(None)
    if Gst.ElementFactory.find("x264enc") is None:
        sys.exit("no x264enc: install gstreamer1.0-plugins-ugly")
    server = GstRtspServer.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service(sys.argv[1] if len(sys.argv) > 1 else "0")
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch(PIPELINE)
    factory.set_shared(True)
    server.get_mount_points().add_factory("/camera", factory)
    if not server.attach(None):
        sys.exit("the RTSP server can't listen")
    loop = GLib.MainLoop()
    GLib.io_add_watch(sys.stdin.fileno(), GLib.IO_IN | GLib.IO_HUP, lambda *_: loop.quit())
    print(server.get_bound_port(), flush=True)
    loop.run()


if __name__ == "__main__":
    main()
