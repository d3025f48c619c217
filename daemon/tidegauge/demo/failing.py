"""The demo of a failing board: failures by name, what the agent saw of them, and how it recovered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tidegauge.demo.show import Show
from tidegauge.demo.watch import DeviceWatch
from tidegauge.errors import TidegaugeError
from tidegauge.evaluation import control
from tidegauge.evaluation.control import Status
from tidegauge.virtualboard import core
from tidegauge.virtualboard.core import CoreState
from tidegauge.virtualboard.failures import Failure, FailureName
from tidegauge.virtualboard.state import fail, reboot

#: These meet a session that is open; all others meet the next create or the next dump, which a capture brings about.
IN_RUNS: frozenset[FailureName] = frozenset({"hang_in_run", "invoke_fails", "semaphore_held", "slow"})
#: Device runs began, alarm, end of the capture, given up or proven, right again: each within so many seconds.
RUNNING_SECONDS, ALARM_SECONDS, CAPTURE_SECONDS, SETTLED_SECONDS, BACK_SECONDS = 90.0, 120.0, 400.0, 240.0, 120.0
#: Device runs that go on for so long after an alarm are taken for recovered.
QUIET_SECONDS = 6.0


class Failing:
    """`failures` come `after` seconds of healthy runs, or with 0 before the agent has started."""

    def __init__(self, failures: Sequence[Failure], after: float, state: Path, virtual: Path, show: Show) -> None:
        self._failures, self._after = tuple(failures), after
        self._state, self._virtual, self._show = state, virtual, show
        self.alarms: list[str] = []
        self._captured = True

    def begin(self) -> None:
        """Before the agent starts."""
        if self._after == 0:
            self._inject()

    def _inject(self) -> None:
        fail(self._virtual, self._failures)
        names = ", ".join(f"`{failure.name}`" for failure in self._failures)
        self._show.say("failure", f"switched on: {names}")

    async def follow(self, watch: DeviceWatch) -> str:
        """Inject, tell what comes, cure, tell how it recovered. Returns that in a sentence. Raises TidegaugeError."""
        told = asyncio.create_task(self._tell_alarms(watch), name="alarms")
        try:
            if self._after > 0:
                await self._until(self._runs, RUNNING_SECONDS, "device run", "healthy", "waiting for device runs")
                with self._show.step("healthy", f"device runs go on for {self._after:g} s"):
                    await asyncio.sleep(self._after)
                self._inject()
                if not any(failure.name in IN_RUNS for failure in self._failures):
                    await self._capture()
            return await self._outcome()
        finally:
            told.cancel()
            await asyncio.gather(told, return_exceptions=True)

    async def _tell_alarms(self, watch: DeviceWatch) -> None:
        shown = 0
        while True:
            for alarm in watch.alarms[shown:]:
                if alarm.active:
                    self.alarms.append(alarm.detector)
                    self._show.say("alarm", f"{alarm.detector}: {alarm.message}")
            shown = len(watch.alarms)
            await asyncio.sleep(0.1)

    async def _capture(self) -> None:
        with self._show.step("capture", "sessions are closed and opened: a traced run is asked for"):
            reply = await asyncio.to_thread(control.ask, self._state, "CaptureNow", CAPTURE_SECONDS)
        self._captured = reply.ok
        self._show.say("capture", reply.sentence)

    async def _outcome(self) -> str:
        """Wait until the agent has given the accelerator up, or device runs go on."""
        if self._after == 0 or any(failure.name in IN_RUNS for failure in self._failures):
            await self._until(lambda status: bool(status.alarms), ALARM_SECONDS, "alarm", "watching", "what is seen?")
        settled = await self._settled()
        if settled == "stopped":
            self._show.say("given up", "nothing is sent to the accelerator any more; the agent lives and reports")
            return await self._cure("given up, and right again after the cure")
        alarms = (await self._status()).alarms
        self._show.say("runs", "device runs go on" + ("" if alarms else ", and no alarm was raised"))
        if not self._captured:
            return await self._cure("the capture failed, and device runs went on")
        return await self._cure("recovered by itself" if alarms else "no harm was done")

    async def _settled(self) -> str:
        """ "stopped", or "running" once that has lasted."""
        since: float | None = None
        deadline = time.monotonic() + SETTLED_SECONDS
        with self._show.step("recovery", "a new worker, or none any more?"):
            while time.monotonic() < deadline:
                state = _pipeline(await self._status())
                if state == "stopped":
                    return state
                now = time.monotonic()
                since = (since or now) if state == "running" else None
                if since is not None and now - since >= QUIET_SECONDS:
                    return state
                await asyncio.sleep(0.2)
        raise TidegaugeError(f"the pipeline did not settle within {SETTLED_SECONDS:.0f} s", "see agent.log")

    async def _cure(self, ending: str) -> str:
        """Switch the failures off, reboot where only that helps, clear the alarms."""
        fail(self._virtual, ())
        cure = "switched off"
        lost = CoreState.load(self._virtual)
        if lost.hung or lost.c7x_free < core.C7X_HEAP_BYTES // 2:
            reboot(self._virtual)
            cure += ", the board rebooted (its C7x hung, or had leaked its memory)"
        reply = await asyncio.to_thread(control.ask, self._state, "ClearAlarms")
        self._show.say("cure", f"{cure}; `tidegauge alarm clear`: {reply.sentence}")
        begun = time.monotonic()
        await self._until(
            lambda status: self._runs(status) and not status.alarms,
            BACK_SECONDS,
            "device run after the cure",
            "back",
            "waiting for device runs without an alarm",
        )
        self._show.say("back", f"device runs again, {time.monotonic() - begun:.1f} s after the cure")
        return ending

    @staticmethod
    def _runs(status: Status) -> bool:
        return _pipeline(status) == "running" and status.health == "running"

    async def _status(self) -> Status:
        try:
            return await asyncio.to_thread(control.status, self._state)
        except OSError as error:
            raise TidegaugeError(f"the agent gives no answer ({error})", "see agent.log") from error

    async def _until(
        self, condition: Callable[[Status], bool], seconds: float, what: str, phase: str, text: str
    ) -> None:
        deadline = time.monotonic() + seconds
        with self._show.step(phase, text):
            while not condition(await self._status()):
                if time.monotonic() > deadline:
                    raise TidegaugeError(
                        f"no {what} within {seconds:.0f} s", "see the logs whose folder is named above"
                    )
                await asyncio.sleep(0.2)


def _pipeline(status: Status) -> str:
    return next((worker.state for worker in status.workers if worker.name == "pipeline"), "")
