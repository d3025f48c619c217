"""The known-answer test: the golden input tensors, run on both sides, on a timer and when somebody asks.

The same artifacts on the same input give the same bits, so a difference needs no statistics. Tensors lie as raw files
in the state folder; which digests are accepted is the monitor's business.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

import msgspec

from tidegauge.agent import steadiness
from tidegauge.agent.bus import Bus
from tidegauge.agent.config import GoldenConfig
from tidegauge.agent.events import Evidence, GoldenChecked, GoldenRoundEnded, GoldenWanted, PipelineUp, Replayed
from tidegauge.agent.pipeline import PipelineService, PipelineUnavailable
from tidegauge.agent.shadow import ShadowService, ShadowUnavailable
from tidegauge.agent.state import Golden, StateStore
from tidegauge.agent.stored_answers import changed, sentence
from tidegauge.clocks import monotonic
from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.defaults import STRIKES
from tidegauge.detectors.known_answer import KnownAnswer
from tidegauge.files import sync_folder, write_durably

log = logging.getLogger(__name__)

#: One golden run on both sides, queueing included.
GOLDEN_SECONDS = 60.0
SIDES = ("device", "reference")
#: How often a pair under suspicion is run again.
REPLAYS = 2


class GoldenService:
    """Runs rounds over the golden set for ever: at start, every `interval`, and on `GoldenWanted`."""

    def __init__(
        self, config: GoldenConfig, store: StateStore, pipeline: PipelineService, shadow: ShadowService, bus: Bus
    ) -> None:
        self._config, self._store, self._pipeline, self._shadow, self._bus = config, store, pipeline, shadow, bus
        self._folder = store.folder / "golden"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._wanted = asyncio.Event()
        self._suspect: Evidence | None = None
        bus.on(GoldenWanted, lambda _: self._wanted.set())
        bus.on(PipelineUp, lambda _: self._wanted.set())

    def reconfigure(self, config: GoldenConfig) -> None:
        """Another interval. The next round is due at once, and the interval counts from it."""
        if config.interval != self._config.interval:
            self._wanted.set()
        self._config = config

    def path(self, golden: Golden, side: str = "") -> Path:
        """Its input tensors, or the accepted outputs of a `side`."""
        return self._folder / f"{golden.sha256}{side and '.'}{side}.bin"

    def keep(self, golden: Golden, evidence: Evidence) -> bool:
        """Store the input tensors of a golden pair and both sides' outputs; False where the disk refuses."""
        tensors = (("", evidence.inputs), ("device", evidence.device), ("reference", evidence.reference))
        return all(
            self._store.disk.attempt("a golden tensor", partial(write_durably, self.path(golden, side), b"".join(data)))
            for side, data in tensors
        )

    def replay_next(self, evidence: Evidence) -> None:
        """Let the next round run this pair's input again, on both sides."""
        self._suspect = evidence

    def forget_others(self) -> None:
        """Delete tensors that the state no longer names."""
        state = self._store.state
        named = (*state.golden, *(each.golden for each in state.candidates))
        kept = {self.path(golden, side) for golden in named for side in ("", *SIDES)}
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
        checked, problem = 0, ""
        wrong: dict[str, list[int]] = {"device": [], "reference": []}
        alarms: list[Alarm] = []
        replay: Replayed | None = None
        try:
            for golden in self._store.state.golden:
                found, replayed = await self._check(golden)
                checked += 1
                replay = replay or (replayed if found else None)
                for side, alarm in found:
                    wrong[side].append(golden.index)
                    alarms.append(alarm)
            if not alarms:
                replay = await self._replay()
        except (PipelineUnavailable, ShadowUnavailable, TimeoutError) as error:
            problem = str(error) or "the golden run took too long"
            log.warning("known-answer test after %d tensors: %s", checked, problem)
        return GoldenRoundEnded(
            started, checked, tuple(wrong["device"]), tuple(wrong["reference"]), tuple(alarms), problem, replay
        )

    async def _replay(self) -> Replayed | None:
        """Run the input of the pair under suspicion again: what doesn't repeat itself is memory, buffers or heat."""
        evidence, self._suspect = self._suspect, None
        if evidence is None:
            return None
        path = self._store.folder / "replay.bin"
        if not self._store.disk.attempt("a frame to be run again", lambda: path.write_bytes(b"".join(evidence.inputs))):
            return None
        again = [await self._shadow.golden(path, -1, GOLDEN_SECONDS) for _ in range(REPLAYS)]
        path.unlink()
        return Replayed(
            evidence.digest,
            tuple(each.digest for each in again),
            evidence.measured.reference_digest,
            tuple(each.measured.reference_digest for each in again),
        )

    async def _measured(self, golden: Golden) -> Golden:
        """Ask acceptance's first tensor several times: does the device repeat its bits? Once it has been seen to,
        nobody asks again, or a device that breaks later would be excused."""
        state = self._store.state
        if state.accepted is not None and state.deterministic is not False:
            return golden
        runs = [await self._run(golden) for _ in range(steadiness.RUNS)]
        found = steadiness.measured(golden, runs)
        if not found.steady:
            log.warning(
                "the device gives other bits each time for golden tensor %d: judged by its spread", golden.index
            )

        def kept(each: Golden) -> Golden:
            return msgspec.structs.replace(found, index=each.index) if each.sha256 == found.sha256 else each

        state = self._store.state
        self._store.update(
            golden=tuple(kept(each) for each in state.golden),
            candidates=tuple(msgspec.structs.replace(each, golden=kept(each.golden)) for each in state.candidates),
            deterministic=bool(found.steady) and state.deterministic is not False,
        )
        return found

    async def _run(self, golden: Golden) -> Evidence:
        evidence = await self._shadow.golden(self.path(golden), golden.index, GOLDEN_SECONDS)
        self._bus.emit(GoldenChecked(golden.index, evidence))
        return evidence

    def _told(self, alarm: Alarm, golden: Golden, side: str, evidence: Evidence) -> Alarm:
        """With what has changed against the accepted outputs, where they are stored."""
        ready = self._pipeline.ready
        try:
            accepted = self.path(golden, side).read_bytes()
        except OSError as error:
            log.warning("what has changed in the %s's answer can't be told: %s", side, error)
            return alarm
        now = evidence.device if side == "device" else evidence.reference
        found = {} if ready is None else changed(accepted, now, [spec.dtype for spec in ready.outputs])
        return Alarm(alarm.detector, alarm.message + sentence(found), alarm.evidence | found)

    async def _check(self, golden: Golden) -> tuple[list[tuple[str, Alarm]], Replayed]:
        """Run one tensor; run it again where an answer differs, since a single flip is no finding by itself."""
        if golden.steady is None:
            golden = await self._measured(golden)
        sides = {
            "device": KnownAnswer("device", {golden.index: golden.device_digest}),
            "reference": KnownAnswer("reference", {golden.index: golden.reference_digest}),
        }
        alarms: list[tuple[str, Alarm]] = []
        seen: list[tuple[str, str]] = []
        for _ in range(STRIKES):
            evidence = await self._run(golden)
            digests = {"device": steadiness.answer(golden, evidence), "reference": evidence.measured.reference_digest}
            seen.append((evidence.digest, evidence.measured.reference_digest))
            right = {"device": golden.device_digest, "reference": golden.reference_digest}
            for side, known in sides.items():
                alarm = known.update(golden.index, digests[side])
                if alarm is not None:
                    alarms.append((side, self._told(alarm, golden, side, evidence)))
            if digests == right:
                break
        (live, reference), *again = seen
        return alarms, Replayed(live, tuple(d for d, _ in again), reference, tuple(r for _, r in again))
