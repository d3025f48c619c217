"""The known-answer test: the golden input tensors, run on both sides, on a timer and when somebody asks.

The same artifacts on the same input give the same bits, so a difference needs no statistics. Tensors lie as raw files
in the state folder; which digests are accepted is the monitor's business.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from tidegauge.agent import steadiness
from tidegauge.agent.bus import Bus
from tidegauge.agent.config import GoldenConfig
from tidegauge.agent.events import Evidence, GoldenChecked, GoldenRoundEnded, GoldenWanted, PipelineUp, Replayed
from tidegauge.agent.pipeline import PipelineService, PipelineUnavailable
from tidegauge.agent.privacy import PrivatePairs, golden_path
from tidegauge.agent.shadow import ShadowService, ShadowUnavailable
from tidegauge.agent.state import Golden, StateStore
from tidegauge.agent.stored_answers import changed, sentence
from tidegauge.bundles.redaction import Hiding
from tidegauge.clocks import monotonic
from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.defaults import STRIKES
from tidegauge.detectors.known_answer import KnownAnswer
from tidegauge.errors import TidegaugeError
from tidegauge.files import sync_folder, write_durably
from tidegauge.log_kinds import GOLDEN_STOPPED

log = logging.getLogger(__name__)

#: One golden run on both sides, queueing included.
GOLDEN_SECONDS = 60.0
SIDES = ("device", "reference")
#: How often a pair under suspicion is run again.
REPLAYS = 2


def golden_of(evidence: Evidence, hiding: Hiding) -> Golden:
    """A golden tensor with this pair's answers."""
    measured, digest = evidence.measured, hashlib.sha256(b"".join(evidence.inputs)).hexdigest()
    return Golden(0, digest, evidence.digest, measured.reference_digest, ranges=measured.ranges, hiding=hiding)


class GoldenService:
    """Runs rounds over the golden set for ever: at start, every `interval`, and on `GoldenWanted`."""

    def __init__(
        self,
        config: GoldenConfig,
        store: StateStore,
        pipeline: PipelineService,
        shadow: ShadowService,
        private: PrivatePairs,
        bus: Bus,
    ) -> None:
        self._config, self._store, self._pipeline, self._shadow, self._bus = config, store, pipeline, shadow, bus
        self._private = private
        self._offered: asyncio.Queue[tuple[Evidence, Callable[[Evidence], None]]] = asyncio.Queue(1)
        self._folder = store.folder / "golden"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._wanted = asyncio.Event()
        self._suspect: Evidence | None = None
        shadow.wants_inner = lambda: store.state.accepted is None  # what the golden set is to cover
        bus.on(GoldenWanted, lambda _: self._wanted.set())
        bus.on(PipelineUp, lambda _: self._wanted.set())

    def reconfigure(self, config: GoldenConfig) -> None:
        """Another interval. The next round is due at once, and the interval counts from it."""
        if config.interval != self._config.interval:
            self._wanted.set()
        self._config = config

    def path(self, golden: Golden, side: str = "") -> Path:
        """Its input tensors, or the accepted outputs of a `side`."""
        return golden_path(self._store.folder, golden.sha256, side)

    @property
    def hiding(self) -> Hiding:
        """What is done to the pictures of golden tensors."""
        return self._private.at_rest

    def offer(self, evidence: Evidence, then: Callable[[Evidence], None]) -> None:
        """Tell `then` the pair in a form that may be kept: at once, or when it has been hidden and run anew. One pair
        at a time is hidden; another that is offered meanwhile is left out."""
        if not self.hiding:
            then(evidence)
        elif not self._offered.full():
            self._offered.put_nowait((evidence, then))

    async def _hide(self) -> None:
        while True:
            evidence, then = await self._offered.get()
            try:
                then(await self._private.for_rest(evidence))
            except (PipelineUnavailable, ShadowUnavailable, TimeoutError, TidegaugeError) as error:
                log.warning("a golden tensor was not taken, since its picture could not be hidden: %s", error)

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
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hide())
            group.create_task(self._rounds())

    async def _rounds(self) -> None:
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
            await self._hide_anew()
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
            log.warning(
                "known-answer test after %d tensors: %s", checked, problem, extra=GOLDEN_STOPPED.of(checked=checked)
            )
        return GoldenRoundEnded(
            started, checked, tuple(wrong["device"]), tuple(wrong["reference"]), tuple(alarms), problem, replay
        )

    async def _replay(self) -> Replayed | None:
        """Run the input of the pair under suspicion again: what doesn't repeat itself is memory, buffers or heat."""
        evidence, self._suspect = self._suspect, None
        if evidence is None:
            return None
        try:
            path = self._private.ram.ready() / "replay.bin"
            path.write_bytes(b"".join(evidence.inputs))
        except (OSError, TidegaugeError) as error:
            log.warning("the frame under suspicion is not run again: %s", error)
            return None
        try:
            again = [await self._shadow.golden(path, -1, GOLDEN_SECONDS) for _ in range(REPLAYS)]
        finally:
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
        evidence = msgspec.structs.replace(evidence, hidden=True)
        self._bus.emit(GoldenChecked(golden.index, evidence))
        return evidence

    async def _hide_anew(self) -> None:
        """What was stored when less had to be hidden is hidden, and run anew."""
        state = self._store.state
        every = (*state.golden, *(each.golden for each in state.candidates))
        old = {each.sha256: each for each in every if each.hiding != self.hiding}
        if not old:
            return
        now = {sha256: await self._hidden(golden) for sha256, golden in old.items()}
        state = self._store.state
        golden = (now.get(each.sha256, each) for each in state.golden)
        candidates = ((each, now.get(each.golden.sha256, each.golden)) for each in state.candidates)
        self._store.update(
            golden=tuple(each for each in golden if each is not None),
            candidates=tuple(msgspec.structs.replace(each, golden=new) for each, new in candidates if new is not None),
        )
        self.forget_others()

    async def _hidden(self, golden: Golden) -> Golden | None:
        """The same, hidden. None where its known answer is wrong: that would make a wrong answer the right one."""
        plain = await self._run(golden)
        digests = steadiness.answer(golden, plain), plain.measured.reference_digest
        if digests != (golden.device_digest, golden.reference_digest):
            log.warning("golden tensor %d is dropped: it was to be hidden, and its answer is wrong", golden.index)
            return None
        evidence = await self._private.for_rest(msgspec.structs.replace(plain, hidden=False))
        made = msgspec.structs.replace(golden_of(evidence, self.hiding), index=golden.index, role=golden.role)
        return made if self.keep(made, evidence) else None

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
