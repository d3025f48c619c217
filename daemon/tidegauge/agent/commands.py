"""What a person may ask of a running agent, and the record of who asked what."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import msgspec

from tidegauge.agent.bus import Bus
from tidegauge.agent.capture import CaptureService
from tidegauge.agent.control_messages import (
    AnyCommand,
    CaptureNow,
    ClearAlarms,
    GetStatus,
    Rebaseline,
    SelfTest,
    SetLogLevel,
)
from tidegauge.agent.events import AlarmRaised, GoldenRoundEnded, GoldenWanted, LossArrived
from tidegauge.agent.monitor import Monitor
from tidegauge.agent.pipeline import PipelineService
from tidegauge.agent.shadow import ShadowService
from tidegauge.agent.state import StateStore
from tidegauge.bundles.manifest import Cause
from tidegauge.clocks import Stamp, monotonic, stamp, wall
from tidegauge.errors import TidegaugeError
from tidegauge.files import sync_folder

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 60.0
ROUND_SECONDS = 300.0


class AuditEntry(msgspec.Struct, frozen=True):
    """A line of `audit.log`."""

    when: Stamp
    who: str
    command: str
    done: bool
    outcome: str


class AuditLog:
    """Appends to `audit.log` in the state folder, each line durable before the answer is given."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "audit.log"

    def add(self, who: str, command: str, done: bool, outcome: str) -> None:
        new = not self.path.exists()
        line = msgspec.json.encode(AuditEntry(stamp(), who, command, done, outcome)) + b"\n"
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            os.write(fd, line)
            os.fsync(fd)
        finally:
            os.close(fd)
        if new:
            sync_folder(self.path.parent)


class Operator:
    """Carries commands out. Local ones come through the control socket."""

    def __init__(
        self,
        monitor: Monitor,
        pipeline: PipelineService,
        shadow: ShadowService,
        capture: CaptureService,
        store: StateStore,
        bus: Bus,
    ) -> None:
        self._monitor, self._pipeline, self._shadow, self._capture = monitor, pipeline, shadow, capture
        self._store, self._bus = store, bus
        self._audit = AuditLog(store.folder)
        self._rounds: list[tuple[float, asyncio.Future[GoldenRoundEnded]]] = []
        self._pairs: list[asyncio.Future[LossArrived]] = []
        bus.on(GoldenRoundEnded, self._on_round)
        bus.on(LossArrived, self._on_loss)

    async def carry_out(self, command: AnyCommand, who: str) -> str:
        """Returns what was done, in a sentence. Raises TidegaugeError where it is refused."""
        if isinstance(command, GetStatus):
            return ""
        name = type(command).__name__
        try:
            sentence = await self._carry_out(command)
        except TidegaugeError as error:
            self._audit.add(who, name, False, str(error))
            raise
        self._audit.add(who, name, True, sentence)
        log.info("%s asked for %s: %s", who, name, sentence)
        return sentence

    async def _carry_out(self, command: AnyCommand) -> str:
        match command:
            case ClearAlarms():
                return self._clear()
            case Rebaseline():
                return self._rebaseline()
            case CaptureNow():
                return await self._capture_now()
            case SelfTest():
                return await self._self_test()
            case SetLogLevel(level):
                logging.getLogger().setLevel(level.upper())
                return f"the log level is now {level}"
            case GetStatus():
                return ""

    def _clear(self) -> str:
        cleared = self._monitor.clear()
        self._pipeline.try_again()
        kept = "the reference is kept" if self._store.state.accepted is not None else "no reference was accepted"
        if not cleared:
            return f"no alarm was latched; the evidence is zero, {kept}"
        names = ", ".join(alarm.detector for alarm in cleared)
        return f"cleared: {names}; the evidence is zero, {kept}"

    def _rebaseline(self) -> str:
        if self._pipeline.suspect or self._pipeline.stage.name == "stopped":
            raise TidegaugeError(
                "no new acceptance: the accelerator hangs or is given up", "clear the alarm, see it run, then ask again"
            )
        self._monitor.rebaseline()
        return "a new acceptance has begun; the former reference, its evidence and its alarms are gone"

    async def _capture_now(self) -> str:
        pair: asyncio.Future[LossArrived] = asyncio.get_running_loop().create_future()
        self._pairs.append(pair)
        self._shadow.force_next()
        try:
            async with asyncio.timeout(SAMPLE_SECONDS):
                evidence = (await pair).evidence
        except TimeoutError as error:
            raise TidegaugeError(
                f"no frame was measured within {SAMPLE_SECONDS:.0f} s", "see `tidegauge status` for camera and workers"
            ) from error
        finally:
            self._pairs.remove(pair)
        symptoms = evidence.measured.symptoms
        cause = Cause("operator", "undecided", symptoms, {"loss": evidence.measured.loss}, "a person asked for it")
        bundle_id = f"{int(wall())}-{self._store.state.session}-operator"
        ended = await self._capture.take(AlarmRaised(bundle_id, cause, evidence))
        if ended.result != "captured":
            raise TidegaugeError(f"capture {ended.result}: {ended.sentence}")
        return ended.sentence

    async def _self_test(self) -> str:
        if not self._store.state.golden:
            raise TidegaugeError("there is no golden tensor yet", "wait for the first shadow sample")
        ended: asyncio.Future[GoldenRoundEnded] = asyncio.get_running_loop().create_future()
        self._rounds.append((monotonic(), ended))
        self._bus.emit(GoldenWanted("a person asked for it"))
        try:
            async with asyncio.timeout(ROUND_SECONDS):
                found = await ended
        except TimeoutError as error:
            raise TidegaugeError("the golden round did not end", "see `tidegauge status`") from error
        finally:
            self._rounds = [waiting for waiting in self._rounds if waiting[1] is not ended]
        if found.problem:
            raise TidegaugeError(f"the golden round stopped after {found.checked} tensors: {found.problem}")
        if found.alarms:
            raise TidegaugeError("; ".join(alarm.message for alarm in found.alarms))
        return f"{found.checked} golden tensors gave the accepted answers, bit for bit, on device and reference"

    def _on_round(self, event: GoldenRoundEnded) -> None:
        for since, ended in self._rounds:
            if event.started >= since and not ended.done():
                ended.set_result(event)

    def _on_loss(self, event: LossArrived) -> None:
        for pair in self._pairs:
            if event.forced and not pair.done():
                pair.set_result(event)
