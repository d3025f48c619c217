"""The monitor on the bus, from the first sample to an alarm: real parts, with fakes for the two sides that compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tidegauge.agent.accepting import Accepting
from tidegauge.agent.alarms import AlarmBook
from tidegauge.agent.bundling import Identity
from tidegauge.agent.bus import Bus
from tidegauge.agent.config import AcceptanceConfig, AgentConfig, DetectorConfig
from tidegauge.agent.events import (
    AlarmCleared,
    AlarmRaised,
    Evidence,
    FrameDelivered,
    GoldenRoundEnded,
    LossArrived,
    PhaseChanged,
    PipelineUp,
    Scene,
    ShadowUp,
)
from tidegauge.agent.monitor import Monitor
from tidegauge.agent.scene import SceneWatch
from tidegauge.agent.state import Golden, StateStore
from tidegauge.agent.verdicts import Verdicts
from tidegauge.agent.watch_config import ContextsConfig
from tidegauge.agent.watching import Watching
from tidegauge.bundles.manifest import Cause
from tidegauge.bundles.redaction import Hiding
from tidegauge.camera.config import CameraConfig
from tidegauge.clocks import monotonic
from tidegauge.demo.settings import profile
from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.camera import FrameLook
from tidegauge.detectors.contexts import Light
from tidegauge.detectors.sight import Sight
from tidegauge.errors import TidegaugeError
from tidegauge.link.config import LinkConfig
from tidegauge.metrics import AgentMetrics
from tidegauge.pipeline.layout import RingSpec
from tidegauge.pipeline.messages import LossMeasured, PipelineReady, ShadowReady, TensorErrors
from tidegauge.runtimes.session import Offload

DAY = Scene("day", look=FrameLook(200.0, 0.0, 30.0, tuple(float(i % 5) for i in range(192))))
READY = PipelineReady(
    1, (), (), RingSpec(4, 64), Offload("TIDL", ("s",), virtual=True), "onnx_tidl", {"onnxruntime": "1.15"}
)
CONFIG = AgentConfig(
    "d",
    "s",
    "p",
    CameraConfig("synthetic", "x"),
    LinkConfig(),
    acceptance=AcceptanceConfig(samples=80),
    contexts=ContextsConfig(samples=60),
    detector=DetectorConfig(alpha=0.001, block=2),
)


class Sides:
    """Stands for golden service and shadow service: nothing computes; tensors are kept as names."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.forced = 0

    hiding = Hiding()

    def offer(self, evidence: Evidence, then: Callable[[Evidence], None]) -> None:
        then(evidence)

    def keep(self, golden: Golden, evidence: Evidence) -> bool:
        self.kept.append(golden.sha256)
        return True

    def forget_others(self) -> None:
        """Nothing is on a disk."""

    def replay_next(self, evidence: Evidence) -> None:
        """No round is run."""

    def force_next(self) -> None:
        self.forced += 1


class Board:
    """One run of an agent's monitor on a state folder."""

    def __init__(self, folder: Path, artifacts: str = "a", libraries: dict[str, str] | None = None) -> None:
        self.bus, self.store, self.sides = Bus(), StateStore(folder), Sides()
        model = profile(folder)
        self.metrics = AgentMetrics(model.name)
        fakes: Any = self.sides
        book = AlarmBook(self.store, self.bus, self.metrics)
        self.scene = SceneWatch(CONFIG.camera_health, CONFIG.contexts, book, self.bus, self.metrics)
        accepting = Accepting(CONFIG, self.store, fakes, self.metrics)
        watching = Watching(CONFIG, self.store, book, self.scene, self.metrics)
        verdicts = Verdicts(CONFIG, self.store, book, fakes, fakes, self.bus, self.metrics)
        self.monitor = Monitor(
            model, self.store, book, self.scene, accepting, watching, verdicts, self.bus, self.metrics
        )
        self.raised: list[AlarmRaised] = []
        self.cleared: list[AlarmCleared] = []
        self.phases: list[str] = []
        self.bus.on(AlarmRaised, self.raised.append)
        self.bus.on(AlarmCleared, self.cleared.append)
        self.bus.on(PhaseChanged, lambda event: self.phases.append(event.phase))
        self.monitor.begin(Identity("d", model, {"net.bin": artifacts}, "m", {}, ""))
        ready = READY if libraries is None else msgspec.structs.replace(READY, libraries=libraries)
        self.bus.emit(PipelineUp(ready))
        self.bus.emit(ShadowUp(ShadowReady(1, "onnx_cpu", (), ())))
        self.rng = np.random.default_rng(1)
        self.number = 0

    def samples(
        self,
        count: int,
        mean: float = 0.01,
        scene: Scene = DAY,
        symptoms: tuple[str, ...] = (),
        luma: float = 100.0,
        *,
        empty: bool = False,
    ) -> None:
        for _ in range(count):
            self.number += 1
            loss = float(self.rng.beta(2, 2 / mean - 2)) if mean else 0.0
            errors = TensorErrors("enhanced", 1.0, 40.0, 1e-4, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0)
            features = {"luma": float(self.rng.normal(luma, 10))}
            measured = LossMeasured(1, 0, 1, 1, -1, loss, (errors,), symptoms, "r", 0.1, features, {}, empty)
            pair = Evidence(measured, "d", (self.number.to_bytes(8),), (b"o",), (b"o",))
            self.bus.emit(LossArrived(pair, False, scene))

    def round(self, device: tuple[int, ...] = ()) -> None:
        alarms = (Alarm("known_answer_device", "the device's answer is wrong", {}),) if device else ()
        self.bus.emit(GoldenRoundEnded(monotonic(), 3, device, (), alarms, ""))

    def held_out(self, reason: str) -> int:
        return self.metrics.held_out_counts()[reason]

    def evidence(self) -> float:
        return self.monitor.evidence()["loss"][0]


@pytest.fixture
def accepted(tmp_path: Path) -> Board:
    board = Board(tmp_path)
    board.samples(80)
    assert board.monitor.acceptance_status().state == "accepted"
    return board


def test_acceptance_freezes_a_reference_a_golden_set_and_the_inputs(accepted: Board, tmp_path: Path) -> None:
    state = accepted.store.state
    assert state.accepted is not None
    assert list(state.contexts) == ["day"]
    assert 1 <= len(state.golden) <= 3
    assert {golden.sha256 for golden in state.golden} <= set(accepted.sides.kept)
    assert (tmp_path / "inputs.json").exists()
    assert not (tmp_path / "acceptance.jsonl").exists()
    assert state.gap == CONFIG.shadow.gap_mean, "0.1 CPU seconds a minute are within 5 % of a core"
    assert accepted.phases[-1] == "watching"
    assert accepted.scene.references["day"].judges_cover


def test_a_fault_is_found_given_its_verdict_and_latched(accepted: Board) -> None:
    accepted.samples(400)
    assert accepted.raised == []
    accepted.samples(60, 0.5)
    assert accepted.sides.forced >= 1
    accepted.round()
    accepted.round()
    [raised] = accepted.raised
    assert raised.cause.verdict == "accelerator"
    assert raised.cause.evidence["device_change"] > 0.2
    assert accepted.phases[-1] == "alarmed"


def test_inputs_that_acceptance_never_saw_are_data(accepted: Board) -> None:
    accepted.samples(80, 0.5, luma=240.0)
    accepted.round()
    accepted.round()
    [raised] = accepted.raised
    assert (raised.cause.verdict, raised.cause.severity) == ("data", "warning")
    assert accepted.phases[-1] == "watching"


@pytest.mark.parametrize("problem", ["black", "blurred", "frozen"])
def test_what_a_faulty_camera_shows_feeds_no_detector(accepted: Board, problem: str) -> None:
    before = accepted.evidence()
    accepted.samples(100, 0.5, scene=msgspec.structs.replace(DAY, problem=problem))
    assert accepted.held_out("camera") == 100
    assert accepted.evidence() == before
    assert accepted.raised == []


def test_a_camera_that_has_got_worse_since_the_frame_feeds_none_either(accepted: Board) -> None:
    black = Sight(FrameLook(3.0, 0.0, 1.0, DAY.look.edges if DAY.look else ()), Light(2.0, 1.0))
    accepted.bus.emit(FrameDelivered(1, black))
    accepted.samples(10, 0.5)
    assert accepted.held_out("camera") == 10


def test_a_faulty_camera_is_no_healthy_pair_for_acceptance(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.samples(100, 0.5, scene=msgspec.structs.replace(DAY, problem="black"))
    assert board.monitor.acceptance_status().progress == 0
    assert board.sides.kept == []


def test_changing_light_and_a_context_without_reference_are_held_out(accepted: Board) -> None:
    before = accepted.evidence()
    accepted.samples(30, 0.5, scene=msgspec.structs.replace(DAY, changing=True))
    accepted.samples(10, 0.05, scene=msgspec.structs.replace(DAY, context="infrared"))
    assert (accepted.held_out("light_changing"), accepted.held_out("uncommissioned")) == (30, 10)
    assert accepted.evidence() == before
    assert accepted.monitor.contexts()["infrared"].samples == 10
    assert accepted.monitor.contexts()["infrared"].reference is None


def test_a_reference_at_fault_accuses_nobody(accepted: Board) -> None:
    book = AlarmBook(accepted.store, accepted.bus, accepted.metrics)
    book.latch([("known_answer_reference", "…")], Cause("known_answer_reference", "reference", (), {}, "…"), None)
    accepted.samples(50, 0.5)
    assert accepted.held_out("reference") == 50


def test_samples_where_neither_side_found_anything_are_counted_apart(accepted: Board) -> None:
    accepted.samples(7, 0.0, empty=True)
    name, labels = "tidegauge_shadow_empty_total", {"model": "enhancer"}
    assert accepted.metrics.registry.get_sample_value(name, labels) == 7


def test_a_restart_goes_on_with_acceptance_and_with_evidence(tmp_path: Path) -> None:
    first = Board(tmp_path)
    first.samples(50)
    second = Board(tmp_path)
    assert second.monitor.acceptance_status().progress == pytest.approx(50 / 80)
    assert second.monitor.contexts()["day"].samples == 50
    second.samples(30)
    assert second.monitor.acceptance_status().state == "accepted"
    second.samples(9, 0.2)
    third = Board(tmp_path)
    assert third.monitor.acceptance_status().state == "accepted"
    assert third.evidence() == second.evidence() > 0


@pytest.mark.parametrize(
    ("artifacts", "libraries", "named"),
    [
        ("b", None, "the artifacts"),
        ("a", {"onnxruntime": "1.16"}, "device onnxruntime (1.15 to 1.16)"),
        ("a", {"onnxruntime": "1.15", "libvx_tidl_rt.so": "ff"}, "device libvx_tidl_rt.so (none to ff)"),
    ],
)
def test_a_change_of_what_runs_starts_a_new_acceptance_and_names_its_cost(
    accepted: Board, tmp_path: Path, artifacts: str, libraries: dict[str, str] | None, named: str
) -> None:
    changed = Board(tmp_path, artifacts, libraries)
    assert changed.monitor.acceptance_status().state == "running"
    assert changed.store.state.golden == ()
    changed.samples(320, 0.1)
    [raised] = changed.raised
    assert raised.cause.detector == "change"
    assert f"the upgrade ({named}) cost accuracy, 0.0" in raised.cause.message
    assert changed.store.state.previous is None


def test_a_change_that_costs_nothing_is_no_alarm(accepted: Board, tmp_path: Path) -> None:
    changed = Board(tmp_path, "b")
    changed.samples(80)
    assert changed.monitor.acceptance_status().state == "accepted"
    assert changed.raised == []


def test_wrong_from_the_first_frame_fails_and_fails_again_after_a_restart(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.samples(20, 0.02, symptoms=("black_output",))
    board.round()
    board.round()
    assert board.monitor.acceptance_status().state == "failed"
    assert "black_output" in board.monitor.acceptance_status().why
    assert [raised.cause.detector for raised in board.raised] == ["acceptance"]
    again = Board(tmp_path)
    assert again.monitor.acceptance_status().state == "failed"
    assert again.store.state.accepted is None


def test_clear_keeps_the_reference_and_rebaseline_is_refused_while_something_is_wrong(accepted: Board) -> None:
    accepted.samples(9, 0.3)
    assert accepted.evidence() > 0
    reference = accepted.store.state.accepted
    accepted.monitor.clear()
    assert accepted.evidence() == 0
    assert accepted.store.state.accepted == reference
    accepted.round(device=(0,))
    with pytest.raises(TidegaugeError, match="no new acceptance"):
        accepted.monitor.rebaseline()
    assert accepted.store.state.accepted == reference
    accepted.round()
    accepted.monitor.clear()
    accepted.samples(1, symptoms=("band",))
    with pytest.raises(TidegaugeError, match="band"):
        accepted.monitor.rebaseline()
    accepted.samples(1)
    accepted.monitor.rebaseline()
    assert accepted.store.state.accepted is None
    assert accepted.monitor.acceptance_status().state == "running"
    accepted.samples(80)
    assert accepted.monitor.acceptance_status().state == "accepted"
