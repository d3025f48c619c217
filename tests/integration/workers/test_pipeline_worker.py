from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from worker_harness import FAKE, VIRTUAL, events, until_events

from tidegauge.pipeline.channel import ChannelClosed
from tidegauge.pipeline.layout import sample_layout
from tidegauge.pipeline.messages import (
    Failed,
    FrameDone,
    FrameRan,
    FrameSkipped,
    PipelineEvent,
    RunFrame,
    RunTensor,
    StartPipeline,
    Stop,
    TensorDone,
)
from tidegauge.pipeline.preprocess import input_tensor
from tidegauge.pipeline.process import output_digest
from tidegauge.pipeline.results import ResultHeader
from tidegauge.profile import Profile
from tidegauge.runtimes.session import Array

Make = Callable[..., Any]


def frame(camera: Any, pipeline: Any, picture: Array, frame_id: int, sample_slot: int = -1) -> FrameDone:
    camera.put(1, picture)
    run = RunFrame(frame_id, camera.generation, 1, captured=12.5, sample_slot=sample_slot)
    done: FrameDone = pipeline.worker.ask(run, FrameDone)
    return done


def test_a_frame_becomes_an_answer_a_sample_and_statistics(
    pipeline: Make, camera: Make, profile: Profile, pictures: list[Array]
) -> None:
    running, source = pipeline(generation=5), camera(generation=3)
    ready = running.ready
    assert (ready.generation, ready.runtime, ready.ring.slots) == (5, "onnx_tidl", 4)
    assert ready.offload.virtual
    assert ready.offload.subgraphs == ("subgraph_0",)
    assert [spec.name for spec in (*ready.inputs, *ready.outputs)] == ["input", "enhanced"]
    assert "numpy" in ready.libraries
    source.attach_to(running.worker)

    done = frame(source, running, pictures[0], 41, sample_slot=2)

    assert (done.frame_id, done.camera_generation, done.slot, done.captured, done.sample_slot) == (41, 3, 1, 12.5, 2)
    assert 0 < done.device_seconds < 5
    layout = sample_layout(ready.inputs, ready.outputs)
    recorded = running.samples.array(2, layout.inputs[0])
    np.testing.assert_array_equal(recorded, input_tensor(pictures[0], profile.preprocess), strict=True)
    output = running.samples.array(2, layout.device[0])
    assert done.digest == output_digest([output])
    assert output.std() > 0.01, "a real answer to a picture is no constant"
    (stats,) = done.outputs
    assert (stats.name, stats.count, stats.finite) == ("enhanced", output.size, output.size)
    assert (stats.minimum, stats.maximum) == (output.min(), output.max())
    assert stats.mean == pytest.approx(float(output.mean()), rel=1e-5)
    assert done.summary["maximum"] == output.max()
    for slot in (0, 1, 3):
        assert not any(running.samples.array(slot, region).any() for region in (*layout.inputs, *layout.device))


def test_the_same_tensor_gives_the_same_bits_from_a_frame_and_from_a_file(
    pipeline: Make, camera: Make, tmp_path: Path, pictures: list[Array]
) -> None:
    running, source = pipeline(), camera()
    source.attach_to(running.worker)
    first = frame(source, running, pictures[0], 1, sample_slot=0)
    assert frame(source, running, pictures[1], 2).digest != first.digest
    assert frame(source, running, pictures[0], 3).digest == first.digest
    layout = sample_layout(running.ready.inputs, running.ready.outputs)
    path = tmp_path / "golden.bin"
    path.write_bytes(running.samples.read(0, layout.inputs[0]))

    done = running.worker.ask(RunTensor(7, str(path), sample_slot=3), TensorDone)

    assert (done.request, done.digest, done.sample_slot) == (7, first.digest, 3)
    assert done.outputs == first.outputs
    for region in (*layout.inputs, *layout.device):
        assert running.samples.read(3, region) == running.samples.read(0, region)


def test_another_camera_with_another_size_takes_over(pipeline: Make, camera: Make, pictures: list[Array]) -> None:
    running, old = pipeline(), camera(generation=1)
    run = RunFrame(1, camera_generation=1, slot=0, captured=0.0, sample_slot=2)
    assert running.worker.ask(run, FrameSkipped) == FrameSkipped(1, 1, 0, 2), "nothing is attached yet"
    old.attach_to(running.worker)
    frame(old, running, pictures[0], 2)
    new = camera(generation=2, height=96, width=128)
    new.attach_to(running.worker)
    assert running.worker.ask(run, FrameSkipped).camera_generation == 1
    done = frame(new, running, np.full((96, 128, 3), 200, np.uint8), 3)
    assert done.camera_generation == 2


def test_raw_outputs_reach_the_products_socket(
    pipeline: Make, camera: Make, tmp_path: Path, pictures: list[Array]
) -> None:
    path = tmp_path / "results.sock"
    running, source = pipeline(results_socket=str(path)), camera()
    source.attach_to(running.worker)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(10)
        client.connect(str(path))
        with client.makefile("rb") as stream:
            done = frame(source, running, pictures[0], 1, sample_slot=0)
            while not select_readable(client):  # the server had not yet taken this client in
                done = frame(source, running, pictures[0], done.frame_id + 1, sample_slot=0)
            length = int.from_bytes(stream.read(4), "little")
            header = msgspec.msgpack.decode(stream.read(length), type=ResultHeader)
            data = stream.read(header.nbytes)
    layout = sample_layout(running.ready.inputs, running.ready.outputs)
    assert header.frame_id <= done.frame_id
    assert header.captured == 12.5
    assert [(tensor.name, tensor.shape, tensor.dtype) for tensor in header.tensors] == [
        ("enhanced", (1, 3, 24, 32), "float32")
    ]
    assert data == running.samples.read(0, layout.device[0])
    running.worker.send(Stop())
    assert running.worker.ended() == 0
    assert not path.exists()


def select_readable(sock: socket.socket) -> bool:
    sock.settimeout(0.2)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False
    finally:
        sock.settimeout(10)


def test_a_golden_tensor_of_the_wrong_size_is_refused_by_name(pipeline: Make, tmp_path: Path) -> None:
    running = pipeline()
    path = tmp_path / "golden.bin"
    path.write_bytes(bytes(100))
    failed = running.worker.ask(RunTensor(1, str(path)), Failed)
    assert failed.kind == "input_file"
    assert failed.problem == f"{path} has 100 bytes, but the model's input (input [1, 3, 24, 32] float32) has 9216"
    assert failed.cure
    assert running.worker.ended() == 1


def test_incomplete_artifacts_are_a_failure_and_no_answer_from_the_cpu(
    start: Make, profile: Profile, copied_artifacts: Callable[[], Path]
) -> None:
    artifacts = copied_artifacts()
    (artifacts / "allowedNode.txt").unlink()
    worker = start("tidegauge.pipeline.worker", PipelineEvent)
    wrong = msgspec.structs.replace(profile, artifacts=str(artifacts))
    failed = worker.ask(StartPipeline(1, wrong, VIRTUAL, 4, ""), Failed)
    assert failed.kind in ("open_failed", "not_offloaded")
    assert "allowedNode.txt" in failed.problem
    assert failed.cure
    assert worker.ended() == 1


def test_a_silent_fall_back_to_the_cpu_is_found_out(start: Make, profile: Profile, fake: Path) -> None:
    (fake / "cpu_only").touch()
    worker = start("tidegauge.pipeline.worker", PipelineEvent)
    failed = worker.ask(StartPipeline(1, profile, FAKE, 4, ""), Failed)
    assert failed.kind == "not_offloaded"
    assert "CPUExecutionProvider" in failed.problem
    assert worker.ended() == 1
    assert events(fake)[-1] == "freed"


def test_a_session_that_can_not_be_made_is_told(start: Make, profile: Profile, fake: Path) -> None:
    (fake / "fail_create").touch()
    worker = start("tidegauge.pipeline.worker", PipelineEvent)
    failed = worker.ask(StartPipeline(1, profile, FAKE, 4, ""), Failed)
    assert failed.kind == "open_failed"
    assert "Create state function failed. Return value:-1" in failed.problem
    assert worker.ended() == 1


def test_a_failed_run_ends_the_worker_with_the_session_freed_before_it_is_told(
    pipeline: Make, camera: Make, fake: Path, pictures: list[Array]
) -> None:
    running, source = pipeline(module=FAKE), camera()
    source.attach_to(running.worker)
    frame(source, running, pictures[0], 1)
    (fake / "fail_run").touch()
    failed = running.worker.ask(RunFrame(2, 1, 1, 0.0), Failed)
    assert failed.kind == "device_error"
    assert "TIDL Compute Invoke Failed." in failed.problem
    assert events(fake)[-1] == "freed"
    assert running.worker.ended() == 1
    assert "TIDL Compute Invoke Failed." in running.worker.log.read_text()


def test_a_profile_that_is_not_the_models_is_refused_by_its_key(start: Make, profile: Profile) -> None:
    wrong = msgspec.structs.replace(profile, output=msgspec.structs.replace(profile.output, name="brightened"))
    worker = start("tidegauge.pipeline.worker", PipelineEvent)
    failed = worker.ask(StartPipeline(1, wrong, VIRTUAL, 4, ""), Failed)
    assert failed.kind == "profile_mismatch"
    assert "has no output brightened" in failed.problem
    assert failed.cure == "set [output] name to one of: enhanced"
    assert worker.ended() == 1


def test_after_kill_9_a_new_generation_has_new_ipc_and_the_same_answers(
    pipeline: Make, camera: Make, tmp_path: Path, pictures: list[Array]
) -> None:
    path = str(tmp_path / "results.sock")
    source = camera()
    first = pipeline(generation=1, results_socket=path)
    source.attach_to(first.worker)
    before = frame(source, first, pictures[0], 1, sample_slot=0)
    layout = sample_layout(first.ready.inputs, first.ready.outputs)
    sample = first.samples.read(0, layout.device[0])
    first.worker.signal(signal.SIGKILL)
    assert first.worker.ended() == -signal.SIGKILL
    with pytest.raises(ChannelClosed):
        first.worker.channel.receive(5)

    second = pipeline(generation=2, results_socket=path)
    source.attach_to(second.worker)
    after = frame(source, second, pictures[0], 2, sample_slot=0)

    assert os.fstat(first.samples.fd).st_ino != os.fstat(second.samples.fd).st_ino
    assert after.digest == before.digest
    assert first.samples.read(0, layout.device[0]) == sample, "what the agent still reads stays readable"
    assert second.ready.generation == 2


def test_sigint_is_the_agents_and_sigterm_leaves_in_order(
    pipeline: Make, camera: Make, fake: Path, pictures: list[Array]
) -> None:
    running, source = pipeline(module=FAKE), camera()
    source.attach_to(running.worker)
    running.worker.signal(signal.SIGINT)
    frame(source, running, pictures[0], 1)
    assert "freed" not in events(fake)
    running.worker.signal(signal.SIGTERM)
    assert running.worker.ended(timeout=5) == 0
    assert events(fake)[-1] == "freed"


def test_sigterm_during_a_run_lets_it_finish_and_frees_the_session(
    pipeline: Make, camera: Make, fake: Path, pictures: list[Array]
) -> None:
    running, source = pipeline(module=FAKE), camera()
    source.attach_to(running.worker)
    (fake / "slow").touch()
    source.put(0, pictures[0])
    runs = events(fake).count("run")
    for frame_id in range(3):  # a queue of work that must not delay the leaving
        running.worker.send(RunFrame(frame_id, 1, 0, 0.0))
    until_events(fake, "run", runs + 1)
    running.worker.signal(signal.SIGTERM)
    assert running.worker.receive(FrameDone)[0].frame_id == 0
    assert running.worker.ended(timeout=5) == 0
    assert events(fake).count("run") == runs + 1
    assert events(fake)[-1] == "freed"


def test_it_does_not_outlive_the_channel_and_stop_before_start_is_fine(start: Make, pipeline: Make, fake: Path) -> None:
    running = pipeline(module=FAKE)
    running.worker.channel.close()
    assert running.worker.ended() == 0
    assert events(fake)[-1] == "freed"
    idle = start("tidegauge.pipeline.worker", PipelineEvent)
    idle.send(Stop())
    assert idle.ended(10) == 0


def test_a_slot_that_does_not_exist_is_the_agents_fault(pipeline: Make, camera: Make) -> None:
    running, source = pipeline(), camera()
    source.attach_to(running.worker)
    failed = running.worker.ask(RunFrame(1, 1, slot=0, captured=0.0, sample_slot=4), Failed)
    assert (failed.kind, failed.problem) == ("protocol", "RunFrame: slot 4 of a ring of 4")


def test_an_answer_is_told_while_the_next_frame_is_on_the_accelerator(
    pipeline: Make, camera: Make, fake: Path, pictures: list[Array]
) -> None:
    running, source = pipeline(module=FAKE), camera()
    source.attach_to(running.worker)
    source.put(0, pictures[0])
    source.put(1, pictures[1])
    running.worker.send(RunFrame(1, 1, slot=0, captured=1.0))
    assert running.worker.receive(FrameRan)[0].frame_id == 1
    (fake / "slow").touch()
    ran = events(fake).count("run")
    running.worker.send(RunFrame(2, 1, slot=1, captured=2.0))
    until_events(fake, "run", ran + 1)

    kinds = [running.worker.channel.receive(60.0)[0] for _ in range(3)]

    assert [(type(each), each.frame_id) for each in kinds] == [(FrameDone, 1), (FrameRan, 2), (FrameDone, 2)]
    running.worker.send(RunFrame(3, 1, slot=0, captured=3.0))
    running.worker.send(RunFrame(4, 2, slot=0, captured=4.0))
    kinds = [running.worker.channel.receive(60.0)[0] for _ in range(3)]
    assert [(type(each), each.frame_id) for each in kinds] == [(FrameRan, 3), (FrameDone, 3), (FrameSkipped, 4)]


def test_an_answer_that_nothing_follows_is_told_all_the_same(
    pipeline: Make, camera: Make, pictures: list[Array]
) -> None:
    running, source = pipeline(), camera()
    source.attach_to(running.worker)
    frame(source, running, pictures[0], 1)
    frame(source, running, pictures[0], 2)
    running.worker.send(RunFrame(3, 1, slot=1, captured=0.0))
    running.worker.send(Stop())
    assert running.worker.receive(FrameDone)[0].frame_id == 3
    assert running.worker.ended(60) == 0


def test_a_results_socket_that_is_taken_is_told(start: Make, profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "results.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen()
        worker = start("tidegauge.pipeline.worker", PipelineEvent)
        failed = worker.ask(StartPipeline(1, profile, VIRTUAL, 4, str(path)), Failed)
        assert (failed.kind, failed.problem) == (
            "results_socket",
            f"another process serves the results socket {path}",
        )
        assert worker.ended() == 1
