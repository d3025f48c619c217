"""The camera worker against a real RTSP server."""

from __future__ import annotations

import asyncio
import os
import random
import selectors
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from faults.small_board import INFERENCES, SmallBoard, metrics, wait_for
from needs import missing
from tidegauge.camera.config import CameraConfig
from tidegauge.pipeline.channel import AgentChannel
from tidegauge.pipeline.layout import Region
from tidegauge.pipeline.messages import (
    CameraEvent,
    CameraReady,
    Failed,
    FrameDropped,
    FrameReady,
    SlotFree,
    StartCamera,
    Stop,
)
from tidegauge.pipeline.ring import Ring
from tidegauge.pipeline.spawn import spawn
from tidegauge.tensors import TensorSpec

SYSTEM_PYTHON = "/usr/bin/python3"
DOWN = 'tidegauge_camera_problem{problem="down"}'
NEEDS = (
    "needs Debian's python3-gi, gir1.2-gst-rtsp-server-1.0 and gstreamer1.0-plugins-base, -good, -bad, -ugly"
    " (tools/servers installs them)"
)


class RtspServer:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.url = f"rtsp://127.0.0.1:{port}/camera"


@pytest.fixture
def rtsp_server() -> Iterator[RtspServer]:
    with serving() as server:
        yield server


@contextmanager
def serving(port: int = 0) -> Iterator[RtspServer]:
    """A server at this port; 0: at any that is free."""
    script = Path(__file__).with_name("rtsp_server.py")
    if not Path(SYSTEM_PYTHON).exists():
        missing(f"{NEEDS}: {SYSTEM_PYTHON}")
    with subprocess.Popen(
        [SYSTEM_PYTHON, script, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
    ) as process:
        try:
            line = first_line(process)
            if not line:
                process.kill()
                assert process.stderr is not None
                missing(f"{NEEDS}: {process.stderr.read().strip()}")
            yield RtspServer(process, int(line))
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str], timeout: float = 60.0) -> str:
    """What the server prints first; empty where it ends or stays silent."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return process.stdout.readline() if selector.select(timeout) else ""


def lasting_port() -> int:
    """Free, and below those that Linux gives to outgoing connections: nobody takes it while the camera is away."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port


class Camera:
    """The agent's side: keeps the ring, gives each slot back."""

    def __init__(self, process: asyncio.subprocess.Process, channel: AgentChannel[Any]) -> None:
        self.process = process
        self.channel = channel

    async def receive(self, timeout: float = 60.0) -> tuple[Any, int | None]:
        message, fd = await asyncio.wait_for(self.channel.receive(), timeout)
        while isinstance(message, FrameDropped):
            message, fd = await asyncio.wait_for(self.channel.receive(), timeout)
        if isinstance(message, FrameReady):
            await self.channel.send(SlotFree(message.slot))
        return message, fd


@asynccontextmanager
async def camera_worker(config: CameraConfig, log: Path) -> AsyncIterator[Camera]:
    process, channel = await spawn("tidegauge.camera.worker", CameraEvent, environment={}, log=log)
    try:
        await channel.send(StartCamera(1, config, 4))
        yield Camera(process, channel)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        channel.close()


def test_frames_of_a_real_stream(rtsp_server: RtspServer, tmp_path: Path) -> None:
    async def run() -> None:
        async with camera_worker(CameraConfig("rtsp", rtsp_server.url), tmp_path / "worker.log") as camera:
            ready, fd = await camera.receive()
            assert isinstance(ready, CameraReady), ready
            assert fd is not None
            assert (ready.width, ready.height) == (320, 240)
            assert ready.description == rtsp_server.url
            ring = Ring(ready.ring, fd)
            region = Region(TensorSpec("picture", (240, 320, 3), "uint8"), 0)
            sequences, pictures, captured = [], [], []
            for _ in range(8):
                frame, _ = await camera.receive()
                assert isinstance(frame, FrameReady), frame
                sequences.append(frame.sequence)
                captured.append(frame.captured)
                pictures.append(ring.read(frame.slot, region))
            assert sequences == sorted(set(sequences))
            assert captured == sorted(captured)
            assert len(set(pictures)) > 1  # the ball moves
            assert max(pictures[-1]) > 200  # and it is white
            ring.close()
            await camera.channel.send(Stop())
            assert await asyncio.wait_for(camera.process.wait(), 30.0) == 0

    asyncio.run(run())


@pytest.mark.parametrize("fault", ["hangs", "dies"])
def test_camera_that_stops_is_reported_in_time(rtsp_server: RtspServer, tmp_path: Path, fault: str) -> None:
    """FFmpeg's own read time-out returns after three times the time, as a failed read: the worker's deadline holds."""

    async def run() -> None:
        config = CameraConfig("rtsp", rtsp_server.url, read_timeout=2.0)
        async with camera_worker(config, tmp_path / "worker.log") as camera:
            ready, _ = await camera.receive()
            assert isinstance(ready, CameraReady), ready
            frame, _ = await camera.receive()
            assert isinstance(frame, FrameReady), frame
            rtsp_server.process.send_signal(signal.SIGSTOP if fault == "hangs" else signal.SIGKILL)
            message, _ = await camera.receive()
            while isinstance(message, FrameReady):
                message, _ = await camera.receive()
            assert isinstance(message, Failed), message
            assert message.kind == ("read_timeout" if fault == "hangs" else "read_failed")
            assert await asyncio.wait_for(camera.process.wait(), 30.0) == 1

    asyncio.run(run())


def test_wrong_path_is_refused(rtsp_server: RtspServer, tmp_path: Path) -> None:
    async def run() -> None:
        config = CameraConfig("rtsp", rtsp_server.url + "-absent")
        async with camera_worker(config, tmp_path / "worker.log") as camera:
            message, _ = await camera.receive()
            assert isinstance(message, Failed), message
            assert message.kind == "open_failed"

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_agent_watches_on_whenever_a_flapping_camera_is_there(tmp_path: Path) -> None:
    """It freezes and dies by turns and comes back at the same address: frames go on, in one session of the device."""
    board = SmallBoard(tmp_path, virtual=True)
    port = lasting_port()
    url = f"rtsp://127.0.0.1:{port}/camera"
    camera = {"kind": "rtsp", "source": url, "width": 320, "height": 240, "open_timeout": 5.0, "read_timeout": 2.0}
    config = board.configure(camera=camera, runtime={"start_timeout": 90.0, "first_run_timeout": 60.0})
    with board.agent(config) as agent:
        page = board.url(agent)
        sessions = set()
        for fault in ("freezes", "dies", "freezes", "dies"):
            with serving(port) as server:
                before = metrics(page)[INFERENCES]
                wait_for(lambda before=before: metrics(page)[INFERENCES] > before + 5, 120, "frames")
                workers = {each.name: each for each in board.status().workers}
                sessions.add((workers["pipeline"].pid, workers["pipeline"].generation))
                server.process.send_signal(signal.SIGSTOP if fault == "freezes" else signal.SIGKILL)
                wait_for(lambda: metrics(page)[DOWN] == 1, 120, f"a camera that {fault}")
        assert workers["camera"].generation >= 4
        assert len(sessions) == 1, "the accelerator's session pays for no camera"
    assert "Traceback" not in board.log()
