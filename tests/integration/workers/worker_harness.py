"""What the workers' tests share: a tiny model, pictures, and the agent's side of a worker process."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tidegauge.pipeline.channel import Channel
from tidegauge.pipeline.layout import Region
from tidegauge.pipeline.messages import (
    AttachFrames,
    FrameRan,
    PipelineEvent,
    PipelineReady,
    SessionOpened,
    StartPipeline,
)
from tidegauge.pipeline.ring import Ring
from tidegauge.profile import Profile
from tidegauge.runtimes.session import Array
from tidegauge.tensors import TensorSpec

#: Generous: the shadow worker is in the idle class, and the machine may be busy.
DEADLINE = 90.0
HEIGHT, WIDTH = 24, 32
VIRTUAL = "tidegauge.virtualboard.onnxruntime_tidl"
FAKE = "fake_accelerator"

M = TypeVar("M")


def tiny_enhancer() -> onnx.ModelProto:
    """Two convolutions with random weights and a sigmoid: `input` → `enhanced`, both float32 [1,3,24,32] in 0…1."""
    rng = np.random.default_rng(7)

    def weights(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(rng.normal(0, 0.25, shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["input", "w1", "b1"], ["features_raw"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["features_raw"], ["features"]),
        helper.make_node("Conv", ["features", "w2", "b2"], ["logits"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["logits"], ["enhanced"]),
    ]
    shape = [1, 3, HEIGHT, WIDTH]
    graph = helper.make_graph(
        nodes,
        "tiny_enhancer",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("enhanced", TensorProto.FLOAT, shape)],
        [weights("w1", 8, 3, 3, 3), weights("b1", 8), weights("w2", 3, 8, 3, 3), weights("b2", 3)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def random_pictures(count: int, height: int = HEIGHT, width: int = WIDTH) -> list[Array]:
    """Coarse random patches with a little noise, BGR, 8 bits."""
    rng = np.random.default_rng(11)
    coarse = rng.integers(0, 256, (count, 4, 4, 3)).astype(np.float64)
    rows = np.linspace(0, 3, height).astype(int)
    columns = np.linspace(0, 3, width).astype(int)
    noise = rng.normal(0, 6, (count, height, width, 3))
    return list(np.clip(coarse[:, rows][:, :, columns] + noise, 0, 255).astype(np.uint8))


def events(fake: Path) -> list[str]:
    """What the fake accelerator has noted so far."""
    path = fake / "events"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def until_events(fake: Path, event: str, count: int) -> None:
    """Wait until the fake accelerator has noted an event so often."""
    deadline = time.monotonic() + DEADLINE
    while events(fake).count(event) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@dataclass
class WorkerProcess:
    """A worker as the agent sees it, with blocking calls that have a deadline."""

    process: subprocess.Popen[bytes]
    channel: Channel[Any]
    log: Path

    def send(self, message: msgspec.Struct, fd: int | None = None) -> None:
        self.channel.send(message, fd)

    def receive(self, kind: type[M], timeout: float = DEADLINE) -> tuple[M, int | None]:
        message, fd = self.channel.receive(timeout)
        while isinstance(message, SessionOpened | FrameRan) and not isinstance(message, kind):
            message, fd = self.channel.receive(timeout)  # only the agent's deadlines and its next frame care
        assert isinstance(message, kind), f"{message}\n{self.log.read_text()}"
        return message, fd

    def ask(self, message: msgspec.Struct, kind: type[M]) -> M:
        self.send(message)
        return self.receive(kind)[0]

    def ended(self, timeout: float = 5.0) -> int:
        """The exit code, once the process has ended by itself."""
        return self.process.wait(timeout)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


Start = Callable[..., WorkerProcess]


@dataclass
class Camera:
    """The agent's and the camera's side of a frame ring."""

    generation: int
    ring: Ring
    height: int
    width: int

    def attach_to(self, pipeline: WorkerProcess) -> None:
        pipeline.send(AttachFrames(self.generation, self.width, self.height, self.ring.spec), self.ring.fd)

    def put(self, slot: int, picture: Array) -> None:
        spec = TensorSpec("picture", (self.height, self.width, 3), "uint8")
        self.ring.array(slot, Region(spec, 0))[...] = picture


@dataclass
class Pipeline:
    """A pipeline worker that is up, and its sample ring."""

    worker: WorkerProcess
    ready: PipelineReady
    samples: Ring


@dataclass
class Pipelines:
    start: Start
    profile: Profile
    rings: list[Ring] = field(default_factory=list)

    def __call__(
        self, generation: int = 1, module: str = VIRTUAL, results_socket: str = "", profile: Profile | None = None
    ) -> Pipeline:
        worker = self.start("tidegauge.pipeline.worker", PipelineEvent)
        worker.send(StartPipeline(generation, profile or self.profile, module, 4, results_socket))
        ready, fd = worker.receive(PipelineReady)
        assert fd is not None
        ring = Ring(ready.ring, fd)
        self.rings.append(ring)
        return Pipeline(worker, ready, ring)
