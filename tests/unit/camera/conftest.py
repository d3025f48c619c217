"""A real camera worker in a process of its own, for tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tidegauge.camera.config import CameraConfig
from tidegauge.pipeline.channel import AgentChannel
from tidegauge.pipeline.layout import Region
from tidegauge.pipeline.messages import CameraEvent, CameraReady, FrameReady, StartCamera
from tidegauge.pipeline.ring import Ring
from tidegauge.pipeline.spawn import spawn
from tidegauge.tensors import TensorSpec

DEADLINE = 15.0


class CameraClient:
    """The agent's side of one camera worker."""

    def __init__(self, process: asyncio.subprocess.Process, channel: AgentChannel[Any]) -> None:
        self.process = process
        self.channel = channel
        self.ready: CameraReady | None = None
        self.ring: Ring | None = None

    async def receive(self, timeout: float = DEADLINE) -> Any:
        message, fd = await asyncio.wait_for(self.channel.receive(), timeout)
        if isinstance(message, CameraReady):
            assert fd is not None
            self.ready = message
            self.ring = Ring(message.ring, fd)
        else:
            assert fd is None
        return message

    async def expect(self, kind: type[Any], timeout: float = DEADLINE) -> Any:
        message = await self.receive(timeout)
        assert isinstance(message, kind), message
        return message

    def pixels(self, frame: FrameReady) -> np.ndarray:
        """A copy of the picture in the frame's slot."""
        assert self.ready is not None
        assert self.ring is not None
        region = Region(TensorSpec("picture", (self.ready.height, self.ready.width, 3), "uint8"), 0)
        return self.ring.array(frame.slot, region).copy()

    async def exit_code(self, timeout: float = DEADLINE) -> int:
        return await asyncio.wait_for(self.process.wait(), timeout)


StartClient = Callable[..., AbstractAsyncContextManager[CameraClient]]


@pytest.fixture
def start_camera(tmp_path: Path) -> StartClient:
    """`async with start_camera(config, slots=4) as client`: a started worker, ended with the block."""

    @asynccontextmanager
    async def start(config: CameraConfig, slots: int = 4) -> AsyncIterator[CameraClient]:
        process, channel = await spawn(
            "tidegauge.camera.worker", CameraEvent, environment={}, log=tmp_path / "worker.log"
        )
        client = CameraClient(process, channel)
        try:
            await channel.send(StartCamera(1, config, slots))
            yield client
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            channel.close()
            if client.ring is not None:
                client.ring.close()

    return start


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of three plain pictures, 32 wide and 16 high: blue, green, red; in the order of their names."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for index, name in enumerate(["a.png", "b.png", "c.png"]):
        pixels = np.zeros((16, 32, 3), np.uint8)
        pixels[..., index] = 200
        assert cv2.imwrite(os.fspath(folder / name), pixels)
    return folder


@pytest.fixture
def photos() -> Path:
    """The demo's photographs."""
    import tidegauge

    return Path(tidegauge.__file__).parent / "demo" / "data" / "photos"
