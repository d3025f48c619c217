from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import pytest
from worker_harness import WorkerProcess

from tidegauge.pipeline.layout import RingSpec, SampleLayout, sample_layout
from tidegauge.pipeline.messages import (
    AttachSamples,
    Failed,
    FrameDone,
    LossMeasured,
    MeasureSample,
    RunFrame,
    SampleFailed,
    ShadowEvent,
    ShadowReady,
    StartShadow,
    Stop,
)
from tidegauge.pipeline.preprocess import input_tensor
from tidegauge.pipeline.process import output_digest
from tidegauge.pipeline.ring import Ring
from tidegauge.profile import Profile
from tidegauge.runtimes.session import Array
from tidegauge.tensors import TensorSpec
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.state import inject

Make = Callable[..., Any]


@dataclass
class Shadow:
    """A shadow worker that is up."""

    worker: WorkerProcess
    ready: ShadowReady

    def attach(self, generation: int, outputs: tuple[TensorSpec, ...], ring: Ring) -> None:
        self.worker.send(AttachSamples(generation, self.ready.inputs, outputs, ring.spec), ring.fd)

    def measure(
        self, sample_id: int, slot: int, generation: int = 1, golden: int = -1, inner: bool = False
    ) -> LossMeasured:
        message = MeasureSample(sample_id, slot, generation, frame_id=100 + sample_id, golden=golden, inner=inner)
        return self.worker.ask(message, LossMeasured)


@dataclass
class Samples:
    """A sample ring as a pipeline worker fills it."""

    ring: Ring
    layout: SampleLayout

    def put(self, slot: int, tensor: Array, output: Array) -> None:
        self.ring.array(slot, self.layout.inputs[0])[...] = tensor
        self.ring.array(slot, self.layout.device[0])[...] = output


@pytest.fixture
def shadow(start: Make, profile: Profile) -> Shadow:
    worker = start("tidegauge.shadow.worker", ShadowEvent)
    return Shadow(worker, worker.ask(StartShadow(9, profile), ShadowReady))


@pytest.fixture
def samples(shadow: Shadow) -> Iterator[Samples]:
    layout = sample_layout(shadow.ready.inputs, shadow.ready.outputs)
    ring = Ring.create(RingSpec(3, layout.nbytes), "test-samples")
    shadow.attach(1, shadow.ready.outputs, ring)
    yield Samples(ring, layout)
    ring.close()


@pytest.fixture
def tensors(profile: Profile, pictures: list[Array]) -> list[Array]:
    return [input_tensor(picture, profile.preprocess) for picture in pictures]


@pytest.fixture
def reference(profile: Profile) -> Callable[[Array], Array]:
    """Stock ONNX Runtime, asked directly."""
    session = onnxruntime.InferenceSession(profile.model, providers=["CPUExecutionProvider"])
    return lambda tensor: np.asarray(session.run(None, {"input": tensor})[0])


def test_it_takes_the_lowest_class_with_every_thread_and_leaves_on_stop(shadow: Shadow) -> None:
    assert (shadow.ready.generation, shadow.ready.runtime) == (9, "onnx_cpu")
    assert [spec.name for spec in (*shadow.ready.inputs, *shadow.ready.outputs)] == ["input", "enhanced"]
    threads = [int(entry.name) for entry in Path(f"/proc/{shadow.worker.process.pid}/task").iterdir()]
    assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_IDLE}
    assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {19}
    assert "not permitted" not in shadow.worker.log.read_text()
    shadow.worker.send(Stop())
    assert shadow.worker.ended() == 0


def test_inner_tensors_are_told_where_they_are_asked_for_and_change_nothing_else(
    shadow: Shadow, samples: Samples, tensors: list[Array], reference: Callable[[Array], Array]
) -> None:
    samples.put(0, tensors[0], reference(tensors[0]))
    plain = shadow.measure(1, 0)
    asked = shadow.measure(2, 0, inner=True)
    assert set(plain.ranges) == {"input", "enhanced"}
    assert set(asked.ranges) == {"input", "enhanced", "features_raw", "features", "logits"}
    low, high = asked.ranges["features"]
    assert low == 0 < high, "behind a ReLU"
    assert {name: asked.ranges[name] for name in plain.ranges} == plain.ranges
    assert asked.reference_digest == plain.reference_digest
    assert 0 < asked.inner_seconds <= asked.cpu_seconds
    assert set(shadow.measure(3, 0).ranges) == {"input", "enhanced"}


def test_a_sample_is_measured_against_the_float_model(
    shadow: Shadow, samples: Samples, tensors: list[Array], reference: Callable[[Array], Array]
) -> None:
    truth = reference(tensors[0])
    output = truth.copy()
    output.ravel()[:100] += 0.1  # of 2304 elements, beyond one step of 3/255
    samples.put(2, tensors[0], output)

    measured = shadow.measure(5, 2, golden=3)

    assert (measured.sample_id, measured.slot, measured.generation) == (5, 2, 1)
    assert (measured.frame_id, measured.golden) == (105, 3)
    assert measured.loss == pytest.approx(100 / 2304, abs=1e-9)
    written = samples.ring.array(2, samples.layout.reference[0])
    np.testing.assert_allclose(written, truth, atol=1e-6)
    assert measured.reference_digest == output_digest([written])
    (errors,) = measured.errors
    assert (errors.output, errors.finite) == ("enhanced", 1.0)
    assert errors.max_steps == pytest.approx(0.1 / (3 / 255), rel=1e-3)
    assert 0 < measured.cpu_seconds < 5
    np.testing.assert_array_equal(samples.ring.array(2, samples.layout.device[0]), output, "the evidence must stay")
    assert not samples.ring.array(0, samples.layout.reference[0]).any()


def test_symptoms_are_named_and_an_answer_that_lags_is_seen_from_one_sample_to_the_next(
    shadow: Shadow, samples: Samples, tensors: list[Array], reference: Callable[[Array], Array]
) -> None:
    truths = [reference(tensor) for tensor in tensors[:3]]
    samples.put(0, tensors[0], truths[0])
    healthy = shadow.measure(1, 0)
    assert (healthy.loss, healthy.symptoms) == (0.0, ())
    samples.put(1, tensors[1], np.zeros_like(truths[1]))
    assert "black_output" in shadow.measure(2, 1).symptoms
    samples.put(0, tensors[2], truths[1])  # the same slot again, with the answer to the input before
    stale = shadow.measure(3, 0)
    assert "stale_output" in stale.symptoms
    assert stale.loss > 0.3
    samples.put(1, tensors[1], np.full_like(truths[1], np.nan))
    broken = shadow.measure(4, 1)
    assert broken.symptoms == ("non_finite",)
    assert broken.loss == 1.0
    assert (broken.errors[0].sqnr_db, broken.errors[0].finite) == (None, 0.0)


def test_the_chain_is_healthy_until_a_layer_of_the_board_is_broken(
    pipeline: Make, camera: Make, shadow: Shadow, board: Path, profile: Profile, pictures: list[Array]
) -> None:
    running, source = pipeline(generation=4), camera()
    source.attach_to(running.worker)
    shadow.attach(4, running.ready.outputs, running.samples)

    def sample(frame_id: int) -> LossMeasured:
        source.put(0, pictures[frame_id])
        running.worker.ask(RunFrame(frame_id, 1, 0, 0.0, sample_slot=frame_id % 4), FrameDone)
        return shadow.measure(frame_id, frame_id % 4, generation=4)

    healthy = [sample(frame_id) for frame_id in range(3)]
    assert max(measured.loss for measured in healthy) < 0.05
    assert all(measured.symptoms == () for measured in healthy)
    assert all((measured.errors[0].sqnr_db or 0) > 20 for measured in healthy)

    inject(board, [Fault("logits", "saturate")], Path(profile.artifacts))
    broken = sample(3)
    assert broken.loss > 0.2
    assert broken.symptoms != ()
    assert (broken.errors[0].sqnr_db or 0) < 20

    inject(board, [])
    assert sample(4).loss < 0.05

    running.worker.signal(signal.SIGKILL)
    running.worker.ended()
    message = MeasureSample(6, 0, 5, 0)
    failed = shadow.worker.ask(message, SampleFailed)
    assert (failed.sample_id, failed.slot) == (6, 0)
    assert "generation 5" in failed.problem, "a new generation is attached first"
    again = pipeline(generation=5)
    source.attach_to(again.worker)
    source.put(0, pictures[5])
    again.worker.ask(RunFrame(9, 1, 0, 0.0, sample_slot=0), FrameDone)
    shadow.attach(5, again.ready.outputs, again.samples)
    assert shadow.measure(7, 0, generation=5).loss < 0.05


def test_artifacts_and_model_that_do_not_belong_together_are_told(shadow: Shadow) -> None:
    other = (TensorSpec("enhanced", (1, 3, 24, 33), "uint8"),)
    layout = sample_layout(shadow.ready.inputs, other)
    ring = Ring.create(RingSpec(1, layout.nbytes), "test-samples")
    shadow.attach(1, other, ring)
    failed, _ = shadow.worker.receive(Failed)
    assert failed.kind == "profile_mismatch"
    assert failed.problem == (
        "the device's output enhanced is uint8 [1, 3, 24, 33], and the reference has float32 [1, 3, 24, 32]"
    )
    assert shadow.worker.ended() == 1
    ring.close()


def test_a_model_that_can_not_be_opened_is_named(start: Make, profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "missing.onnx"
    worker = start("tidegauge.shadow.worker", ShadowEvent)
    failed = worker.ask(StartShadow(1, msgspec.structs.replace(profile, model=str(path))), Failed)
    assert failed.kind == "open_failed"
    assert str(path) in failed.problem
    assert worker.ended() == 1


def test_it_leaves_on_sigterm_and_ignores_sigint(shadow: Shadow) -> None:
    shadow.worker.signal(signal.SIGINT)
    assert shadow.worker.ask(MeasureSample(1, 0, 1, 0), SampleFailed).problem.endswith("is not attached")
    shadow.worker.signal(signal.SIGTERM)
    assert shadow.worker.ended(5) == 0
