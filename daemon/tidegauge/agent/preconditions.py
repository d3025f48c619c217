"""Whether a capture may be taken now: every reason against it, each with its name (DESIGN §7)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from tidegauge import board
from tidegauge.agent.config import CaptureConfig
from tidegauge.agent.events import AlarmRaised
from tidegauge.agent.limits import in_quiet_hours, refusal
from tidegauge.agent.pipeline import PipelineService
from tidegauge.agent.state import StateStore
from tidegauge.clocks import wall
from tidegauge.errors import TidegaugeError
from tidegauge.metrics import Refusal
from tidegauge.runtimes import shared_heap
from tidegauge.tidl.heap_stats import TRACE_OBJECT_BYTES

log = logging.getLogger(__name__)

MIB = 1024 * 1024
#: Beyond the predicted bytes of a capture: block sizes, and what others write meanwhile.
MARGIN, RESERVE = 1.25, 8 * MIB


class Refused(Exception):
    """The capture must not be taken now; the text is a sentence."""

    def __init__(self, reason: Refusal, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class NotWhileItRuns(Refused):
    """The session can't be closed for it; before the next one is opened it can be taken, perhaps."""


class Preconditions:
    """`camera_problem` says in words what is wrong with the camera, `files_problem` what with model and artifacts as
    they lie there now, which a traced run would open; empty for nothing.
    """

    def __init__(
        self,
        config: CaptureConfig,
        store: StateStore,
        pipeline: PipelineService,
        camera_problem: Callable[[], str],
        files_problem: Callable[[], str] = lambda: "",
    ) -> None:
        self.config, self._store = config, store
        self._pipeline, self._camera_problem, self._files_problem = pipeline, camera_problem, files_problem

    def check(self, alarm: AlarmRaised, predicted: int | None) -> None:
        """Raises Refused. `predicted`: bytes of the traces, None where nobody knows. Blocks on the disk."""
        self._check_policy(alarm)
        self._check_health()
        self._check_space(predicted)
        self._check_server()
        if self._pipeline.cannot_pause:
            raise NotWhileItRuns(Refusal.OTHER_CLIENT, self._pipeline.cannot_pause)
        others = board.tidl_holders(self._pipeline.pids())
        if others:
            named = ", ".join(f"pid {pid} ({unit})" for pid, unit in others)
            raise Refused(Refusal.OTHER_CLIENT, f"other processes hold a TIDL session and would be traced too: {named}")

    def check_heap(self, artifacts: Path) -> None:
        """Raises Refused. Only while the pipeline is paused, since the tool is a TIDL client itself. Blocks on it."""
        tool = self.config.heap_tool
        if not tool:
            return
        try:
            shared = shared_heap.shared(shared_heap.ask(tool))
            need = shared_heap.session_bytes(artifacts) + TRACE_OBJECT_BYTES
        except FileNotFoundError:
            log.info(
                "captures are taken without knowing the free heap: there is no %s (key `capture.heap_tool`)", tool[0]
            )
            return
        except TidegaugeError as error:
            raise Refused(
                Refusal.HEAP, f"the free shared heap can't be told: {error} (key `capture.heap_tool`)"
            ) from error
        if shared.free < need:
            room = f"{shared.free // MIB} MiB of {shared.size // MIB} MiB free"
            room += f", a traced session takes {-(-need // MIB)} MiB"
            cure = "end other users of it; what killed ones held comes back at a reboot only"
            raise Refused(Refusal.HEAP, f"the shared heap is too full: {room}; {cure}")

    def _check_policy(self, alarm: AlarmRaised) -> None:
        config, now = self.config, wall()
        if not config.enabled:
            raise Refused(Refusal.SWITCHED_OFF, "captures are switched off (key `capture.enabled`)")
        if alarm.evidence is None:
            raise Refused(Refusal.NO_EVIDENCE, "no pair of input and output was recorded for this alarm")
        if config.veto_file and Path(config.veto_file).exists():
            raise Refused(Refusal.VETO, f"{config.veto_file} exists (key `capture.veto_file`)")
        local = time.localtime(now)
        if in_quiet_hours(config.quiet_hours, 60 * local.tm_hour + local.tm_min):
            sentence = f"these are quiet hours, {config.quiet_hours} (key `capture.quiet_hours`)"
            raise Refused(Refusal.QUIET_HOURS, sentence)
        taken = self._store.state.captures
        why = refusal(taken, alarm.cause.detector, now, config.per_hour, config.per_day, config.per_cause_hour)
        if why is not None:
            raise Refused(Refusal.RATE, why)

    def _check_health(self) -> None:
        held = self._pipeline.held  # then there are no frames, and none are needed
        problem = self._camera_problem()
        if problem and not held:
            raise Refused(Refusal.CAMERA, f"the camera is unhealthy: {problem}")
        files = self._files_problem()
        if files:
            raise Refused(Refusal.FILES, f"the traces would be of another network than the alarm: {files}")
        if self._pipeline.suspect or (self._pipeline.ready is None and not held):
            raise Refused(
                Refusal.ACCELERATOR, f"the accelerator is unhealthy: its worker is {self._pipeline.stage.name}"
            )

    def _check_space(self, predicted: int | None) -> None:
        config, folder = self.config, Path(self.config.trace_folder)
        if not folder.is_dir():
            raise Refused(
                Refusal.TRACE_FOLDER, f"the trace folder {folder} (key `capture.trace_folder`) does not exist"
            )
        if predicted is None:
            wanted, why = config.room_mib * MIB, "key `capture.room_mib`"
        else:
            wanted, why = int(MARGIN * predicted) + RESERVE, f"a capture takes {predicted} bytes"
        for place, harm in (
            (folder, "a full trace folder hangs the accelerator"),
            (self._store.folder, "the traces are copied there"),
        ):
            free = board.free_bytes(place)
            if free < wanted:
                room = f"{free // MIB} MiB free of the {-(-wanted // MIB)} MiB wanted"
                raise Refused(Refusal.SPACE, f"{place} has {room} ({why}); {harm}")

    def _check_server(self) -> None:
        config = self.config
        servers = board.processes_matching(config.remote_log)
        if len(servers) == 1:
            return
        found = "none is running" if not servers else f"{len(servers)} are running: pids {servers}"
        raise Refused(
            Refusal.SEVERAL_SERVERS if servers else Refusal.NO_SERVER,
            f"exactly one remote-log server (`{config.remote_log}`, key `capture.remote_log`) must run, {found};"
            " without it a traced run hangs the accelerator",
        )
