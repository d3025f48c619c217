"""When is a trace complete? The agent's way of moving traces, and two tempting ones, during real dumps of the board.

A mover that trusts the first close, or the full size, must lose data here: else these tests would prove nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx
import pytest
from watchdog.events import FileClosedEvent, FileModifiedEvent, FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from faults.many_tensors import expected_traces
from faults.small_board import HEIGHT, WIDTH, tiny_network
from tidegauge.agent.traces import TraceCollector, may_be_whole
from tidegauge.tidl import trace_names
from tidegauge.virtualboard import remote_log, tracing
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.network import TwinNetwork, load_artifacts
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.state import BoardState

PICTURE = np.random.default_rng(4).random((1, 3, HEIGHT, WIDTH), np.float32)


def data_id(name: str) -> int:
    parsed = trace_names.parse(name)
    assert parsed is not None
    return parsed.data_id


class Mover(Protocol):
    def start(self) -> None: ...

    async def finish(self) -> list[Path]: ...


class _Impatient(FileSystemEventHandler):
    """Moves a file as soon as it believes that it is complete, in the watching thread."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target
        self._observer = Observer()
        self.moved: dict[str, Path] = {}

    def start(self) -> None:
        self._target.mkdir()
        self._observer.schedule(self, str(self._source), event_filter=[FileClosedEvent, FileModifiedEvent])
        self._observer.start()

    async def finish(self) -> list[Path]:
        await asyncio.sleep(0.1)  # what was written has been told by then
        self._observer.stop()
        await asyncio.to_thread(self._observer.join)
        return list(self.moved.values())

    def move(self, name: str) -> None:
        if name not in self.moved and (self._source / name).exists():
            self.moved[name] = Path(shutil.move(self._source / name, self._target / name))


class FirstClose(_Impatient):
    def on_closed(self, event: FileSystemEvent) -> None:
        self.move(Path(str(event.src_path)).name)


class FullSize(_Impatient):
    def on_modified(self, event: FileSystemEvent) -> None:
        path = Path(str(event.src_path))
        if path.is_file() and path.stat().st_size and may_be_whole(path.name, path.stat().st_size):
            self.move(path.name)


@contextmanager
def log_server(folder: Path) -> Iterator[None]:
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=remote_log.serve, args=(folder, io.BytesIO(), stop, ready))
    thread.start()
    assert ready.wait(5)
    yield
    stop.set()
    thread.join()


class Case:
    def __init__(self, folder: Path, tiled: bool) -> None:
        self.artifacts, self.board, self.source = folder / "artifacts", folder / "vb", folder / "vb" / "tmp"
        self.source.mkdir(parents=True)
        onnx.save(tiny_network(), folder / "m.onnx")
        options = CompileOptions(calibration_frames=1, high_resolution_optimization=1 if tiled else 0)
        compile_model(folder / "m.onnx", self.artifacts, [{"input": PICTURE}], options)
        BoardState(trace_folder=str(self.source), trace_op_seconds=0.004, trace_write_level=1).save(self.board)
        self.target = folder / "moved"

    def dump(self, network: TwinNetwork) -> None:
        values = Twin(network).run({"input": PICTURE}, [layer.name for layer in network.tensors()])
        tracing.dump(self.board, "subgraph_0", network, values)

    async def arrived(self, mover: Mover) -> dict[str, str]:
        """SHA-256 of what the mover has brought, by name."""
        mover.start()
        with log_server(self.board):
            await asyncio.to_thread(self.dump, load_artifacts(self.artifacts))
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in await mover.finish()}


@pytest.mark.parametrize("tiled", [False, True])
def test_the_agent_brings_every_trace_whole(tmp_path: Path, tiled: bool) -> None:
    case = Case(tmp_path, tiled)
    arrived = asyncio.run(case.arrived(TraceCollector(case.source, case.target)))
    assert arrived == expected_traces(case.artifacts, PICTURE)
    assert not list(case.source.iterdir())


@pytest.mark.parametrize("tiled", [False, True])
def test_one_that_trusts_the_first_close_loses_what_is_written_after_it(tmp_path: Path, tiled: bool) -> None:
    """A mover that the machine holds up for all of a file's operations gets that one whole by luck."""
    case = Case(tmp_path, tiled)
    arrived = asyncio.run(case.arrived(FirstClose(case.source, case.target)))
    expected = expected_traces(case.artifacts, PICTURE)
    assert arrived.keys() == expected.keys()
    assert any(arrived[name] != expected[name] for name in expected)
    assert list(case.source.iterdir()), "and leaves the data where it was written"


def test_one_that_trusts_the_full_size_damages_super_tiled_traces(tmp_path: Path) -> None:
    case = Case(tmp_path, tiled=True)
    arrived = asyncio.run(case.arrived(FullSize(case.source, case.target)))
    expected = expected_traces(case.artifacts, PICTURE)
    damaged = {name for name in expected if arrived.get(name) != expected[name]}
    tiles = {layer.data_id: layer.tiles for layer in load_artifacts(case.artifacts).tensors()}
    assert {data_id(name) for name in damaged} == {i for i, count in tiles.items() if count > 1}


def test_a_trace_that_is_too_short_waits_for_the_end_of_the_run(tmp_path: Path) -> None:
    """The next one is opened while this one still lacks bytes: it isn't moved, so what comes later is not lost."""

    def name(data_id: int) -> str:
        return f"C7x_1_tidl_trace_subgraph_0_{data_id:04d}_0001_0001_00001_00003_00008x00004.y"

    async def run() -> list[Path]:
        collector = TraceCollector(tmp_path, tmp_path / "moved")
        collector.start()
        with (tmp_path / name(0)).open("wb", buffering=0) as slow:
            slow.write(bytes(95))
            for other in (1, 2):
                (tmp_path / name(other)).write_bytes(bytes(96))
            async with asyncio.timeout(10):
                while not (tmp_path / "moved" / name(1)).exists():  # noqa: ASYNC110 - a file sets no event
                    await asyncio.sleep(0.005)
            slow.write(b"1")
        return await collector.finish()

    found = asyncio.run(run())
    assert {path.name: path.stat().st_size for path in found} == {name(i): 96 for i in range(3)}
