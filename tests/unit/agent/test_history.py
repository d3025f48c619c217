"""The hourly record: what was counted in its hour, sums that add up, and no more than about a kilobyte."""

from __future__ import annotations

import asyncio
import contextlib
import math
from pathlib import Path

import pytest

from tidegauge.agent import history
from tidegauge.agent.bus import Bus
from tidegauge.agent.events import Evidence, LossArrived, PhaseChanged, Scene
from tidegauge.agent.history import HistoryService, Tally
from tidegauge.agent.state import Latched, StateStore
from tidegauge.clocks import Stamp
from tidegauge.metrics import AgentMetrics
from tidegauge.pipeline.messages import LossMeasured, TensorErrors
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.records import HistoryRecord, encode_line, parse
from tidegauge.spool.store import Spool

PROFILE = Profile("m", "onnx", "m.onnx", "a", Preprocess(8, 8), Output("enhanced", "image", 1 / 255))


class Board:
    """The service with what it hears and reads."""

    def __init__(self, folder: Path, predicted: int | None = None) -> None:
        self.bus, self.metrics, self.store = Bus(), AgentMetrics("m"), StateStore(folder)
        self.spool = Spool(folder / "spool", SpoolLimits(headroom_mib=0, headroom_files=0))
        self.evidence: dict[str, tuple[float, float]] = {"loss": (1.5, 13.2)}
        self.wakes = 0
        self.time = 0.0
        self.service = HistoryService(
            PROFILE,
            self.store,
            lambda: self.evidence,
            self.spool,
            self._wake,
            lambda: predicted,
            self.bus,
            self.metrics,
            lambda: Stamp(1.78e9 + self.time, "boot", self.time),
        )

    def _wake(self) -> None:
        self.wakes += 1

    def loss(self, value: float, nmse: float | None, context: str = "day") -> None:
        errors = TensorErrors("enhanced", 1.0, 3.2, nmse, 0.91, 1.5, 0.01, 97.0, 0.0, 0.2, 0.0, 0.01)
        measured = LossMeasured(1, 0, 1, 1, -1, value, (errors,), (), "", 0.1)
        self.bus.emit(LossArrived(Evidence(measured, "", (), (), ()), scene=Scene(context)))

    def kept(self) -> list[HistoryRecord]:
        files = self.spool.journal.close()
        found = [record for file in files for record in parse(file.path.read_bytes()).records]
        return [record for record in found if isinstance(record, HistoryRecord)]


def test_a_record_is_of_its_hour_alone(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.store.update(session=7, alarms=(Latched("a", "loss", "accelerator", "x", 0.0),))
    board.metrics.frames.inc(100)
    board.metrics.samples.labels("m", "ok").inc(3)
    for value in (0.02, 0.5, 0.3):
        board.loss(value, 0.001)
    board.loss(0.1, None, "low_light")
    board.bus.emit(PhaseChanged("watching", 1.0))
    board.time = 3600.0
    first = board.service.close()
    assert (first.session, first.number, first.phase, first.model) == (7, 1, "watching", "m")
    assert (first.began.uptime, first.ended.uptime) == (0.0, 3600.0)
    assert first.counts == {"frames": 100, "shadow_samples/ok": 3}
    assert first.loss.count == 4
    assert math.isclose(first.loss.sum, 0.92)
    assert (first.loss.least, first.loss.most) == (0.02, 0.5)
    assert sum(first.loss.buckets) == 4 and len(first.loss.buckets) == len(first.loss.edges) + 1
    assert (first.nmse.count, first.nmse.undefined) == (3, 1)
    assert first.light == {"day": 3, "low_light": 1}
    assert first.evidence == {"loss": (1.5, 13.2)}
    assert first.alarms == ("loss",)
    assert len(encode_line(first)) < 1500

    board.metrics.frames.inc(1)
    second = board.service.close()
    assert (second.number, second.counts, second.loss.count) == (2, {"frames": 1}, 0)
    assert second.began == first.ended
    assert second.id != first.id


def test_what_is_not_finite_is_counted_and_never_a_number(tmp_path: Path) -> None:
    tally = Tally((0.1, 1.0))
    for value in (math.nan, math.inf, None, 0.1, 5.0):
        tally.add(value)
    sums = tally.sums()
    assert (sums.count, sums.undefined, sums.buckets, sums.sum) == (2, 3, (1, 0, 1), 5.1)
    board = Board(tmp_path)
    board.evidence = {"loss": (math.inf, 13.2), "nmse": (0.1, 2.0)}
    assert board.service.close().evidence == {"nmse": (0.1, 2.0)}


def test_each_hour_is_kept_and_told_and_so_is_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "HOUR", 0.05)
    monkeypatch.setattr(history, "PERIOD", 0.01)
    board = Board(tmp_path, predicted=100 << 20)

    async def run() -> None:
        task = asyncio.create_task(board.service.run())
        async with asyncio.timeout(60):
            while board.wakes < 2:  # noqa: ASYNC110 # nobody signals it
                await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
    numbers = [record.number for record in board.kept()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) == board.wakes + 1, "what there is of the hour when the agent is stopped"
    assert board.spool.limits.max_mib == 300, "the quota follows what a bundle is predicted to take"
