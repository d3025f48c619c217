"""Capture: traces of one recorded input tensor, without harming what runs (DESIGN §7).

refuse → stop the pipeline → clear stale traces → traced run in a process of its own → files out as they complete →
pipeline restarted and proven by a device run of the same tensor → outputs with and without tracing compared → bundle.
Whatever happens in between, the pipeline is restarted.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from tidegauge.agent.bundling import Captured, Identity, build_bundle, element_types
from tidegauge.agent.bus import Bus
from tidegauge.agent.completeness import Completeness, judge, predicted_bytes
from tidegauge.agent.config import CaptureConfig, RuntimeConfig
from tidegauge.agent.events import (
    AlarmRaised,
    BundleSealed,
    CaptureEnded,
    CaptureStep,
    Evidence,
    PhaseChanged,
    TracesLeft,
)
from tidegauge.agent.limits import Taken, forget_old
from tidegauge.agent.pipeline import PipelineService, PipelineUnavailable
from tidegauge.agent.preconditions import MIB, NotWhileItRuns, Preconditions, Refused
from tidegauge.agent.privacy import PrivatePairs
from tidegauge.agent.put_off import PutOff
from tidegauge.agent.shadow import ShadowUnavailable
from tidegauge.agent.stage import during
from tidegauge.agent.state import StateStore, TraceSize
from tidegauge.agent.traces import TraceCollector, stale_traces
from tidegauge.agent.workers import Worker, WorkerEnded
from tidegauge.clocks import Monotonic, monotonic, wall
from tidegauge.errors import TidegaugeError
from tidegauge.log_kinds import CAPTURE_CUT_OFF, CAPTURES, TRACES_LEFT
from tidegauge.metrics import CAPTURE_RESULTS, AgentMetrics, Refusal
from tidegauge.pipeline.messages import SessionOpened, StartTrace, TraceDone, TraceEvent
from tidegauge.profile import Profile
from tidegauge.signing import KeyProvider
from tidegauge.spool.store import Spool
from tidegauge.tidl import tensor_table
from tidegauge.tidl.errors import FormatError

log = logging.getLogger(__name__)

#: In order. Told by `CaptureStep` and in the status.
STEPS = ("checking", "pausing", "clearing", "tracing", "collecting", "proving", "bundling")


class CaptureService:
    """Takes one capture at a time, for alarms as they come; `run()` for ever."""

    def __init__(
        self,
        config: CaptureConfig,
        runtime: RuntimeConfig,
        profile: Profile,
        identity: Callable[[], Identity],
        preconditions: Preconditions,
        pipeline: PipelineService,
        spool: Spool,
        store: StateStore,
        bus: Bus,
        metrics: AgentMetrics,
        private: PrivatePairs,
        work: Path,
    ) -> None:
        self._config, self._runtime, self._profile, self._identity = config, runtime, profile, identity
        self._preconditions = preconditions
        self._pipeline, self._spool, self._store = pipeline, spool, store
        self._bus, self._metrics, self._private = bus, metrics, private
        self._disk_work = work
        self._queue: asyncio.Queue[tuple[AlarmRaised, asyncio.Future[CaptureEnded] | None]] = asyncio.Queue()
        self.results: Counter[str] = Counter(dict.fromkeys(CAPTURE_RESULTS, 0))
        self.refusals: Counter[Refusal] = Counter(dict.fromkeys(Refusal, 0))
        self.step, self.last = "", ""
        #: Signs the manifests; None leaves them without a signature.
        self.key: KeyProvider | None = None
        self.began: Monotonic | None = None
        #: Held while a capture is taken, and by whoever else stops and starts the pipeline.
        self.turn = asyncio.Lock()
        self._wanted = config
        self._put_off = PutOff(
            pipeline, private, store, lambda: self.allowed_seconds, lambda alarm: self._queue.put_nowait((alarm, None))
        )
        bus.on(AlarmRaised, lambda alarm: self._queue.put_nowait((alarm, None)) if alarm.capture else None)

    def reconfigure(self, config: CaptureConfig) -> None:
        """From the next capture on: one that is under way ends as it began."""
        self._wanted = config

    @property
    def allowed_seconds(self) -> float:
        """How long a capture may take: twice what an earlier one took, else the sum of its deadlines."""
        runtime, earlier = self._runtime, self._earlier()
        sum_of_all = 2 * runtime.start_timeout + self._config.timeout + runtime.first_run_timeout + runtime.run_timeout
        return sum_of_all if earlier is None else min(sum_of_all, max(2 * earlier.seconds, 60.0))

    async def take(self, alarm: AlarmRaised) -> CaptureEnded:
        """A capture that nobody's alarm asked for; returns when it has ended."""
        ended: asyncio.Future[CaptureEnded] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((alarm, ended))
        return await ended

    def _folder(self, alarm: AlarmRaised) -> Path:
        """Where a capture's own files lie: in memory, where they must not be on a disk."""
        private = self._private
        return (private.ram.ready() if private.in_ram else self._disk_work) / alarm.id

    def recover(self) -> None:
        """At start, before any worker: clean up after an agent that was killed in the middle of a capture."""
        shutil.rmtree(self._disk_work, ignore_errors=True)
        self._private.ram.clear()
        interrupted = self._store.state.capturing
        if not interrupted:
            return
        folder = Path(self._config.trace_folder)
        left = stale_traces(folder) if folder.is_dir() else []
        for path in left:
            path.unlink(missing_ok=True)
        said = CAPTURE_CUT_OFF.of(bundle=interrupted)
        log.warning(
            "capture %s was cut off by the end of the agent: %d traces removed", interrupted, len(left), extra=said
        )
        self._store.update(capturing="")

    async def run(self) -> None:
        while True:
            alarm, waiting = await self._queue.get()
            async with self.turn:
                self._config = self._preconditions.config = self._wanted
                ended = await self._attempt(alarm)
                if self._pipeline.held:
                    self._pipeline.resume()
            level = logging.INFO if ended.result == "captured" else logging.WARNING
            said = CAPTURES[ended.result].of(bundle=alarm.id, detector=alarm.cause.detector)
            log.log(level, "capture %s: %s", ended.result, ended.sentence, extra=said)
            self.results[ended.result] += 1
            self.last = f"{ended.result}: {ended.sentence}"
            self._metrics.captures.labels(ended.result).inc()
            self._bus.emit(ended)
            if waiting is not None and not waiting.done():
                waiting.set_result(ended)

    async def _attempt(self, alarm: AlarmRaised) -> CaptureEnded:
        try:
            return CaptureEnded("captured", await self._capture(alarm))
        except Refused as refused:
            self.refusals[refused.reason] += 1
            self._metrics.refusals.labels(refused.reason.value).inc()
            later = await self._put_off.add(alarm) if isinstance(refused, NotWhileItRuns) else ""
            return CaptureEnded("refused", f"{refused}{later}")
        except TidegaugeError as error:  # no room in the spool, a trace that changed under our hands
            return CaptureEnded("failed", str(error))
        except (WorkerEnded, PipelineUnavailable, ShadowUnavailable) as error:
            return CaptureEnded("failed", str(error))
        except (TimeoutError, OSError) as error:
            return CaptureEnded("failed", f"{type(error).__name__}: {error}")
        finally:
            self.step, self.began = "", None

    def _enter(self, step: str) -> None:
        self.step = step
        self._bus.emit(CaptureStep(step))

    async def _capture(self, alarm: AlarmRaised) -> str:
        self._enter("checking")
        await asyncio.to_thread(self._check, alarm)
        assert alarm.evidence is not None  # checked
        evidence = await self._private.for_capture(alarm.evidence)
        self._note_taken(alarm)
        self.began = began = monotonic()
        self._bus.emit(PhaseChanged("capturing", 0.0))
        work = self._folder(alarm)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            captured = await self._trace(evidence, work)
            seconds = monotonic() - began
            self._enter("bundling")
            bundle = await asyncio.to_thread(
                build_bundle, self._spool, self._identity(), alarm, captured, self._private.told, self.key
            )
        finally:
            shutil.rmtree(work, ignore_errors=True)
            self._store.update(capturing="")
        self._remember(captured, seconds)
        self._bus.emit(BundleSealed(bundle))
        changed = "; tracing changed the output" if captured.traced.digest != captured.untraced_digest else ""
        return f"bundle {bundle} with {len(captured.traces)} traces{_lacking(captured.completeness)}{changed}"

    # --- before ---

    def _check(self, alarm: AlarmRaised) -> None:
        self._preconditions.check(alarm, self.predicted_bytes())
        private = self._private.check(Path(self._config.trace_folder))
        if private:
            raise Refused(Refusal.TRACE_FOLDER, private)

    def _earlier(self) -> TraceSize | None:
        """What an earlier whole capture of these artifacts at this level took."""
        traces = self._store.state.traces
        if traces is None or traces.debug_level != self._config.debug_level:
            return None
        return traces if traces.artifacts == self._store.state.artifacts else None

    def predicted_bytes(self) -> int | None:
        """Of the traces: from an earlier capture, else from the compile's tempDir, where that was copied along."""
        earlier = self._earlier()
        if earlier is not None:
            return earlier.bytes
        for path in sorted(Path(self._profile.artifacts).glob("tempDir/*_net.bin.svg")):
            try:
                table = tensor_table.from_svg(path.read_text(errors="replace"))
            except (OSError, FormatError) as error:
                log.warning("%s tells no sizes: %s", path, error)
                continue
            return predicted_bytes(table, self._config.debug_level)
        return None

    def _note_taken(self, alarm: AlarmRaised) -> None:
        """Count the attempt before it is made: a capture that crashes the board must not be repeated at each boot."""
        now = wall()
        captures = (*forget_old(self._store.state.captures, now), Taken(now, alarm.cause.detector))
        self._store.update(captures=captures, capturing=alarm.id)

    def _remember(self, captured: Captured, seconds: float) -> None:
        """Sizes and time of a whole capture: the next one is predicted from them."""
        if captured.completeness.missing or captured.completeness.truncated:
            return
        files = {path.name: size for path, size in zip(captured.traces, captured.sizes, strict=True)}
        size = TraceSize(self._store.state.artifacts, self._config.debug_level, files, seconds)
        self._store.update(traces=size)
        self._metrics.capture_bytes.set(size.bytes)
        self._metrics.capture_seconds.set(seconds)

    # --- the traced run ---

    async def _trace(self, evidence: Evidence, work: Path) -> Captured:
        input_path = work / "input.bin"
        input_path.write_bytes(b"".join(evidence.inputs))
        log_file = Path(self._config.remote_log_file) if self._config.remote_log_file else None
        log_start = log_file.stat().st_size if log_file is not None and log_file.exists() else 0
        ready = self._pipeline.described
        traces, outcome = await self._run_without_pipeline(input_path, work)
        self._bus.emit(PhaseChanged("capturing", 0.5))
        self._enter("proving")
        untraced = await self._prove(input_path, work)
        if isinstance(outcome, WorkerEnded):
            raise outcome
        if ready is None:
            raise PipelineUnavailable("the pipeline was down before the capture")
        remote_log = await asyncio.to_thread(_read_from, log_file, log_start)
        sizes = tuple(path.stat().st_size for path in traces)
        types = element_types(remote_log)
        earlier = self._earlier()
        completeness = judge(
            {path.name: size for path, size in zip(traces, sizes, strict=True)},
            types,
            types,
            None if earlier is None else earlier.files,
        )
        return Captured(
            ready=ready,
            evidence=evidence,
            traces=tuple(traces),
            sizes=sizes,
            completeness=completeness,
            traced=outcome,
            traced_outputs=tuple((work / f"{index}.bin").read_bytes() for index in range(len(outcome.outputs))),
            untraced_digest=untraced,
            remote_log=remote_log,
            worker_log=(work / "trace.log").read_bytes()[-MIB:],
            debug_level=self._config.debug_level,
            endings=self._pipeline.endings.kept,
        )

    async def _run_without_pipeline(self, input_path: Path, work: Path) -> tuple[list[Path], TraceDone | WorkerEnded]:
        """Pipeline out of the way, traced run, pipeline allowed again: whatever happens in between."""
        source = Path(self._config.trace_folder)
        self._enter("pausing")
        await self._pipeline.pause()
        try:
            await asyncio.to_thread(self._preconditions.check_heap, Path(self._profile.artifacts))
            self._enter("clearing")
            for path in stale_traces(source):
                path.unlink()
            collector = TraceCollector(source, work / "traces")
            collector.start()
            outcome: TraceDone | WorkerEnded
            try:
                self._enter("tracing")
                outcome = await self._run_alone(input_path, work, self._config.debug_level)
            except WorkerEnded as error:
                outcome = error
            finally:
                self._enter("collecting")
                traces = await collector.finish()
        finally:
            if not self._pipeline.held:  # the session that waits is opened once the accelerator is proven
                self._pipeline.resume()
        return traces, outcome

    async def _run_alone(self, input_path: Path, work: Path, debug_level: Literal[0, 3, 4]) -> TraceDone:
        """One run in a session of the agent's own, while there is no other."""
        start = StartTrace(self._profile, self._runtime.module, str(input_path), debug_level, str(work))
        endings = self._pipeline.endings
        follower = endings.follow(work / "trace.log")
        worker: Worker[TraceEvent] = await Worker.start(
            "trace", "tidegauge.pipeline.trace_worker", TraceEvent, {}, work
        )
        hung = False
        try:
            await worker.send(start)
            with during("trace_create"):
                opened, _ = await worker.receive(self._runtime.start_timeout)
            if not isinstance(opened, SessionOpened):
                raise WorkerEnded("failed", f"the trace worker answered with {type(opened).__name__}")
            done, _ = await worker.receive(self._config.timeout)
        except WorkerEnded as error:
            hung = error.kind.endswith("hung")
            if hung:
                self._pipeline.hung_elsewhere()
            raise endings.named(error, follower) from error
        finally:
            await worker.stop(at_once=hung)
        if not isinstance(done, TraceDone):
            raise WorkerEnded("failed", f"the trace worker answered with {type(done).__name__}")
        return done

    async def _prove(self, input_path: Path, work: Path) -> str:
        """The restarted pipeline must complete a device run of the same tensor; returns that run's digest. While the
        next session is held, one of the agent's own must.

        Its session must not dump any more: the trace level is a global of the C7x, which the next create resets.
        """
        for attempt in range(2):
            digest = await self._proving_run(input_path, work / f"proof-{attempt}")
            leaked = stale_traces(Path(self._config.trace_folder))
            if not leaked:
                return digest
            log.warning(
                "the pipeline still dumps traces after a capture (%d files)", len(leaked), extra=TRACES_LEFT.of()
            )
            for path in leaked:
                path.unlink(missing_ok=True)
            if attempt == 0 and not self._pipeline.held:
                await self._pipeline.pause()
                self._pipeline.resume()
        left = TidegaugeError(
            "the pipeline's session still dumps traces: the accelerator's trace state was not reset", "reboot the board"
        )
        self._bus.emit(TracesLeft(str(left)))
        raise left

    async def _proving_run(self, input_path: Path, work: Path) -> str:
        if self._pipeline.held:
            work.mkdir()
            return (await self._run_alone(input_path, work, 0)).digest
        runtime = self._runtime
        async with asyncio.timeout(runtime.start_timeout + runtime.first_run_timeout + runtime.run_timeout):
            while True:
                await self._pipeline.until_up()
                try:
                    return (await self._pipeline.run_tensor(input_path, -1)).digest
                except PipelineUnavailable:
                    continue  # it went down again under the request: wait for the next generation


def _read_from(path: Path | None, start: int) -> bytes:
    """At most 4 MiB of what was added to a file."""
    if path is None or not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(start)
        return file.read(4 * MIB)


def _lacking(completeness: Completeness) -> str:
    """What to add to a sentence about the traces, empty where all are whole."""
    if completeness.whole:
        return ""
    kinds = {
        "missing": completeness.missing,
        "truncated": completeness.truncated,
        "unexpected": completeness.unexpected,
    }
    parts = [f"{len(names)} {what}" for what, names in kinds.items() if names]
    return f" ({', '.join(parts)})"
