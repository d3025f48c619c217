"""One failure mode against one agent: a real process on a virtual board of its own, watched from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import Manifest
from tidegauge.bundles.reader import missing_blobs, read_manifest
from tidegauge.evaluation import control
from tidegauge.evaluation.answers import Answer, Answers
from tidegauge.evaluation.control import Alarm, Status
from tidegauge.evaluation.reliability_agent import Template, configured
from tidegauge.evaluation.reliability_modes import Mode
from tidegauge.evaluation.small_board import STOP_SECONDS, healthz, metrics, wait_for
from tidegauge.virtualboard import failures, faults, freezer
from tidegauge.virtualboard.remoteproc import emulated
from tidegauge.virtualboard.state import fail, inject, reboot

#: An answer that was under way when the alarm was latched comes unmarked.
IN_FLIGHT_SECONDS = 0.3
#: Right, undoubted answers running that count as recovered.
RIGHT_ANSWERS = 5
#: From the end of a capture to the alarm that it raises.
SETTLE_SECONDS = 5.0
#: How long a mode that must show nothing is watched.
QUIET_SECONDS = 8.0
_COUNTS = ("tidegauge_frames_total", "tidegauge_inferences_total{", "tidegauge_frames_dropped_total{")


class Row(msgspec.Struct):
    """What came of one mode. Times in seconds since the failure began; None where it never came.

    `saw`: the agent's own sentence. `back`: from cure and `alarm clear` to right answers. `before`: wrong answers that
    went out undoubted until the alarm; `after`: from then on. `lost`: what is missing afterwards. `problems`: whatever
    else is not as documented.
    """

    mode: Mode
    within: float
    saw: str = ""
    alarms: tuple[str, ...] = ()
    detected: float | None = None
    reason: bool = False
    ended: bool = False
    end: float | None = None
    back: float | None = None
    before: int = 0
    after: int = 0
    answers: int = 0
    lost: list[str] = []
    problems: list[str] = []

    @property
    def missed(self) -> list[str]:
        """Goals that were not met, in words."""
        found = []
        if self.mode.ends != "harmless" and (self.detected is None or self.detected > self.within):
            found.append(f"detected within {self.within:.0f} s")
        if not self.reason:
            found.append("the right reason")
        if not self.ended:
            found.append(f"ended as documented ({self.mode.ends})")
        if self.lost:
            found.append("nothing lost")
        if self.after or (self.before and not self.mode.silent):
            found.append("no wrong answer published as a right one")
        return found + self.problems


class Trial:
    """`run()` once."""

    def __init__(self, mode: Mode, template: Template, folder: Path) -> None:
        self._mode, self._right, self._pace = mode, template.right, template.pace
        self._patience = 60.0 + 4 * template.pace.start
        self._board = template.board.copy(folder)
        self._row = Row(mode, template.pace.within(mode), lost=[], problems=[])
        self._answers = Answers()
        self._agent: subprocess.Popen[bytes]
        self._url = ""
        self._began, self._healed = 0.0, float("inf")
        self._seen: set[str] = set()

    def run(self) -> Row:
        mode, row, board = self._mode, self._row, self._board
        config = configured(board, self._pace, self._settings())
        with ExitStack() as stack:
            stack.callback(freezer.release, board.virtual_folder)  # else a frozen worker would outlive its agent
            if mode.action != "no_server":
                stack.enter_context(board.remote_log())
            if mode.begin.startswith("start"):
                self._inject()
            self._agent = stack.enter_context(board.agent(config))
            stack.enter_context(self._answers.listening(board.state / "results.socket"))
            try:
                self._url = board.url(self._agent)
                self._carry_out(stack)
            except TimeoutError as error:
                row.problems.append(str(error))
            if self._url:
                self._look_at_frames()
            row.answers = self._answers.count
        row.saw = row.saw.replace(f"{board.folder}/", "")
        self._count_answers()
        self._look_at_files()
        return row

    def _settings(self) -> dict[str, dict[str, Any]]:
        tables = dict(self._mode.settings)
        if self._mode.action == "core_restarts":
            tables["supervision"] = {"remoteproc": True, "sysfs": str(self._board.folder / "sys")}
        return tables

    # --- the failure, what is seen, the cure ---

    def _carry_out(self, stack: ExitStack) -> None:
        mode = self._mode
        if mode.begin != "start":
            self._until_right(0.0, self._patience)
        if mode.begin == "start":
            self._began = time.time()  # the failure was there before, but nobody to meet it
        if "capture" in mode.begin:
            if mode.begin == "capture":
                self._inject()
            self._capture()
        elif mode.begin == "running":
            self._act(stack)
            if mode.action != "kill_worker":
                self._inject()
        if "capture" not in mode.begin:
            self._detect()
        self._end()
        if mode.ends in ("given_up", "alarmed") or (mode.alarms and "capture" in mode.begin):
            self._cure(stack)

    def _inject(self) -> None:
        """Switch failures and faults on. Time counts from now."""
        mode, folder = self._mode, self._board.virtual_folder
        self._began = time.time()
        if mode.failures:
            fail(folder, [failures.parse(text) for text in mode.failures])
        if mode.faults:
            inject(folder, [faults.parse(text) for text in mode.faults], self._board.folder / "artifacts")

    def _act(self, stack: ExitStack) -> None:
        """What no switch of the virtual board does."""
        action = self._mode.action
        self._began = time.time()
        if action == "core_restarts":
            stack.enter_context(emulated(self._board.virtual_folder, self._board.folder / "sys"))
        if action == "kill_worker":
            pid = next((worker.pid for worker in self._status().workers if worker.name == "pipeline"), None)
            if pid is None:
                raise TimeoutError("the pipeline has no worker that could be killed")
            os.kill(pid, signal.SIGKILL)

    def _detect(self) -> None:
        mode, row = self._mode, self._row
        if mode.ends == "harmless":
            self._stay_quiet()
            return
        if not mode.alarms:
            wait_for(lambda: self._status().replaced_today > 0, row.within + 20, "replaced worker")
            row.detected = time.time() - self._began
            row.saw, row.reason = self._status().last_end, True
            return
        alarm = wait_for(lambda: self._alarm(mode.alarms), row.within + 20, f"alarm of {', '.join(mode.alarms)}")
        row.saw = alarm.message
        row.detected = max(0.0, alarm.wall - self._began)
        row.reason = mode.says in alarm.message

    def _capture(self) -> None:
        """Ask for a capture; its end is what is seen."""
        mode, row = self._mode, self._row
        self._began = time.time()
        reply = control.ask(self._board.state, "CaptureNow", self._patience + 60)
        row.detected = time.time() - self._began
        row.saw = reply.sentence
        row.reason = mode.says in reply.sentence
        result = "captured" if reply.ok else reply.sentence.removeprefix("capture ").partition(":")[0]
        if result != mode.ends:
            row.problems.append(f"the capture was {result}")
        if mode.alarms:
            alarm = wait_for(lambda: self._alarm(mode.alarms), SETTLE_SECONDS, "alarm")
            row.reason = row.reason and mode.says in alarm.message
        elif self._status().alarms:
            row.problems.append("an alarm was raised")

    def _end(self) -> None:
        """Wait for the documented ending."""
        mode, row = self._mode, self._row
        if mode.ends == "harmless":
            row.ended = True
        elif mode.ends == "given_up":
            given_up = frozenset({"accelerator_down"})
            down = wait_for(lambda: self._alarm(given_up), self._patience, "accelerator given up")
            row.end = max(0.0, down.wall - self._began)
            row.ended = self._given_up()
        elif mode.ends == "alarmed":
            row.end = row.detected
            row.ended = row.detected is not None
        else:
            after = self._began + (row.detected or 0.0)
            row.end = self._until_right(after, self._patience) - self._began
            row.ended = mode.ends != "captured" or self._captured()

    def _given_up(self) -> bool:
        """Nothing is sent any more; the agent lives."""
        code, text = healthz(self._url)
        count = self._answers.count
        time.sleep(1.0)
        status = self._status()
        pids = [worker.pid for worker in status.workers if worker.name == "pipeline"]
        gone = pids == [None] or "unkillable" in self._mode.failures
        return code == 200 and gone and text.startswith("stopped_alarmed") and self._answers.count == count

    def _captured(self) -> bool:
        """Whether the new bundle holds every trace whole."""
        newest = max(self._bundles(), key=lambda path: path.stat().st_mtime)
        manifest = read_manifest(newest)
        lacking = [manifest.cause.evidence.get(f"traces_{what}") for what in ("missing", "truncated", "unexpected")]
        if manifest.tracing_changed_output != bool(self._mode.says):
            self._row.problems.append(f"tracing_changed_output is {manifest.tracing_changed_output}")
        return lacking == [0.0, 0.0, 0.0] and bool(manifest.traces) and not missing_blobs(newest, manifest)

    def _reboot(self, stack: ExitStack) -> None:
        """Switch the board off and on, and the agent with it where it holds a session."""
        if self._mode.ends != "given_up":
            self._agent.terminate()
            self._agent.wait(STOP_SECONDS)
            reboot(self._board.virtual_folder)
            self._agent = stack.enter_context(self._board.agent(self._board.folder / "agent.toml"))
            self._url = self._board.url(self._agent)
        else:
            reboot(self._board.virtual_folder)

    def _cure(self, stack: ExitStack) -> None:
        """Heal the board, reboot it where that is the cure, clear the alarm: right answers must come back."""
        folder = self._board.virtual_folder
        if self._mode.ends == "alarmed":
            self._end_captures()
        fail(folder, ())
        inject(folder, ())
        self._healed = time.time()
        if self._mode.reboot:
            self._reboot(stack)
        cleared = self._clear()
        came = wait_for(lambda: self._right_since(cleared) or self._status().alarms, self._patience, "right answers")
        if not isinstance(came, float):  # of a golden run, or a frame, that was under way at the cure
            came = self._until_right(self._clear(), self._patience)
        self._row.back = came - cleared

    def _clear(self) -> float:
        """When the alarms were cleared, seconds since 1970."""
        reply = control.ask(self._board.state, "ClearAlarms")
        if not reply.ok:
            self._row.problems.append(f"alarm clear was refused: {reply.sentence}")
        return time.time()

    def _end_captures(self) -> None:
        """A wrong answer asks for a capture, which is over before the alarm is cleared."""
        if self._mode.faults:
            wait_for(lambda: self._status().captures.last, self._patience, "end of the capture")

    def _stay_quiet(self) -> None:
        self._until_right(0.0, self._patience)
        until = time.time() + QUIET_SECONDS
        while time.time() < until:
            if found := self._status().alarms:
                self._row.problems.append(f"an alarm was raised: {found[0].message}")
            time.sleep(0.5)
        self._row.saw, self._row.reason = "nothing: warm-up runs are thrown away", True

    # --- what is looked at ---

    def _status(self) -> Status:
        try:
            found = control.status(self._board.state)
        except OSError as error:
            ended = self._agent.poll()
            what = f"the agent gives no answer ({error})" if ended is None else f"the agent has ended with {ended}"
            raise TimeoutError(f"{what}; its log ends with: {last_line(self._board.log())}") from error
        self._seen.update(alarm.detector for alarm in found.alarms)
        self._row.alarms = tuple(sorted(self._seen))
        return found

    def _alarm(self, detectors: frozenset[str]) -> Alarm | None:
        alarms = [alarm for alarm in self._status().alarms if alarm.detector in detectors]
        fitting = [alarm for alarm in alarms if self._mode.says in alarm.message]
        return next(iter(fitting or alarms), None)

    def _until_right(self, after: float, seconds: float) -> float:
        """When the first of some right, undoubted answers running came, all after `after`. Raises TimeoutError."""
        when: float = wait_for(lambda: self._right_since(after), seconds, "right answers")
        return when

    def _right_since(self, after: float) -> float | None:
        run: list[Answer] = []
        for answer in self._answers.since(after):
            run = [*run, answer] if answer.digest in self._right and not answer.doubts else []
            if len(run) >= RIGHT_ANSWERS:
                return run[0].wall
        return None

    def _count_answers(self) -> None:
        row = self._row
        known = self._began + (row.detected or 0.0) + IN_FLIGHT_SECONDS
        for answer in self._answers.since(0.0):
            wrong = answer.digest not in self._right
            if self._mode.all_wrong and self._began + IN_FLIGHT_SECONDS <= answer.wall < self._healed:
                wrong = True
            if wrong and not answer.doubts:
                if row.detected is not None and answer.wall > known:
                    row.after += 1
                else:
                    row.before += 1

    def _look_at_frames(self) -> None:
        """Every frame of the camera was run, or dropped with a reason; one or two are under way."""
        if self._agent.poll() is not None:
            self._row.problems.append(f"the agent has ended with {self._agent.returncode}")
            return
        time.sleep(1.1)  # the page may be a second old
        page = metrics(self._url)
        frames, run, dropped = (sum(v for name, v in page.items() if name.startswith(each)) for each in _COUNTS)
        ring = page.get('tidegauge_frames_dropped_total{reason="camera_ring_full"}', 0.0)  # never delivered as a frame
        left = frames - run - (dropped - ring)
        if not -2 <= left <= 6:
            self._row.lost.append(f"{left:g} frames unaccounted for")

    def _bundles(self) -> list[Path]:
        return sorted((self._board.state / "spool" / "bundles").iterdir())

    def _look_at_files(self) -> None:
        """After the agent has ended: its bundles, its state, its log."""
        row, board = self._row, self._board
        bundles = self._bundles()
        if not bundles:
            row.lost.append("the bundle that was in the spool before")
        for path in bundles:
            try:
                manifest: Manifest = read_manifest(path)
                if missing_blobs(path, manifest):
                    row.lost.append(f"blobs of {path.name}")
            except BundleError as error:
                row.lost.append(str(error))
        state = json.loads((board.state / "state.json").read_text())
        if list(board.state.glob("state.json.corrupt*")) or state["accepted"] is None or not state["golden"]:
            row.lost.append("the accepted reference")
        if self._agent.returncode not in (0, -signal.SIGTERM):
            row.problems.append(f"the agent ended with {self._agent.returncode}")
        if "Traceback" in board.log():
            row.problems.append("a traceback in the agent's log")


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "nothing"
