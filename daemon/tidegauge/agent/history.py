"""The history record: what this board has seen in an hour, small enough to keep for years of having no link.

Counters are read from the metrics, so that both say the same; sums are of the hour alone, so that records can be added
up. An agent that is stopped writes what it has of the hour; one that is killed loses that.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable
from math import isfinite

from tidegauge import __version__, board
from tidegauge.agent.bus import Bus
from tidegauge.agent.events import BundleSealed, LossArrived, PhaseChanged
from tidegauge.agent.state import StateStore
from tidegauge.clocks import Stamp, monotonic, stamp
from tidegauge.metrics import LOSS_BUCKETS, NMSE_BUCKETS, AgentMetrics
from tidegauge.profile import Profile
from tidegauge.spool.records import HistoryRecord, Sums
from tidegauge.spool.store import Spool

log = logging.getLogger(__name__)

HOUR = 3600.0
#: Seconds between two readings of the temperature.
PERIOD = 60.0
#: Counters that a record has, without what goes before their names.
COUNTERS = (
    "frames",
    "frames_dropped",
    "inferences",
    "inference_errors",
    "accelerator_restarts",
    "worker_restarts",
    "shadow_samples",
    "shadow_held_out",
    "drift_alarms",
    "known_answer_checks",
    "captures",
    "spool_dropped",
    "spool_faults",
)
TEMPERATURE_EDGES = (60.0, 75.0, 85.0, 95.0)


class Tally:
    """Sums and buckets of one kind of value."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self._edges = edges
        self._buckets = [0] * (len(edges) + 1)
        self._count = self._undefined = 0
        self._sum = self._squares = 0.0
        self._least: float | None = None
        self._most: float | None = None

    def add(self, value: float | None) -> None:
        """None and what is not finite count as undefined."""
        if value is None or not isfinite(value):
            self._undefined += 1
            return
        self._count += 1
        self._sum += value
        self._squares += value * value
        self._least = value if self._least is None else min(self._least, value)
        self._most = value if self._most is None else max(self._most, value)
        self._buckets[sum(value > edge for edge in self._edges)] += 1

    def sums(self) -> Sums:
        return Sums(
            count=self._count,
            sum=float(f"{self._sum:.9g}"),
            squares=float(f"{self._squares:.9g}"),
            least=self._least,
            most=self._most,
            buckets=tuple(self._buckets) if self._count else (),
            edges=self._edges if self._count else (),
            undefined=self._undefined,
        )


class Hour:
    """What has come since `began`. `counters`: what the metrics had counted by then."""

    def __init__(self, began: Stamp, counters: dict[str, float]) -> None:
        self.began, self._counters = began, counters
        self.loss, self.nmse, self.temperature = Tally(LOSS_BUCKETS), Tally(NMSE_BUCKETS), Tally(TEMPERATURE_EDGES)
        self.light: Counter[str] = Counter()

    def counts(self, now: dict[str, float]) -> dict[str, int]:
        """What was counted since; what was not is absent."""
        grown = {name: round(value - self._counters.get(name, 0.0)) for name, value in now.items()}
        return {name: count for name, count in sorted(grown.items()) if count > 0}


class HistoryService:
    """Keeps one record an hour in the spool, and the spool within its limits. `wake` tells the link of them."""

    def __init__(
        self,
        profile: Profile,
        store: StateStore,
        evidence: Callable[[], dict[str, tuple[float, float]]],
        spool: Spool,
        wake: Callable[[], None],
        predicted: Callable[[], int | None],
        bus: Bus,
        metrics: AgentMetrics,
        now: Callable[[], Stamp] = stamp,
    ) -> None:
        self._profile, self._store, self._evidence, self._spool = profile, store, evidence, spool
        self._wake, self._predicted, self._metrics, self._now = wake, predicted, metrics, now
        self._number = 0
        self._phase = ""
        self._hour = self._new_hour()
        bus.on(LossArrived, self._on_loss)
        bus.on(PhaseChanged, self._on_phase)
        bus.on(BundleSealed, lambda _: self._expect())

    async def run(self) -> None:
        """For ever; when cancelled, what there is of the hour is kept."""
        self._expect()
        ends = monotonic() + HOUR
        try:
            while True:
                self._hour.temperature.add(board.temperature())
                await asyncio.to_thread(self._spool.trim)
                await asyncio.sleep(PERIOD)
                if monotonic() >= ends:
                    ends += HOUR
                    await asyncio.to_thread(self._spool.keep, self.close())
                    self._wake()
        finally:
            self._spool.keep(self.close())

    def close(self) -> HistoryRecord:
        """The record of the hour so far; another hour begins."""
        hour, state, ended = self._hour, self._store.state, self._now()
        self._number += 1
        record = HistoryRecord(
            id=f"h-{secrets.token_hex(8)}",
            session=state.session,
            number=self._number,
            began=hour.began,
            ended=ended,
            model=self._profile.name[:200],
            artifacts=state.artifacts[:12],
            program=__version__,
            phase=self._phase,
            counts=hour.counts(self._read_counters()),
            loss=hour.loss.sums(),
            nmse=hour.nmse.sums(),
            temperature=hour.temperature.sums(),
            light=dict(sorted(hour.light.items())),
            evidence={name: (round(value, 4), round(limit, 4)) for name, (value, limit) in self._finite_evidence()},
            alarms=tuple(sorted({alarm.detector[:200] for alarm in state.alarms})[:32]),
        )
        self._hour = self._new_hour()
        return record

    def _finite_evidence(self) -> list[tuple[str, tuple[float, float]]]:
        pairs = sorted(self._evidence().items())
        return [(name[:200], pair) for name, pair in pairs if isfinite(pair[0]) and isfinite(pair[1])][:32]

    def _new_hour(self) -> Hour:
        return Hour(self._now(), self._read_counters())

    def _read_counters(self) -> dict[str, float]:
        """By name and labels, but the model's: `frames_dropped/pipeline_busy`."""
        names = [f"tidegauge_{name}_total" for name in COUNTERS]
        found: dict[str, float] = {}
        for family in self._metrics.registry.restricted_registry(names).collect():
            for sample in family.samples:
                labels = [value for label, value in sample.labels.items() if label != "model"]
                found["/".join((sample.name.removeprefix("tidegauge_").removesuffix("_total"), *labels))] = sample.value
        return found

    def _expect(self) -> None:
        try:
            predicted = self._predicted()
        except OSError as error:  # model or artifacts are being replaced
            log.warning("the size of a bundle can't be predicted: %s", error)
            return
        self._spool.expect(predicted)

    def _on_phase(self, event: PhaseChanged) -> None:
        self._phase = event.phase

    def _on_loss(self, event: LossArrived) -> None:
        measured, hour = event.evidence.measured, self._hour
        watched = next((each for each in measured.errors if each.output == self._profile.output.name), None)
        hour.loss.add(measured.loss)
        hour.nmse.add(None if watched is None else watched.nmse)
        hour.light[event.scene.context] += 1
