"""The shadow stands back for heat, load and the product's latency, whatever its budget allows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge import board
from tidegauge.agent.bus import Bus
from tidegauge.agent.config import AgentConfig
from tidegauge.agent.events import FrameProcessed, PipelineUp, Scene
from tidegauge.agent.shadow import ShadowService
from tidegauge.agent.watch_config import StandBackConfig
from tidegauge.camera.config import CameraConfig
from tidegauge.clocks import monotonic
from tidegauge.demo.settings import profile
from tidegauge.link.config import LinkConfig
from tidegauge.metrics import SAMPLE_RESULTS, AgentMetrics
from tidegauge.pipeline.layout import RingSpec
from tidegauge.pipeline.messages import FrameDone, PipelineReady, ShadowReady
from tidegauge.runtimes.session import Offload
from tidegauge.shadow.stand_back import FEWEST, MEMORY, WINDOW, LatencyRise, Limits, Readings, why

LIMITS = Limits(temperature=95.0, load=3.0, latency_rise=1.5)
COOL = Readings(60.0, 0.5)


@pytest.mark.parametrize(
    ("limits", "readings", "latency", "expected"),
    [
        (LIMITS, COOL, 1.0, None),
        (LIMITS, Readings(96.0, 0.5), 1.0, "temperature"),
        (LIMITS, Readings(None, 0.5), 1.0, None),
        (LIMITS, Readings(60.0, 3.5), 1.0, "load"),
        (LIMITS, COOL, 1.6, "latency"),
        (LIMITS, COOL, None, None),
        (Limits(0.0, 0.0, 0.0), Readings(200.0, 99.0), 99.0, None),
    ],
)
def test_each_limit(limits: Limits, readings: Readings, latency: float | None, expected: str | None) -> None:
    assert why(limits, readings, latency) == expected


def test_a_latency_rise_is_seen_within_a_window_and_a_lasting_one_becomes_usual() -> None:
    rise = LatencyRise()
    for _ in range((FEWEST - 1) * WINDOW):
        rise.update(0.030)
    assert rise.factor is None
    for _ in range(10 * WINDOW):
        rise.update(0.030)
    assert rise.factor == 1
    for _ in range(WINDOW):
        rise.update(0.060)
    assert rise.factor == 2
    for _ in range(MEMORY * WINDOW):
        rise.update(0.060)
    assert rise.factor == 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=300))
def test_the_factor_is_never_made_up(seconds: list[float]) -> None:
    rise = LatencyRise()
    for each in seconds:
        rise.update(each)
    assert rise.factor is None or rise.factor >= 0
    with pytest.raises(ValueError, match="latency"):
        rise.update(float("nan"))


def test_the_hottest_zone_counts_and_none_is_none(tmp_path: Path) -> None:
    assert board.temperature(tmp_path) is None
    for number, text in enumerate(("61500\n", "88250\n", "nonsense")):
        zone = tmp_path / f"thermal_zone{number}"
        zone.mkdir()
        (zone / "temp").write_text(text)
    assert board.temperature(tmp_path) == 88.25
    assert board.load_per_core() >= 0


class NoPipeline:
    """Stands for the pipeline service: the shadow only leaves its choice there."""

    choose_sample: Callable[[], int]


class NoScene:
    """Stands for the camera: always the same light."""

    scene = Scene("day")


@pytest.fixture
def bus() -> Bus:
    return Bus()


def service(tmp_path: Path, bus: Bus, limits: StandBackConfig) -> tuple[ShadowService, AgentMetrics]:
    """With a free slot and a worker that is ready: only the limits can keep a sample from being taken."""
    config = AgentConfig("d", "s", "p", CameraConfig("synthetic", "x"), LinkConfig(), stand_back=limits)
    config = msgspec.structs.replace(
        config, shadow=msgspec.structs.replace(config.shadow, gap_mean=1e-6, gap_floor=0.0, cpu_share=1.0)
    )
    metrics, pipeline, scene = AgentMetrics("enhancer"), NoPipeline(), NoScene()
    fakes: Any = (pipeline, scene)
    shadow = ShadowService(profile(tmp_path), config, *fakes, bus, metrics, tmp_path, 1)
    shadow.ready = ShadowReady(1, "onnx_cpu", (), ())
    offload = Offload("TIDL", ("subgraph_0",), 1, virtual=True)
    ready = PipelineReady(1, (), (), RingSpec(4, 64), offload, "onnx_tidl", {})
    bus.emit(PipelineUp(ready))
    return shadow, metrics


def results(metrics: AgentMetrics) -> dict[str, float]:
    name = "tidegauge_shadow_samples_total"
    found = {
        result: metrics.registry.get_sample_value(name, {"model": "enhancer", "result": result})
        for result in SAMPLE_RESULTS
    }
    return {result: count for result, count in found.items() if count}


def chosen(shadow: ShadowService) -> int:
    return shadow._pipeline.choose_sample()


def frame(latency: float) -> FrameProcessed:
    now = monotonic()
    return FrameProcessed(FrameDone(1, 1, 0, now - latency, now, 0.01, "", (), {}))


class TestWired:
    """The service asks before each sample."""

    def test_nothing_in_the_way(self, tmp_path: Path, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(board, "load_per_core", lambda: 0.1)
        shadow, metrics = self.made(tmp_path, bus, StandBackConfig())
        assert chosen(shadow) >= 0
        assert results(metrics) == {}

    def test_heat(self, tmp_path: Path, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(board, "temperature", lambda: 96.0)
        shadow, metrics = self.made(tmp_path, bus, StandBackConfig(load=0.0))
        assert chosen(shadow) == -1
        assert results(metrics) == {"skipped_temperature": 1}

    def test_load(self, tmp_path: Path, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(board, "load_per_core", lambda: 4.0)
        shadow, metrics = self.made(tmp_path, bus, StandBackConfig())
        assert chosen(shadow) == -1
        assert results(metrics) == {"skipped_load": 1}
        assert shadow.waiting == "load"
        assert shadow.mix.skipped == {"day": 1}

    def test_latency_of_the_product(self, tmp_path: Path, bus: Bus) -> None:
        shadow, metrics = self.made(tmp_path, bus, StandBackConfig(temperature=0.0, load=0.0))
        for _ in range(5 * WINDOW):
            bus.emit(frame(0.05))
        assert chosen(shadow) >= 0
        for _ in range(WINDOW):
            bus.emit(frame(0.2))
        assert chosen(shadow) == -1
        assert results(metrics) == {"skipped_latency": 1}

    def test_what_a_verdict_needs_is_taken_all_the_same(
        self, tmp_path: Path, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(board, "load_per_core", lambda: 4.0)
        shadow, _ = self.made(tmp_path, bus, StandBackConfig())
        shadow.force_next()
        assert chosen(shadow) >= 0

    @staticmethod
    def made(tmp_path: Path, bus: Bus, limits: StandBackConfig) -> tuple[ShadowService, AgentMetrics]:
        async def made() -> tuple[ShadowService, AgentMetrics]:
            return service(tmp_path, bus, limits)

        return asyncio.run(made())
