from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_harness import FAKE, VIRTUAL, events, until_events

from tidegauge.pipeline.messages import Failed, RunTensor, StartTrace, Stop, TensorDone, TraceDone, TraceEvent
from tidegauge.pipeline.preprocess import input_tensor
from tidegauge.pipeline.process import output_digest
from tidegauge.profile import Profile
from tidegauge.runtimes.session import Array
from tidegauge.tidl.trace_names import expected_bytes, parse
from tidegauge.virtualboard.network import load_artifacts
from tidegauge.virtualboard.remote_log import serve

Make = Callable[..., Any]
MODULE = "tidegauge.pipeline.trace_worker"


@pytest.fixture
def remote_log(board: Path) -> Iterator[None]:
    """The board's remote-log server, without which a dump hangs."""
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=serve, args=(board, io.BytesIO(), stop, ready))
    thread.start()
    assert ready.wait(10)
    yield
    stop.set()
    thread.join(10)


@pytest.fixture
def tensor_file(tmp_path: Path, profile: Profile, pictures: list[Array]) -> Path:
    path = tmp_path / "input.bin"
    path.write_bytes(input_tensor(pictures[0], profile.preprocess).tobytes())
    return path


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.mark.usefixtures("remote_log")
@pytest.mark.parametrize("level", [3, 4])
def test_it_leaves_every_layers_trace_and_the_outputs(
    start: Make, pipeline: Make, board: Path, profile: Profile, tensor_file: Path, work: Path, level: int
) -> None:
    worker = start(MODULE, TraceEvent)
    done = worker.ask(StartTrace(profile, VIRTUAL, str(tensor_file), level, str(work)), TraceDone)
    assert worker.ended() == 0

    found = {parse(path.name): path for path in (board / "traces").iterdir()}
    assert None not in found
    traced = {(trace.data_id, trace.kind) for trace in found if trace is not None}
    wanted = set()
    for layer in load_artifacts(Path(profile.artifacts)).tensors():
        kinds = ["float"] if layer.quant.is_float else ["y", "float"] if level == 4 else ["y"]
        wanted |= {(layer.data_id, kind) for kind in kinds}
    assert traced == wanted
    for trace, path in found.items():
        assert trace is not None
        elements = expected_bytes(trace.dims, "float32") // 4
        assert path.stat().st_size in ([4 * elements] if trace.kind == "float" else [elements, 2 * elements])

    assert [path.name for path in work.iterdir()] == ["0.bin"]
    (spec,) = done.outputs
    output = np.frombuffer((work / "0.bin").read_bytes(), spec.dtype).reshape(spec.shape)
    assert done.digest == output_digest([output])
    assert done.benchmark["ts:subgraph_subgraph_0_proc_start"] > 0
    if level == 3:  # the traces must be of what the production session computes
        assert pipeline().worker.ask(RunTensor(1, str(tensor_file)), TensorDone).digest == done.digest


def test_the_session_is_closed_before_the_agent_is_told(
    start: Make, fake: Path, profile: Profile, tensor_file: Path, work: Path
) -> None:
    worker = start(MODULE, TraceEvent)
    worker.ask(StartTrace(profile, FAKE, str(tensor_file), 3, str(work)), TraceDone)
    assert events(fake) == ["open 3", "run", "freed"]
    assert worker.ended() == 0


def test_an_input_of_the_wrong_size_is_refused_before_the_run(
    start: Make, fake: Path, profile: Profile, tensor_file: Path, work: Path
) -> None:
    os.truncate(tensor_file, 100)
    worker = start(MODULE, TraceEvent)
    failed = worker.ask(StartTrace(profile, FAKE, str(tensor_file), 3, str(work)), Failed)
    assert failed.kind == "input_file"
    assert f"{tensor_file} has 100 bytes" in failed.problem
    assert "has 9216" in failed.problem
    assert worker.ended() == 1
    assert events(fake) == ["open 3", "freed"]


def test_a_work_folder_that_is_missing_is_found_before_the_session_is_opened(
    start: Make, fake: Path, profile: Profile, tensor_file: Path, work: Path
) -> None:
    worker = start(MODULE, TraceEvent)
    failed = worker.ask(StartTrace(profile, FAKE, str(tensor_file), 3, str(work / "none")), Failed)
    assert failed.kind == "work_folder"
    assert str(work / "none") in failed.problem
    assert events(fake) == []
    assert worker.ended() == 1


def test_a_run_on_the_cpu_is_no_trace(start: Make, fake: Path, profile: Profile, tensor_file: Path, work: Path) -> None:
    (fake / "cpu_only").touch()
    worker = start(MODULE, TraceEvent)
    failed = worker.ask(StartTrace(profile, FAKE, str(tensor_file), 3, str(work)), Failed)
    assert failed.kind == "not_offloaded"
    assert events(fake)[-1] == "freed"
    assert list(work.iterdir()) == []
    assert worker.ended() == 1


def test_stop_and_sigterm_before_the_run_begin_no_dump(
    start: Make, fake: Path, profile: Profile, tensor_file: Path, work: Path
) -> None:
    (fake / "slow_create").touch()
    message = StartTrace(profile, FAKE, str(tensor_file), 3, str(work))
    worker = start(MODULE, TraceEvent)
    worker.send(message)
    worker.send(Stop())
    assert worker.ended(15) == 0
    assert events(fake) == ["creating", "open 3", "freed"]
    worker = start(MODULE, TraceEvent)
    worker.send(message)
    until_events(fake, "creating", 2)
    worker.signal(signal.SIGTERM)
    assert worker.ended(15) == 0
    assert events(fake)[3:] == ["creating", "open 3", "freed"]
