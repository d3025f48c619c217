"""What a person may ask of a running agent, and the record of who asked what."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Protocol

import msgspec

from tidegauge.agent.bus import Bus
from tidegauge.agent.capture import CaptureService
from tidegauge.agent.config import AgentConfig
from tidegauge.agent.control_messages import (
    AnyCommand,
    CaptureNow,
    ClearAlarms,
    GetStatus,
    Pull,
    Rebaseline,
    Reload,
    SelfTest,
    SetLogLevel,
    SetSampling,
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
from tidegauge.link.uplink import Uplink
from tidegauge.log_kinds import COMMAND_DONE, COMMAND_REFUSED

log = logging.getLogger(__name__)

#: Size at which the audit log is put aside for a new one; the one before is dropped.
AUDIT_BYTES = 4 << 20
SAMPLE_SECONDS = 60.0
ROUND_SECONDS = 300.0


class AuditEntry(msgspec.Struct, frozen=True):
    """A line of `audit.log`."""

    when: Stamp
    who: str
    command: str
    done: bool
    outcome: str


class Settings(Protocol):
    """What the agent runs with, and how it takes other settings: `agent.reload.Reload`."""

    config: AgentConfig

    async def now(self) -> str:
        """Read agent.toml. Returns what was taken, in a sentence; raises TidegaugeError where it is wrong."""


class AuditLog:
    """Appends to `audit.log` in the state folder, each line durable before the answer is given.

    It takes twice `AUDIT_BYTES` at most: whoever may command often can't fill the disk.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "audit.log"

    def add(self, who: str, command: str, done: bool, outcome: str) -> None:
        if self.path.exists() and self.path.stat().st_size >= AUDIT_BYTES:
            self.path.replace(self.path.with_suffix(".log.1"))
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
    """Carries commands out: those of the control socket, and the signed ones of the broker."""

    def __init__(
        self,
        monitor: Monitor,
        pipeline: PipelineService,
        shadow: ShadowService,
        capture: CaptureService,
        store: StateStore,
        bus: Bus,
        uplink: Uplink,
    ) -> None:
        #: What sampling and reload change; None where this agent can't change it while it runs.
        self.settings: Settings | None = None
        self._monitor, self._pipeline, self._shadow, self._capture = monitor, pipeline, shadow, capture
        self._store, self._bus, self._uplink = store, bus, uplink
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
            self.note(who, name, False, str(error))
            raise
        self.note(who, name, True, sentence)
        return sentence

    def note(self, who: str, command: str, done: bool, outcome: str) -> None:
        """For the record: the audit log, and a line in the log."""
        said = COMMAND_DONE.of(command=command) if done else COMMAND_REFUSED.of(command=command)
        log.log(logging.INFO if done else logging.WARNING, "%s asked for %s: %s", who, command, outcome, extra=said)
        try:
            self._audit.add(who, command, done, outcome)
        except OSError as error:  # a full disk must not forbid what may cure it
            log.error("the audit log %s can't be written: %s", self._audit.path, error)

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
            case SetSampling():
                return self._set_sampling(command)
            case Reload():
                return await self._changeable().now()
            case Pull(bundle):
                await self._uplink.pull(bundle)
                return f"bundle {bundle} is sent before all others, as far as the collector wants it"
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

    def _changeable(self) -> Settings:
        if self.settings is None:
            raise TidegaugeError("not supported by this agent: its settings are read at its start", "restart it")
        return self.settings

    def _set_sampling(self, command: SetSampling) -> str:
        mean = command.gap_mean
        floor = mean / 3 if command.gap_floor is None else command.gap_floor
        if floor >= mean:
            raise TidegaugeError(f"a floor of {floor:g} s is not below the mean gap of {mean:g} s", "make it smaller")
        settings = self._changeable()
        shadow = msgspec.structs.replace(settings.config.shadow, gap_mean=mean, gap_floor=floor)
        settings.config = msgspec.structs.replace(settings.config, shadow=shadow)
        self._shadow.reconfigure(settings.config)
        allowed = self._shadow.gap
        by_budget = f", {allowed:.3g} s as the CPU budget allows" if allowed > mean else ""
        return f"a shadow sample every {mean:g} s on average, {floor:g} s at least{by_budget}"

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
