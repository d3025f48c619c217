"""The known-answer test: the golden input tensors, run on both sides, on a timer and when somebody asks.

The same artifacts on the same input give the same bits, so a difference needs no statistics. Tensors lie as raw files in
the state folder; which digests are accepted is the monitor's business.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from tidegauge.agent.bus import Bus
from tidegauge.agent.config import GoldenConfig
from tidegauge.agent.events import GoldenChecked, GoldenRoundEnded, GoldenWanted, PipelineUp
from tidegauge.agent.pipeline import PipelineService, PipelineUnavailable
from tidegauge.agent.shadow import ShadowService, ShadowUnavailable
from tidegauge.agent.state import Golden, StateStore
from tidegauge.clocks import monotonic
from tidegauge.files import sync_folder, write_durably

log = logging.getLogger(__name__)


class GoldenService:
    """Runs rounds over the golden set for ever: at start, every `interval`, and on `GoldenWanted`."""

    def __init__(
        self, config: GoldenConfig, store: StateStore, pipeline: PipelineService, shadow: ShadowService, bus: Bus
    ) -> None:
        self._config, self._store, self._pipeline, self._shadow, self._bus = config, store, pipeline, shadow, bus
        self._folder = store.folder / "golden"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._wanted = asyncio.Event()
        bus.on(GoldenWanted, lambda _: self._wanted.set())
        bus.on(PipelineUp, lambda _: self._wanted.set())

    def path(self, golden: Golden) -> Path:
        return self._folder / f"{golden.sha256}.bin"

    def keep(self, golden: Golden, inputs: tuple[bytes, ...]) -> None:
        """Store the input tensors of a golden pair."""
        write_durably(self.path(golden), b"".join(inputs))

    def forget_others(self) -> None:
        """Delete tensors that the state no longer names."""
        kept = {self.path(golden) for golden in self._store.state.golden}
        for path in self._folder.iterdir():
            if path not in kept:
                path.unlink()
        sync_folder(self._folder)

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._config.interval):
                    await self._wanted.wait()
            except TimeoutError:
                pass  # the interval has passed: a round is due
            self._wanted.clear()
            self._bus.emit(await self._round())

    async def _round(self) -> GoldenRoundEnded:
        started = monotonic()
        checked = 0
        device: list[int] = []
        reference: list[int] = []
        problem = ""
        for golden in self._store.state.golden:
            try:
                wrong_device, wrong_reference = await self._check(golden)
            except (PipelineUnavailable, ShadowUnavailable, TimeoutError) as error:
                problem = str(error) or "the golden run took too long"
                log.warning("known-answer test of tensor %d: %s", golden.index, problem)
                break
            checked += 1
            if wrong_device:
                device.append(golden.index)
            if wrong_reference:
                reference.append(golden.index)
        return GoldenRoundEnded(started, checked, tuple(device), tuple(reference), problem)

    async def _check(self, golden: Golden) -> tuple[bool, bool]:
        """Run one tensor; run it again where an answer differs, since a single flip is no finding by itself."""
        wrong_device, wrong_reference = True, True
        for _ in range(2):
            deadline = 60.0
            evidence = await self._shadow.golden(self.path(golden), golden.index, deadline)
            wrong_device &= evidence.digest != golden.device_digest
            wrong_reference &= evidence.measured.reference_digest != golden.reference_digest
            self._bus.emit(GoldenChecked(golden.index, evidence))
            if not wrong_device and not wrong_reference:
                break
        return wrong_device, wrong_reference
