"""An application of its own: a GStreamer pipeline ends in an appsink, ONNX Runtime runs, Tidegauge's tap watches.

    python3 gstreamer_appsink.py --model enhancer.onnx --artifacts artifacts \\
        --source "v4l2src device=/dev/video0 ! jpegdec ! videoconvert ! videoscale"

The appsink keeps the newest picture only, so that a pause for a capture costs frames and never memory.
"""

from __future__ import annotations

from typing import Any

import gi
import numpy as np
from onnxruntime_loop import Model, options

gi.require_version("Gst", "1.0")
gi.require_version("GstApp", "1.0")
from gi.repository import Gst, GstApp  # noqa: E402, F401 - after its version; GstApp gives appsink its methods

SINK = "video/x-raw,format=BGR,width={width},height={height} ! appsink name=sink max-buffers=1 drop=true sync=false"
PATIENCE = 1_000_000_000  # nanoseconds


def picture(sample: Any) -> Any:
    """BGR, height × width × 3: a copy, since the buffer goes back to the pipeline. Rows may be padded."""
    shape = sample.get_caps().get_structure(0)
    width, height = shape.get_value("width"), shape.get_value("height")
    buffer = sample.get_buffer()
    data = np.frombuffer(buffer.extract_dup(0, buffer.get_size()), np.uint8)
    return data.reshape(height, -1)[:, : 3 * width].reshape(height, width, 3)


def main() -> None:
    given = options().parse_args()
    model = Model(given.model, given.artifacts, given.runtime, given.socket, "gstreamer-appsink", given.keep_session)
    Gst.init(None)
    width, height = model.size
    pipeline = Gst.parse_launch(f"{given.source} ! {SINK.format(width=width, height=height)}")
    pipeline.set_state(Gst.State.PLAYING)
    sink = pipeline.get_by_name("sink")
    while not sink.is_eos():
        sample = sink.try_pull_sample(PATIENCE)
        if sample is None:
            model.tap.poll()  # no picture: the agent may want something all the same
        else:
            model.frame(picture(sample))
    pipeline.set_state(Gst.State.NULL)


if __name__ == "__main__":
    main()
