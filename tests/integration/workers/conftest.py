"""Real worker processes on real channels, a tiny model compiled for the virtual board, and a fake accelerator."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from worker_harness import (  # noqa: E402
    HEIGHT,
    WIDTH,
    Camera,
    Pipelines,
    Start,
    WorkerProcess,
    random_pictures,
    tiny_enhancer,
)

from tidegauge.pipeline.channel import Channel  # noqa: E402
from tidegauge.pipeline.layout import RingSpec  # noqa: E402
from tidegauge.pipeline.ring import Ring  # noqa: E402
from tidegauge.pipeline.spawn import worker_environment  # noqa: E402
from tidegauge.profile import Output, Preprocess, Profile  # noqa: E402
from tidegauge.runtimes.session import Array  # noqa: E402
from tidegauge.virtualboard.compiler import compile_model  # noqa: E402
from tidegauge.virtualboard.options import CompileOptions  # noqa: E402
from tidegauge.virtualboard.state import BoardState  # noqa: E402


@pytest.fixture(scope="session")
def pictures() -> list[Array]:
    return random_pictures(8)


@pytest.fixture(scope="session")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """The profile of the tiny enhancer, compiled once."""
    folder = tmp_path_factory.mktemp("enhancer")
    model = folder / "tiny_enhancer.onnx"
    onnx.save(tiny_enhancer(), model)
    frames = [
        {"input": (picture[None].transpose(0, 3, 1, 2)[:, ::-1] / 255).astype(np.float32)}
        for picture in random_pictures(8)
    ]
    compile_model(model, folder / "artifacts", frames, CompileOptions(calibration_frames=8))
    scale = 1 / 255
    return Profile(
        name="tiny-enhancer",
        runtime="onnx",
        model=str(model),
        artifacts=str(folder / "artifacts"),
        preprocess=Preprocess(WIDTH, HEIGHT, scale=(scale, scale, scale)),
        # Three display levels: what the quantisation of a random network costs is no fault.
        output=Output("enhanced", "image", step=3 / 255),
    )


@pytest.fixture
def copied_artifacts(profile: Profile, tmp_path: Path) -> Callable[[], Path]:
    """A copy of the artifacts to damage."""

    def copy() -> Path:
        return Path(shutil.copytree(profile.artifacts, tmp_path / "artifacts"))

    return copy


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """The folder of a virtual board that dumps its traces into its own `traces`."""
    folder = tmp_path / "board"
    (folder / "traces").mkdir(parents=True)
    BoardState(trace_folder=str(folder / "traces")).save(folder)
    return folder


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """The folder that steers the fake accelerator."""
    folder = tmp_path / "fake"
    folder.mkdir()
    return folder


@pytest.fixture
def start(tmp_path: Path, board: Path, fake: Path) -> Iterator[Start]:
    """`start(module, accepts, **environment)` → WorkerProcess."""
    started: list[WorkerProcess] = []
    base = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        "TIDEGAUGE_VIRTUALBOARD": str(board),
        "FAKE_ACCELERATOR": str(fake),
    }

    def begin(module: str, accepts: Any, **environment: str) -> WorkerProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log = tmp_path / f"worker-{len(started)}.log"
        with theirs, log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                env=worker_environment(base, environment, theirs.fileno()),
            )
        worker = WorkerProcess(process, Channel(ours, accepts), log)
        started.append(worker)
        return worker

    yield begin
    for worker in started:
        worker.channel.close()
        if worker.process.poll() is None:
            worker.process.kill()
        worker.process.wait()


@pytest.fixture
def camera() -> Iterator[Callable[..., Camera]]:
    """`camera(generation=1, height=…, width=…)`: a frame ring of three slots."""
    rings: list[Ring] = []

    def make(generation: int = 1, height: int = HEIGHT, width: int = WIDTH) -> Camera:
        ring = Ring.create(RingSpec(3, height * width * 3), "test-frames")
        rings.append(ring)
        return Camera(generation, ring, height, width)

    yield make
    for ring in rings:
        ring.close()


@pytest.fixture
def pipeline(start: Start, profile: Profile) -> Iterator[Pipelines]:
    """`pipeline(generation=1, module=…, results_socket="")` → Pipeline, started and ready."""
    pipelines = Pipelines(start, profile)
    yield pipelines
    for ring in pipelines.rings:
        ring.close()
