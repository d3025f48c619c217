"""A camera that goes away and comes back, again and again: what the agent holds must not grow.

    PYTHONPATH=tests .venv/bin/python tests/benchmarks/bench_camera_reconnects.py [--count 10000] [--json FILE]

The agent's own camera service, real workers (forked, so that each costs milliseconds) with a simulated camera, whose
pictures are read from the ring. Each connection is a worker of its own, so nothing of a camera's library can grow; what
is measured is the process that starts, feeds and buries them. Exits 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.flapping_camera import FORKS
from tidegauge.agent.bus import Bus
from tidegauge.agent.camera import CameraService
from tidegauge.agent.config import SupervisionConfig
from tidegauge.agent.events import CameraDown
from tidegauge.agent.frames import FrameFeed, PendingFrame
from tidegauge.camera.config import CameraConfig
from tidegauge.evaluation.figures import Figure, Report
from tidegauge.evaluation.process_costs import Costs, costs
from tidegauge.evaluation.soak import FEW, MEMORY_GOAL, MIB, growth
from tidegauge.metrics import AgentMetrics
from tidegauge.pipeline.layout import Region
from tidegauge.pipeline.messages import AttachFrames
from tidegauge.pipeline.ring import Ring
from tidegauge.tensors import TensorSpec

#: How often the process is looked at.
ROUNDS = 60
#: Seconds for one connection, on a machine that is busy with much else.
PATIENCE = 120.0
PICTURE = Region(TensorSpec("picture", (48, 64, 3), "uint8"), 0)


class FlappingService(CameraService):
    worker_module = "benchmarks.flapping_camera"


class Pipeline:
    """In the pipeline's place: looks at each picture in the camera's ring, and gives its slot back."""

    def __init__(self) -> None:
        self.pictures = 0
        self._feed = FrameFeed(lambda _: None)

    def attach_frames(self, attach: AttachFrames, ring: Ring, free: Callable[[int], None]) -> None:
        self._feed.attach(attach, ring, free)

    def detach_frames(self) -> None:
        self._feed.detach()

    def offer(self, frame: PendingFrame) -> None:
        assert self._feed.source is not None
        pixels = self._feed.source.ring.array(frame.slot, PICTURE)
        if not (pixels == pixels[0, 0, 0]).all() or not 1 <= pixels[0, 0, 0] <= 2:
            raise ValueError("a torn picture")
        self.pictures += 1
        self._feed.free(frame)


@contextmanager
def forks(folder: Path) -> Iterator[None]:
    """The process that forks workers, and where they find it."""
    path = folder / "forks"
    os.environ[FORKS] = str(path)
    tests = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "benchmarks.flapping_camera", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError("the process that forks workers did not start")
            yield
        finally:
            process.kill()


async def reconnect(folder: Path, count: int, progress: Callable[[str], None]) -> tuple[list[Costs], int]:
    """Costs of this process after each share of `count` connections, and pictures that came. Raises TimeoutError."""
    bus, pipeline, ended = Bus(), Pipeline(), asyncio.Queue[str]()
    bus.on(CameraDown, lambda event: ended.put_nowait(event.sentence))
    supervision = SupervisionConfig(restart_first=0.001, restart_most=0.001)
    stand_in: Any = pipeline
    service = FlappingService(
        CameraConfig("rtsp", "rtsp://camera/"), supervision, stand_in, bus, AgentMetrics("m"), folder
    )
    running = asyncio.create_task(service.run())
    seen: list[Costs] = []
    for number in range(1, count + 1):
        async with asyncio.timeout(PATIENCE):
            sentence = await ended.get()
        if "the camera has gone away" not in sentence:
            raise RuntimeError(f"connection {number} ended otherwise: {sentence}")
        if number * ROUNDS // count > len(seen):
            gc.collect()
            seen.append(costs(os.getpid()))
            if len(seen) % 6 == 0:
                last = seen[-1]
                progress(f"{number}: {last.resident / MIB:.1f} MiB, {last.descriptors} descriptors")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return seen, pipeline.pictures


def evaluate(count: int, progress: Callable[[str], None]) -> Report:
    with tempfile.TemporaryDirectory(prefix="tidegauge-camera-") as folder, forks(Path(folder)):
        seen, pictures = asyncio.run(reconnect(Path(folder), count, progress))
    group = "nothing grows"
    return Report(
        0,
        count < 10_000,
        [
            Figure("what was done", "connections", count),
            Figure("what was done", "pictures", pictures, "", 2.0 * (count - 1)),
            Figure(group, "resident memory", growth([each.resident / MIB for each in seen]), "MiB", MEMORY_GOAL, "<="),
            Figure(group, "descriptors", growth([each.descriptors for each in seen]), "", FEW, "<="),
            Figure(group, "threads", growth([each.threads for each in seen]), "", FEW, "<="),
            Figure(group, "mappings of shared memory", growth([each.shared for each in seen]), "", FEW, "<="),
        ],
        [],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    report = evaluate(given.count, lambda line: print(line, file=sys.stderr, flush=True))
    for figure in report.figures:
        goal = "" if figure.goal is None else f"{figure.relation} {figure.goal:g} {'met' if figure.met else 'MISSED'}"
        print(f"{figure.group}: {figure.name:<28} {figure.value:>10.4g} {figure.unit:<4} {goal}")
    if given.json is not None:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
