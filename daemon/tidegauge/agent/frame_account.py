"""What each completed device run of a frame counts for: metrics, and whether runs have become slow."""

from __future__ import annotations

from prometheus_client import Gauge

from tidegauge.agent.bus import Bus
from tidegauge.agent.events import AcceleratorSlow
from tidegauge.agent.latency import SlowWatch
from tidegauge.agent.state import StateStore
from tidegauge.metrics import AgentMetrics
from tidegauge.pipeline.messages import FrameDone


class FrameAccount:
    """Holds the labelled children of the metrics: to look them up for each frame costs more than to count it."""

    def __init__(self, slow_factor: float, store: StateStore, bus: Bus, metrics: AgentMetrics) -> None:
        self._slow = SlowWatch(slow_factor, store.state.latency)
        self._store, self._bus, self._metrics = store, bus, metrics
        self._inferences = metrics.inferences.labels(metrics.model)
        self._seconds = metrics.inference_seconds.labels(metrics.model)
        self._saturated: dict[str, tuple[Gauge, Gauge]] = {}

    def count(self, done: FrameDone) -> None:
        self._inferences.inc()
        self._seconds.observe(done.device_seconds)
        for stats in done.outputs[: self._metrics.outputs_limit]:
            low, high = self._saturated.get(stats.name) or self._ends(stats.name)
            low.set(stats.low_share)
            high.set(stats.high_share)
        present = self._slow.update(done.device_seconds)
        if self._slow.reference != self._store.state.latency:
            self._store.update(latency=self._slow.reference)
        if present is not None and self._slow.reference is not None:
            self._bus.emit(AcceleratorSlow(present, self._slow.reference))

    def _ends(self, output: str) -> tuple[Gauge, Gauge]:
        saturated, model = self._metrics.saturated, self._metrics.model
        ends = saturated.labels(model, output, "low"), saturated.labels(model, output, "high")
        self._saturated[output] = ends
        return ends
