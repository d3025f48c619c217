"""The camera worker as the agent meets it: a process, a socket, a ring."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tidegauge.camera.config import CameraConfig
from tidegauge.camera.folder import list_pictures, load_picture
from tidegauge.camera.synthetic import Clip
from tidegauge.pipeline.messages import (
    CameraEnded,
    CameraReady,
    Failed,
    FrameDropped,
    FrameReady,
    RunTensor,
    SlotFree,
    StartCamera,
    Stop,
)

#: The promised second, and room for a machine that is busy with much else; the camera itself would hold it for 60 s.
END_WITHIN = 30.0


def folder_config(pictures: Path, **changes: Any) -> CameraConfig:
    values: dict[str, Any] = {"width": 32, "height": 16, "frames_per_second": 50.0} | changes
    return CameraConfig("folder", str(pictures), **values)


def test_folder_pictures_arrive_in_order_then_the_end(start_camera: Any, pictures: Path) -> None:
    async def run() -> None:
        async with start_camera(folder_config(pictures, loop=False)) as camera:
            ready = await camera.expect(CameraReady)
            assert (ready.generation, ready.width, ready.height, ready.ring.slots) == (1, 32, 16, 4)
            before = time.monotonic()
            for index in range(3):
                frame = await camera.expect(FrameReady)
                assert frame.sequence == index
                assert before - 5 < frame.captured <= time.monotonic()
                expected = np.zeros((16, 32, 3), np.uint8)
                expected[..., index] = 200
                np.testing.assert_array_equal(camera.pixels(frame), expected)
            await camera.expect(CameraEnded)
            await camera.channel.send(Stop())
            assert await camera.exit_code(END_WITHIN) == 0

    asyncio.run(run())


def test_synthetic_frames_are_the_clip(start_camera: Any, photos: Path) -> None:
    clip = Clip([load_picture(path) for path in list_pictures(photos)], 96, 64, 7)

    async def run() -> None:
        config = CameraConfig("synthetic", str(photos), width=96, height=64, seed=7, frames_per_second=100.0)
        async with start_camera(config) as camera:
            await camera.expect(CameraReady)
            for _ in range(12):
                frame = await camera.expect(FrameReady)
                np.testing.assert_array_equal(camera.pixels(frame), clip.frame(frame.sequence))
                await camera.channel.send(SlotFree(frame.slot))

    asyncio.run(run())


def test_full_ring_drops_the_newest_and_tells_once_a_second(start_camera: Any, pictures: Path) -> None:
    async def run() -> None:
        async with start_camera(folder_config(pictures), slots=2) as camera:
            await camera.expect(CameraReady)
            frames = [await camera.expect(FrameReady) for _ in range(2)]
            assert {frame.slot for frame in frames} == {0, 1}
            kept = [camera.pixels(frame) for frame in frames]
            dropped = []
            for _ in range(3):
                dropped.append((await camera.expect(FrameDropped), time.monotonic()))
            gaps = [later[1] - earlier[1] for earlier, later in itertools.pairwise(dropped)]
            assert all(gap > 0.9 for gap in gaps), gaps
            assert all(10 <= message.count <= 110 for message, _ in dropped[1:]), dropped
            for frame, pixels in zip(frames, kept, strict=True):
                np.testing.assert_array_equal(camera.pixels(frame), pixels)
            # Each sequence number is either delivered or counted: none is lost in silence.
            counted = sum(message.count for message, _ in dropped)
            await camera.channel.send(SlotFree(frames[0].slot))
            following = await camera.receive()
            while isinstance(following, FrameDropped):
                counted += following.count
                following = await camera.receive()
            assert following.slot == frames[0].slot
            final = await camera.expect(FrameDropped)
            assert following.sequence >= 2 + counted
            assert final.count + counted >= following.sequence - 2

    asyncio.run(run())


def test_frames_keep_the_configured_pace(start_camera: Any, pictures: Path) -> None:
    async def run() -> None:
        async with start_camera(folder_config(pictures, frames_per_second=20.0)) as camera:
            await camera.expect(CameraReady)
            captured = []
            for _ in range(21):
                frame = await camera.expect(FrameReady)
                captured.append(frame.captured)
                await camera.channel.send(SlotFree(frame.slot))
            # Never faster than asked for; how much slower is the machine's matter.
            assert captured[-1] - captured[0] > 0.95

    asyncio.run(run())


class SilentServer:
    """Accepts connections and never says a word: what a hung camera looks like."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setblocking(False)
        self._peers: list[socket.socket] = []
        self.url = f"rtsp://user:secret@127.0.0.1:{self._server.getsockname()[1]}/stream"

    async def accept(self) -> None:
        peer, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(self._server), 15)
        self._peers.append(peer)

    def close(self) -> None:
        for peer in self._peers:
            peer.close()
        self._server.close()


@pytest.fixture
def silent_server() -> Any:
    server = SilentServer()
    yield server
    server.close()


@pytest.mark.parametrize("way", ["stop", "sigterm", "agent gone"])
def test_ends_at_once_while_the_source_blocks(start_camera: Any, silent_server: SilentServer, way: str) -> None:
    async def run() -> None:
        async with start_camera(CameraConfig("rtsp", silent_server.url, open_timeout=60.0)) as camera:
            await silent_server.accept()  # the worker now waits inside FFmpeg
            started = time.monotonic()
            match way:
                case "stop":
                    await camera.channel.send(Stop())
                case "sigterm":
                    camera.process.send_signal(signal.SIGTERM)
                case "agent gone":
                    camera.channel.close()
            assert await camera.exit_code() == 0
            assert time.monotonic() - started < END_WITHIN

    asyncio.run(run())


def test_silent_camera_fails_within_the_open_timeout(
    start_camera: Any, silent_server: SilentServer, tmp_path: Path
) -> None:
    async def run() -> None:
        async with start_camera(CameraConfig("rtsp", silent_server.url, open_timeout=1.0)) as camera:
            await silent_server.accept()
            started = time.monotonic()
            failed = await camera.expect(Failed)
            assert time.monotonic() - started > 0.8
            assert failed.kind == "open_timeout"
            assert "camera.open_timeout = 1 s" in failed.problem
            assert "secret" not in failed.problem + failed.cure
            assert await camera.exit_code() == 1

    asyncio.run(run())
    assert "secret" not in (tmp_path / "worker.log").read_text()


def test_refused_camera_fails_at_once(start_camera: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]

    async def run() -> None:
        async with start_camera(CameraConfig("rtsp", f"rtsp://127.0.0.1:{port}/x")) as camera:
            failed = await camera.expect(Failed)
            assert failed.kind == "open_failed"
            assert await camera.exit_code() == 1

    asyncio.run(run())


def test_ctrl_c_is_the_agents(start_camera: Any, pictures: Path) -> None:
    async def run() -> None:
        async with start_camera(folder_config(pictures), slots=1) as camera:
            await camera.expect(CameraReady)
            frame = await camera.expect(FrameReady)
            camera.process.send_signal(signal.SIGINT)
            await camera.channel.send(SlotFree(frame.slot))
            message = await camera.receive()
            while not isinstance(message, FrameReady):
                message = await camera.receive()
            await camera.channel.send(Stop())
            assert await camera.exit_code() == 0

    asyncio.run(run())


def bad_source(case: str, tmp_path: Path) -> CameraConfig:
    folder = tmp_path / "source"
    folder.mkdir()
    match case:
        case "no folder":
            return CameraConfig("folder", str(tmp_path / "absent"))
        case "empty folder":
            return CameraConfig("synthetic", str(folder))
        case "no picture":
            (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
            return CameraConfig("folder", str(folder))
        case "no video":
            (folder / "broken.mp4").write_bytes(b"not a video at all" * 100)
            return CameraConfig("video", str(folder / "broken.mp4"))
        case _:
            return CameraConfig("video", str(tmp_path / "absent.mp4"))


@pytest.mark.parametrize(
    ("case", "kind", "names"),
    [
        ("no folder", "open_failed", "absent"),
        ("empty folder", "no_pictures", "source"),
        ("no picture", "read_failed", "broken.png"),
        ("no video", "open_failed", "broken.mp4"),
        ("no file", "open_failed", "absent.mp4"),
    ],
)
def test_bad_source_is_told_with_its_cure(start_camera: Any, tmp_path: Path, case: str, kind: str, names: str) -> None:
    async def run() -> None:
        async with start_camera(bad_source(case, tmp_path)) as camera:
            message = await camera.receive()
            if isinstance(message, CameraReady):
                message = await camera.receive()
            assert isinstance(message, Failed)
            assert message.kind == kind
            assert names in message.problem
            assert message.cure
            assert await camera.exit_code() == 1

    asyncio.run(run())


@pytest.mark.parametrize("case", ["free slot freed", "unknown slot", "second start", "foreign message"])
def test_agent_that_breaks_the_protocol_is_refused(start_camera: Any, pictures: Path, case: str) -> None:
    config = folder_config(pictures, frames_per_second=1.0)

    async def run() -> None:
        async with start_camera(config) as camera:
            await camera.expect(CameraReady)
            await camera.expect(FrameReady)
            match case:
                case "free slot freed":
                    await camera.channel.send(SlotFree(3))
                case "unknown slot":
                    await camera.channel.send(SlotFree(99))
                case "second start":
                    await camera.channel.send(StartCamera(2, config, 4))
                case "foreign message":
                    await camera.channel.send(RunTensor(1, "x"))
            message = await camera.receive()
            while isinstance(message, FrameReady):
                message = await camera.receive()
            assert isinstance(message, Failed)
            assert message.kind == "protocol"
            assert await camera.exit_code() == 1

    asyncio.run(run())


def test_video_plays_again_in_its_own_size(start_camera: Any, tmp_path: Path) -> None:
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(os.fspath(path), cv2.VideoWriter.fourcc(*"MJPG"), 10.0, (64, 48))
    assert writer.isOpened()
    for index in range(3):
        writer.write(np.full((48, 64, 3), 60 * (index + 1), np.uint8))
    writer.release()

    async def run() -> None:
        config = CameraConfig("video", str(path), frames_per_second=50.0)
        async with start_camera(config) as camera:
            ready = await camera.expect(CameraReady)
            assert (ready.width, ready.height) == (64, 48)
            for index in range(7):
                frame = await camera.expect(FrameReady)
                assert frame.sequence == index
                assert abs(camera.pixels(frame).mean() - 60 * (index % 3 + 1)) < 4
                await camera.channel.send(SlotFree(frame.slot))

    asyncio.run(run())


def test_started_by_hand_says_so() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TIDEGAUGE_CHANNEL_FD"}
    done = subprocess.run(
        [sys.executable, "-m", "tidegauge.camera.worker"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "tidegauge agent run" in done.stderr
    assert "Traceback" not in done.stderr
