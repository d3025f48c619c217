"""Capture: traces of one recorded input tensor, without harming what runs (DESIGN §7).

refuse → stop the pipeline → clear stale traces → traced run in a process of its own → files out as they complete →
pipeline restarted and proven by a device run of the same tensor → outputs with and without tracing compared → bundle.
Whatever happens in between, the pipeline is restarted.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from tidegauge import board
from tidegauge.agent.bundling import Captured, Identity, build_bundle
from tidegauge.agent.bus import Bus
from tidegauge.agent.config import CaptureConfig, RuntimeConfig
from tidegauge.agent.events import AlarmRaised, BundleSealed, CaptureEnded, Evidence, PhaseChanged
from tidegauge.agent.limits import Taken, forget_old, refusal
from tidegauge.agent.pipeline import PipelineService, PipelineUnavailable
from tidegauge.agent.state import StateStore
from tidegauge.agent.traces import TraceCollector, stale_traces
from tidegauge.agent.workers import Worker, WorkerEnded
from tidegauge.clocks import wall
from tidegauge.errors import TidegaugeError
from tidegauge.metrics import AgentMetrics
from tidegauge.pipeline.messages import SessionOpened, StartTrace, TraceDone, TraceEvent
from tidegauge.profile import Profile
from tidegauge.spool.store import Spool

log = logging.getLogger(__name__)

MIB = 1024 * 1024


class Refused(Exception):
    """The capture must not be taken now; the reason is a sentence."""


class CaptureService:
    """Takes one capture at a time, for alarms as they come; `run()` for ever."""

    def __init__(
        self,
        config: CaptureConfig,
        runtime: RuntimeConfig,
        profile: Profile,
        identity: Callable[[], Identity],
        pipeline: PipelineService,
        spool: Spool,
        store: StateStore,
        bus: Bus,
        metrics: AgentMetrics,
        work: Path,
    ) -> None:
        self._config, self._runtime, self._profile, self._identity = config, runtime, profile, identity
        self._pipeline, self._spool, self._store = pipeline, spool, store
        self._bus, self._metrics, self._work = bus, metrics, work
        self._alarms: asyncio.Queue[AlarmRaised] = asyncio.Queue()
        bus.on(AlarmRaised, lambda alarm: self._alarms.put_nowait(alarm) if alarm.capture else None)

    async def run(self) -> None:
        while True:
            alarm = await self._alarms.get()
            try:
                sentence = await self._capture(alarm)
                result = "captured"
            except Refused as refused:
                result, sentence = "refused", str(refused)
            except TidegaugeError as error:  # no room in the spool, a trace that changed under our hands
                result, sentence = "failed", str(error)
            except (WorkerEnded, PipelineUnavailable, TimeoutError, OSError) as error:
                result, sentence = "failed", f"{type(error).__name__}: {error}"
            level = logging.INFO if result == "captured" else logging.WARNING
            log.log(level, "capture %s: %s", result, sentence)
            self._metrics.captures.labels(result).inc()
            self._bus.emit(CaptureEnded(result, sentence))

    async def _capture(self, alarm: AlarmRaised) -> str:
        evidence = alarm.evidence
        if evidence is None:
            raise Refused("no pair of input and output was recorded for this alarm")
        await self._check(alarm)
        self._note_taken(alarm)
        self._bus.emit(PhaseChanged("capturing", 0.0))
        work = self._work / alarm.id
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            captured = await self._trace(alarm, evidence, work)
            bundle = await asyncio.to_thread(
                build_bundle, self._spool, self._identity(), alarm, captured, self._config.privacy
            )
        finally:
            shutil.rmtree(work, ignore_errors=True)
        self._bus.emit(BundleSealed(bundle))
        return f"bundle {bundle} with {len(captured.traces)} traces"

    # --- before ---

    async def _check(self, alarm: AlarmRaised) -> None:
        config = self._config
        if not config.enabled:
            raise Refused("captures are switched off (key `capture.enabled`)")
        taken = self._store.state.captures
        why = refusal(taken, alarm.cause.detector, wall(), config.per_hour, config.per_day, config.per_cause_hour)
        if why is not None:
            raise Refused(why)
        await asyncio.to_thread(self._check_board)

    def _check_board(self) -> None:
        config, folder = self._config, Path(self._config.trace_folder)
        if not folder.is_dir():
            raise Refused(f"the trace folder {folder} (key `capture.trace_folder`) does not exist")
        free = board.free_bytes(folder)
        if free < config.room_mib * MIB:
            raise Refused(
                f"{folder} has {free // MIB} MiB free of the {config.room_mib} MiB wanted (key `capture.room_mib`);"
                " a full trace folder hangs the accelerator"
            )
        servers = board.processes_matching(config.remote_log)
        if len(servers) != 1:
            found = "none is running" if not servers else f"{len(servers)} are running: pids {servers}"
            raise Refused(
                f"exactly one remote-log server (`{config.remote_log}`, key `capture.remote_log`) must run, {found};"
                " without it a traced run hangs the accelerator"
            )
        others = board.tidl_holders(self._pipeline.pids())
        if others:
            named = ", ".join(f"pid {pid} ({unit})" for pid, unit in others)
            raise Refused(f"other processes hold a TIDL session and would be traced too: {named}")

    def _note_taken(self, alarm: AlarmRaised) -> None:
        """Count the attempt before it is made: a capture that crashes the board must not be repeated at each boot."""
        now = wall()
        captures = (*forget_old(self._store.state.captures, now), Taken(now, alarm.cause.detector))
        self._store.update(captures=captures)

    # --- the traced run ---

    async def _trace(self, alarm: AlarmRaised, evidence: Evidence, work: Path) -> Captured:
        source = Path(self._config.trace_folder)
        input_path = work / "input.bin"
        input_path.write_bytes(b"".join(evidence.inputs))
        log_file = Path(self._config.remote_log_file) if self._config.remote_log_file else None
        log_start = log_file.stat().st_size if log_file is not None and log_file.exists() else 0
        ready = self._pipeline.ready
        await self._pipeline.pause()
        try:
            for path in stale_traces(source):
                path.unlink()
            collector = TraceCollector(source, work / "traces")
            collector.start()
            try:
                done = await self._traced_run(input_path, work)
            finally:
                traces = await collector.finish()
        finally:
            self._pipeline.resume()
        if ready is None:
            raise PipelineUnavailable("the pipeline was down before the capture")
        self._bus.emit(PhaseChanged("capturing", 0.5))
        untraced = await self._prove(input_path)
        remote_log = b""
        if log_file is not None and log_file.exists():
            with log_file.open("rb") as file:
                file.seek(log_start)
                remote_log = file.read(4 * MIB)
        return Captured(
            ready=ready,
            evidence=evidence,
            traces=tuple(traces),
            traced=done,
            traced_outputs=tuple((work / f"{index}.bin").read_bytes() for index in range(len(done.outputs))),
            untraced_digest=untraced,
            remote_log=remote_log,
            worker_log=(work / "trace.log").read_bytes()[-MIB:],
            debug_level=self._config.debug_level,
        )

    async def _traced_run(self, input_path: Path, work: Path) -> TraceDone:
        start = StartTrace(self._profile, self._runtime.module, str(input_path), self._config.debug_level, str(work))
        worker: Worker[TraceEvent] = await Worker.start(
            "trace", "tidegauge.pipeline.trace_worker", TraceEvent, {}, work
        )
        try:
            await worker.send(start)
            opened, _ = await worker.receive(self._runtime.start_timeout)
            if not isinstance(opened, SessionOpened):
                raise WorkerEnded("failed", f"the trace worker answered with {type(opened).__name__}")
            done, _ = await worker.receive(self._config.timeout)
        finally:
            await worker.stop()
        if not isinstance(done, TraceDone):
            raise WorkerEnded("failed", f"the trace worker answered with {type(done).__name__}")
        return done

    async def _prove(self, input_path: Path) -> str:
        """The restarted pipeline must complete a device run of the same tensor; returns that run's digest."""
        async with asyncio.timeout(self._runtime.start_timeout + self._runtime.run_timeout):
            while True:
                await self._pipeline.until_up()
                try:
                    return (await self._pipeline.run_tensor(input_path, -1)).digest
                except PipelineUnavailable:
                    continue  # it went down again under the request: wait for the next generation
