"""The main job, end to end, on a virtual board: the programs of production, as real processes over real sockets.

set-up → acceptance → healthy watch → a fault in one layer → alarm → verdict → traces → bundle stored → report.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from tidegauge import signing
from tidegauge.demo.board import choose_fault, compile_demo
from tidegauge.demo.broker import broker, free_port
from tidegauge.demo.failing import Failing
from tidegauge.demo.processes import Child, running, tidegauge
from tidegauge.demo.settings import DEVICE, Places, agent_settings, collector_settings, write_toml
from tidegauge.demo.show import Show
from tidegauge.demo.watch import DeviceWatch, get_json
from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard.failures import Failure
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.state import BoardState, inject

START_SECONDS = 60.0
ACCEPTANCE_SECONDS = 150.0
HEALTHY_SECONDS = 8.0
QUIET_SECONDS = 25.0
ALARM_SECONDS = 90.0
REPORT_SECONDS = 300.0


class Options(msgspec.Struct, frozen=True):
    """As given on the command line; `fault` None draws it from the seed, "none" injects nothing.

    `failures` of the board in the place of a fault, after `after` seconds of device runs.
    """

    seed: int
    fault: str | None
    layer: str | None
    from_start: bool
    folder: Path
    failures: tuple[Failure, ...] = ()
    after: float = 5.0


class Outcome(msgspec.Struct):
    """What the demo found, for people and with `--json` for machines. `right`: it went as it should."""

    seed: int
    injected_layer: str | None
    injected_fault: str | None
    named_layer: str | None = None
    named_cause: str | None = None
    detector: str | None = None
    verdict: str | None = None
    symptoms: tuple[str, ...] = ()
    right: bool = False
    why: str = ""
    bundle: str | None = None
    report: str | None = None
    page: str | None = None
    metrics: str | None = None
    virtual: bool = True
    failures: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    seconds: dict[str, float] = {}


class ListedBundle(msgspec.Struct, frozen=True):
    """What the demo reads of a bundle in the collector's API."""

    device: str
    bundle: str
    state: str
    reason: str
    culprit: str
    culprit_cause: str
    report: bool


class Demo:
    """One run. `main_job()` inside `started()`."""

    def __init__(self, options: Options, show: Show) -> None:
        self._options, self._show = options, show
        self.places = Places(options.folder)
        self.fault: Fault | None = None
        self.outcome = Outcome(options.seed, None, None)
        self.failing: Failing | None = None
        if options.failures:
            self.failing = Failing(options.failures, options.after, self.places.state, self.places.virtual, show)
        self._children: list[Child] = []
        self._watching: asyncio.Task[None] | None = None

    # --- set-up ---

    @asynccontextmanager
    async def started(self) -> AsyncIterator[DeviceWatch]:
        """Compile, then start broker, remote log, collector and agent; stop them in reverse order."""
        places, options = self.places, self._options
        for folder in (places.logs, places.traces, places.state, places.collector):
            folder.mkdir(parents=True, exist_ok=True)
        with self._show.step("set-up", "compiling the model for the virtual board"):
            report = await asyncio.to_thread(compile_demo, places, options.seed)
            self.fault = choose_fault(places.board / "artifacts", options.seed, options.fault, options.layer)
            BoardState(trace_folder=str(places.traces)).save(places.virtual)
            if options.from_start and self.fault is not None:
                self._inject(self.fault)
        if self.failing is not None:
            self.failing.begin()
        self._show.say("set-up", f"compiled {len(report.layers)} layers, 8-bit convolutions and 16-bit curves")
        async with AsyncExitStack() as stack:
            port, name = await stack.enter_async_context(broker(self.places.root, places.logs))
            await self._start_collector(stack, port)
            watch = DeviceWatch(port)
            self._watching = asyncio.create_task(watch.run(), name="watch")
            stack.push_async_callback(_cancelled, self._watching)
            await self._start_agent(stack, port)
            self._show.say("set-up", f"{name}, collector and agent are running; logs in {places.logs}")
            self._show.say("set-up", f"tidegauge device status {DEVICE} --config {places.operator / 'operator.toml'}")
            try:
                yield watch
            finally:
                for child in self._children:  # all at once; the broker, not among them, goes last
                    child.tell_to_stop()

    async def _start(self, stack: AsyncExitStack, name: str, command: list[str], environment: dict[str, str]) -> None:
        child = await stack.enter_async_context(running(name, command, self.places.logs, environment))
        self._children.append(child)

    async def _start_collector(self, stack: AsyncExitStack, port: int) -> None:
        config = self.places.collector / "collector.toml"
        http = free_port()
        write_toml(config, collector_settings(self.places, port, http))
        await self._start(stack, "collector", tidegauge("collector", "run", "--config", str(config)), {})
        self.outcome.page = f"http://127.0.0.1:{http}/"
        await self._until(lambda: (self.places.collector / "data" / "collector.json").exists(), "collector")

    async def _start_agent(self, stack: AsyncExitStack, port: int) -> None:
        places = self.places
        environment = {"TIDEGAUGE_VIRTUALBOARD": str(places.virtual)}
        command = tidegauge("virtualboard", "remote-log", str(places.virtual))
        await self._start(stack, "remote-log", command, environment)
        config = places.board / "agent.toml"
        settings = agent_settings(
            places,
            port,
            seed=self._options.seed,
            remote_log=f"remote-log {places.virtual}",
            remote_log_file=places.virtual / "remote_log.txt",
        )
        settings["link"]["collector_keys"] = [signing.load(places.collector / "data" / "answers.key").public]
        write_toml(config, settings)
        await self._start(stack, "agent", tidegauge("agent", "run", "--config", str(config)), environment)
        ready = places.state / "agent.json"
        await self._until(ready.exists, "agent")
        self.outcome.metrics = msgspec.json.decode(ready.read_bytes())["metrics"]

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        async def poll() -> None:
            while not condition():
                self.check()
                await asyncio.sleep(0.05)

        try:
            await asyncio.wait_for(poll(), START_SECONDS)
        except TimeoutError as error:
            raise TidegaugeError(
                f"the {what} did not start within {START_SECONDS:.0f} s", f"see {self.places.logs}"
            ) from error

    def check(self) -> None:
        """Raise when a program, or the connection to the broker, has ended by itself."""
        if self._watching is not None and self._watching.done():
            self._watching.result()
        for child in self._children:
            child.check()

    def _inject(self, fault: Fault) -> None:
        inject(self.places.virtual, (fault,))
        self.outcome.injected_layer, self.outcome.injected_fault = fault.layer, fault.kind

    # --- the main job ---

    async def main_job(self, watch: DeviceWatch) -> Outcome:
        if self.failing is not None:
            await self._fail(self.failing, watch)
            return self.outcome
        if not (self._options.from_start and self.fault is not None):
            await self._accept(watch)
            if self.fault is None:
                await self._stay_quiet(watch)
                return self.outcome
            self._inject(self.fault)
            self._show.say("fault", f"`{self.fault.kind}` injected into layer {self.fault.layer}")
        else:
            self._show.say("fault", f"`{self.fault.kind}` is in layer {self.fault.layer} from the start")
        await self._alarm(watch)
        await self._report()
        return self.outcome

    async def _fail(self, failing: Failing, watch: DeviceWatch) -> None:
        outcome = self.outcome
        outcome.failures = tuple(failure.name for failure in self._options.failures)
        outcome.why = await failing.follow(watch)
        outcome.alarms, outcome.right = tuple(failing.alarms), True

    async def _accept(self, watch: DeviceWatch) -> None:
        with self._show.progress("acceptance", "measuring the healthy pair") as advance:

            def each() -> None:
                self.check()
                if watch.status is not None and watch.status.phase == "acceptance":
                    advance(watch.status.progress)

            def accepted() -> bool:
                return bool(watch.alarms) or (watch.status is not None and watch.status.phase == "watching")

            await watch.until(accepted, ACCEPTANCE_SECONDS, "accepted reference", each)
            advance(1.0)
        self._no_alarm_yet(watch)
        self._show.say("acceptance", "the reference is frozen")
        with self._show.step("healthy", "watching the healthy pair"):
            await self._no_alarm_for(watch, HEALTHY_SECONDS)
        self._show.say("healthy", f"no alarm; last loss {_loss(watch)}")

    def _no_alarm_yet(self, watch: DeviceWatch) -> None:
        if watch.alarms:
            raise TidegaugeError(
                f"an alarm on a healthy pair: {watch.alarms[0].message}", "this is a defect of Tidegauge"
            )

    async def _no_alarm_for(self, watch: DeviceWatch, seconds: float) -> None:
        until = time.monotonic() + seconds

        def over() -> bool:
            return bool(watch.alarms) or time.monotonic() >= until

        await watch.until(over, seconds + 5, "end of the healthy watch", self.check)
        self._no_alarm_yet(watch)

    async def _stay_quiet(self, watch: DeviceWatch) -> None:
        with self._show.step("no fault", "nothing is injected: no alarm may come"):
            try:
                await self._no_alarm_for(watch, QUIET_SECONDS)
            except TidegaugeError as error:
                self.outcome.why = str(error)
                return
        self.outcome.right = True
        self.outcome.why = "no fault, no alarm"

    async def _alarm(self, watch: DeviceWatch) -> None:
        with self._show.step("alarm", "waiting for the alarm"):
            await watch.until(lambda: bool(watch.alarms), ALARM_SECONDS, "alarm", self.check)
        alarm = watch.alarms[0]
        outcome = self.outcome
        outcome.detector, outcome.verdict, outcome.symptoms = alarm.detector, alarm.verdict, alarm.symptoms
        self._show.say("alarm", f"{alarm.detector}{': ' + ', '.join(alarm.symptoms) if alarm.symptoms else ''}")
        self._show.say("verdict", f"{alarm.verdict}. {alarm.message}")

    async def _report(self) -> None:
        """Follow the bundle through the collector to the report."""
        assert self.outcome.page is not None
        seen = ""
        deadline = time.monotonic() + REPORT_SECONDS
        with self._show.step("capture", "traces at debug_level 3, bundle, transfer, comparison"):
            while True:
                self.check()
                bundle = await self._bundle()
                if bundle is not None and bundle.state != seen:
                    seen = bundle.state
                    self._show.say("bundle", f"{bundle.bundle}: {seen.replace('_', ' ')}")
                if bundle is not None and seen in ("compared", "failed"):
                    break
                if time.monotonic() > deadline:
                    raise TidegaugeError(
                        f"no report within {REPORT_SECONDS:.0f} s (bundle: {seen or 'none yet'})",
                        f"see the logs in {self.places.logs}",
                    )
                await asyncio.sleep(0.2)
        self._judge(bundle)

    async def _bundle(self) -> ListedBundle | None:
        bundles = msgspec.convert(await get_json(f"{self.outcome.page}api/v1/bundles"), list[ListedBundle])
        return next((each for each in bundles if each.device == DEVICE), None)

    def _judge(self, bundle: ListedBundle) -> None:
        outcome, fault = self.outcome, self.fault
        assert fault is not None
        outcome.bundle = bundle.bundle
        if bundle.report:
            outcome.report = f"{outcome.page}reports/{DEVICE}/{bundle.bundle}/report.html"
        outcome.named_layer, outcome.named_cause = bundle.culprit or None, bundle.culprit_cause or None
        outcome.right = outcome.named_layer == fault.layer
        if bundle.state == "failed":
            outcome.why = f"the comparison failed: {bundle.reason}"
        elif outcome.right:
            outcome.why = "the named culprit is the injected layer"
        else:
            outcome.why = f"the report names {outcome.named_layer or 'no layer'}"


def _loss(watch: DeviceWatch) -> str:
    loss = watch.status.detail.get("loss") if watch.status is not None else None
    return "unknown" if loss is None else f"{loss:.3f}"


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def run(options: Options, show: Show, after: Callable[[Outcome], Any]) -> Outcome:
    """Run the demo; `after(outcome)` is awaited while everything still runs."""
    demo = Demo(options, show)
    begun = time.monotonic()
    async with demo.started() as watch:
        outcome = await demo.main_job(watch)
        outcome.seconds = {**show.seconds, "total": round(time.monotonic() - begun, 1)}
        await after(outcome)
    return outcome
