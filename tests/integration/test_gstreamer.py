"""Pictures from real GStreamer pipelines."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import numpy as np
import pytest

from needs import unless
from tidegauge.camera.config import CameraConfig
from tidegauge.camera.faults import CameraFault, shown_pipeline
from tidegauge.camera.gstreamer import GStreamerSource, v4l2_pipeline
from tidegauge.camera.open import open_source

pytestmark = unless(shutil.which("gst-launch-1.0") is not None, "needs gst-launch-1.0")

RED = "videotestsrc is-live=true pattern=red ! video/x-raw,width=64,height=48,framerate=30/1"


def config(source: str, width: int = 64, height: int = 48, **changes: float) -> CameraConfig:
    return CameraConfig("gstreamer", source, width=width, height=height, **changes)


def children() -> list[str]:
    said = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True).stdout
    return [line for line in said.splitlines() if "gst-launch" in line]


@pytest.mark.parametrize(("width", "height"), [(64, 48), (30, 20), (33, 17)])
def test_pictures_are_blue_green_red_whatever_the_width(width: int, height: int) -> None:
    """Rows of a width that is no multiple of four are padded in the pipe."""
    source = open_source(config(RED, width, height))
    try:
        pictures = [source.read() for _ in range(3)]
    finally:
        source.close()
    assert [picture.sequence for picture in pictures if picture is not None] == [0, 1, 2]
    for picture in pictures:
        assert picture is not None
        assert picture.pixels.shape == (height, width, 3)
        assert np.abs(picture.pixels.astype(int) - (0, 0, 255)).max() <= 3
    assert children() == []


def test_a_slow_reader_gets_the_newest_picture() -> None:
    """A second of pictures waits nowhere: what comes after a pause was made after it."""
    clock = "videotestsrc is-live=true pattern=ball ! video/x-raw,width=64,height=48,framerate=30/1"
    source = GStreamerSource(config(clock))
    try:
        for _ in range(3):
            source.read()
        time.sleep(1.5)
        began = time.monotonic()
        for _ in range(20):
            source.read()
        # 45 pictures were made meanwhile; had they been kept, twenty more would come at once.
        assert time.monotonic() - began > 0.3
    finally:
        source.close()


@pytest.mark.parametrize(
    ("pipeline", "kind", "words"),
    [
        ("nosuchelement", "open_failed", "nosuchelement"),
        ("filesrc location=/nowhere ! decodebin", "open_failed", "has ended"),
        ('videotestsrc name="open', "open_failed", "quotes"),
        ("videotestsrc is-live=true ! identity sleep-time=5000000", "open_timeout", "camera.open_timeout"),
    ],
)
def test_pipeline_that_gives_nothing_is_named_with_what_gstreamer_said(pipeline: str, kind: str, words: str) -> None:
    with pytest.raises(CameraFault) as raised:
        open_source(config(pipeline, open_timeout=3.0))
    assert raised.value.kind == kind
    assert words in str(raised.value)
    assert children() == []


def test_pipeline_that_ends_or_stalls() -> None:
    source = GStreamerSource(config("videotestsrc num-buffers=2"))
    with pytest.raises(CameraFault) as raised:
        for _ in range(3):
            source.read()
    assert raised.value.kind == "read_failed"
    source.close()
    stalling = (
        "videotestsrc is-live=true ! identity error-after=-1 ! valve name=v drop=false ! identity sleep-time=1500000"
    )
    source = GStreamerSource(config(stalling, open_timeout=10.0, read_timeout=0.3))
    with pytest.raises(CameraFault) as raised:
        for _ in range(3):
            source.read()
    assert raised.value.kind == "read_timeout"
    source.close()


def test_device_that_is_not_there() -> None:
    with pytest.raises(CameraFault) as raised:
        open_source(CameraConfig("v4l2", "/dev/video-none", width=64, height=48))
    assert raised.value.kind == "open_failed"
    assert "/dev/video-none" in str(raised.value)


def test_names_are_quoted_and_passwords_are_not_shown() -> None:
    assert v4l2_pipeline("/dev/my camera") == "v4l2src device='/dev/my camera' ! decodebin"
    shown = shown_pipeline("rtspsrc location=rtsp://admin:secret@192.0.2.4/cam ! decodebin")
    assert shown == "rtspsrc location=rtsp://192.0.2.4/cam ! decodebin"
