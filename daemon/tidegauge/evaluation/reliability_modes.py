"""Failure modes of a board, each with what an agent is expected to make of it.

The names of detectors, refusals and endings are those that docs/supervision.md documents.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tidegauge.errors import TidegaugeError

#: Deadlines and intervals of the agents under test, in seconds: short, so that a mode takes seconds.
RUN, STOP, KILL, TRACED, GOLDEN = 1.5, 3.0, 0.5, 5.0, 2.0
#: Frames a second.
FRAMES = 10.0
#: From the last deadline to the alarm: the worker is ended first, and the machine may be busy.
SLACK = 5.0

#: From an agent's start to its first answer on two idle cores, generously.
IDLE_SECONDS = 6.0

Ending = Literal["recovers", "given_up", "alarmed", "captured", "refused", "failed", "harmless"]
ENDINGS: dict[Ending, str] = {
    "recovers": "right answers again by itself, after a new worker was proven by a device run",
    "given_up": "nothing is sent any more, the agent lives (`stopped_alarmed`); back after cure and `alarm clear`",
    "alarmed": "runs go on, each answer in doubt; right and undoubted after cure and `alarm clear`",
    "captured": "the bundle is whole, the pipeline proven",
    "refused": "no capture, nothing was opened",
    "failed": "the capture has failed, the trace worker was ended, the pipeline is proven again",
    "harmless": "no alarm, no wrong answer",
}


class Pace(msgspec.Struct, frozen=True):
    """How fast this machine is at the moment, measured on a healthy agent. `start`: the deadline of a worker that
    starts and opens a session, in seconds. `factor`: how many times longer than on two idle cores things may take."""

    start: float
    factor: float = 1.0

    @classmethod
    def measured(cls, seconds: float) -> Pace:
        """`seconds`: from the agent's start to its first answer."""
        return cls(max(12.0, 3.0 * seconds), max(1.0, seconds / IDLE_SECONDS))

    def within(self, mode: Mode) -> float:
        """The goal for the time to detect a mode, in seconds."""
        return self.factor * mode.within + mode.starts * self.start


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """One failure, or several together.

    `begin`: there from the start, injected while the agent runs, or before a capture is asked for; or there from the
    start, and then a capture. `failures` (`NAME[:AMOUNT]`) and `faults` (`LAYER:KIND[:AMOUNT]`) of the virtual board;
    `action`: what no switch of it does. `alarms`: one of these detectors must be latched, none where it is empty.
    `says`: a text that the reason must hold, of the alarm or of the capture. `within`: seconds on an idle machine until
    it is known, and `starts`: how many starts of a worker come on top, of which each may take `Pace.start`. `reboot`:
    the cure needs one. `silent`: the stack says nothing, so that answers are wrong until a check finds it.
    `all_wrong`: every answer is, though each is a right one of another frame. `settings`: of the agent, by table.
    """

    name: str
    does: str
    ends: Ending
    within: float = SLACK
    starts: int = 0
    begin: Literal["start", "running", "capture", "start_capture"] = "running"
    failures: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    action: Literal["", "kill_worker", "no_server", "core_restarts"] = ""
    alarms: frozenset[str] = frozenset()
    says: str = ""
    reboot: bool = False
    silent: bool = False
    all_wrong: bool = False
    settings: dict[str, dict[str, Any]] = {}


_DOWN = frozenset({"accelerator_down"})
_HUNG = frozenset({"accelerator_hung"})
_CRASHED = frozenset({"accelerator_crashed"})
_WRONG = frozenset({"known_answer_device"})
_UNUSUAL = frozenset({"known_answer_device", "loss", "nmse", "loss_by_kind", "invariant"})
#: A golden round that began before the fault ends, the next one finds it, and a pair is measured.
_GOLDEN_SECONDS = 2 * GOLDEN + SLACK
_TRIES = 3  # `supervision.failed_creates` of the agents under test


def _never_opens(name: str, does: str, failure: str, alarm: frozenset[str], says: str, **more: Any) -> Mode:
    return Mode(
        name=name,
        does=does,
        begin="start",
        failures=(failure,),
        alarms=alarm,
        says=says,
        ends="given_up",
        starts=_TRIES,
        **more,
    )


def _wrong(name: str, does: str, fault: str, **more: Any) -> Mode:
    defaults: dict[str, Any] = {"alarms": _WRONG, "says": "golden tensor", "within": _GOLDEN_SECONDS}
    return Mode(name=name, does=does, faults=(fault,), ends="alarmed", silent=True, **{**defaults, **more})


_START_MODES = (
    _never_opens(
        "cpu_fallback",
        "ONNX Runtime falls back to the CPU, and says so on stdout only",
        "cpu_fallback",
        frozenset({"not_offloaded"}),
        "cpu_fallback",
    ),
    _never_opens(
        "no_delegation",
        "allowedNode.txt can't be opened: the CPU runs the whole model",
        "no_delegation",
        frozenset({"not_offloaded"}),
        "no_allowed_nodes",
    ),
    _never_opens(
        "zeros_after_failed_create",
        "the create fails in the log only, and every output is zero",
        "zeros_after_failed_create",
        frozenset({"not_offloaded"}),
        "create_failed",
    ),
    _never_opens(
        "create_fails",
        "the C7x refuses the network; each try leaks its memory",
        "create_fails",
        _DOWN,
        "create_failed",
        reboot=True,
    ),
    _never_opens("exit_in_create", "the library calls exit(-1)", "exit_in_create", _CRASHED, "artifacts_folder"),
    _never_opens(
        "abort_missing_library",
        "a missing library: an assertion ends the process with SIGABRT",
        "abort_missing_library",
        _CRASHED,
        "library_missing",
    ),
    _never_opens(
        "size_mismatch",
        "runtime of another release than the artifacts",
        "size_mismatch",
        _DOWN,
        "descriptor_size",
    ),
    _never_opens(
        "version_mismatch",
        "firmware of another release than the network",
        "version_mismatch",
        _DOWN,
        "network_version",
    ),
    _never_opens(
        "no_shared_memory",
        "carve-outs missing, or not root: memory can't be mapped",
        "no_shared_memory",
        _DOWN,
        "shared_memory",
    ),
    Mode(
        name="out_of_heap",
        does="failed creates have leaked the C7x's heap: none succeeds until reboot",
        begin="start",
        failures=("create_fails:2", "out_of_heap:2"),
        alarms=_DOWN,
        says="c7x_memory",
        ends="given_up",
        starts=_TRIES,
        reboot=True,
    ),
    Mode(
        name="create_fails_once",
        does="one create fails, the next succeeds",
        begin="start",
        failures=("create_fails:1",),
        ends="recovers",
        starts=2,
    ),
    Mode(
        name="hang_in_create",
        does="the create of a network with a 16-bit tensor never returns, and the C7x answers nobody",
        begin="start",
        failures=("hang_in_create",),
        alarms=_HUNG,
        says="gave no answer",
        ends="given_up",
        starts=2,
        reboot=True,
    ),
)

_RUN_MODES = (
    Mode(
        name="hang_in_run",
        does="a run never returns, and the C7x answers nobody",
        failures=("hang_in_run",),
        alarms=_HUNG,
        says="gave no answer",
        ends="given_up",
        within=RUN + SLACK,
        reboot=True,
    ),
    Mode(
        name="hang_in_run_core_restarted",
        does="as before, with the remoteproc rung switched on (an emulated sysfs)",
        failures=("hang_in_run",),
        action="core_restarts",
        alarms=_HUNG,
        says="gave no answer",
        ends="recovers",
        within=RUN + SLACK,
    ),
    Mode(
        name="invoke_fails",
        does="runs fail with an exception that is no RuntimeError",
        failures=("invoke_fails",),
        alarms=_CRASHED,
        says="invoke_failed",
        ends="given_up",
        within=RUN + SLACK,
    ),
    Mode(
        name="leak_by_sigkill",
        does="the worker is killed; what it held on the C7x stays taken",
        action="kill_worker",
        alarms=_CRASHED,
        says="signal 9",
        ends="recovers",
    ),
    Mode(
        name="semaphore_held",
        does="a killed process has left /tiovxsem taken: everybody waits",
        failures=("semaphore_held",),
        alarms=_HUNG,
        says="gave no answer",
        ends="given_up",
        within=RUN + SLACK,
        reboot=True,
    ),
    Mode(
        name="unkillable_worker",
        does="the worker hangs in a driver (state D) and survives SIGKILL",
        failures=("unkillable",),
        alarms=_DOWN,
        says="does not end on SIGKILL",
        ends="given_up",
        reboot=True,
        within=RUN + KILL + 2 + SLACK,
    ),
    Mode(
        name="slow",
        does="each run takes 40 times as long",
        failures=("slow:40",),
        alarms=frozenset({"accelerator_slow"}),
        says="times as long",
        ends="alarmed",
        within=2 * 100 / FRAMES + SLACK,
    ),
)

_WRONG_MODES = (
    _wrong("wrong_numbers", "one layer's values are half as large again", "features:gain"),
    _wrong("row_band", "a band of rows is off", "features:band"),
    _wrong("boundary_column", "the last column is off", "features:boundary_column"),
    _wrong("one_channel", "one channel is one code off", "features:one_channel:3"),
    _wrong("pitch_shear", "each row starts further right", "features:shear"),
    _wrong("non_finite", "some elements are not numbers", "enhanced:nan", alarms=_UNUSUAL, says="non-finite"),
    _wrong(
        "stale_frame",
        "the values of the run before",
        "features:stale",
        alarms=_UNUSUAL,
        says="",
        within=60.0,
        all_wrong=True,
    ),
    Mode(
        name="first_frame_garbage",
        does="a session's first run gives random values",
        begin="start",
        faults=("features:first_frame",),
        ends="harmless",
        starts=1,
    ),
)

_CAPTURE_MODES = (
    Mode(
        name="no_server",
        does="debug_level 3 without a remote-log server",
        begin="capture",
        action="no_server",
        says="none is running",
        ends="refused",
    ),
    Mode(
        name="server_does_not_serve",
        does="the server lives, but doesn't serve the C7x: a dump never ends",
        begin="capture",
        failures=("no_log_server",),
        says="gave no answer",
        ends="failed",
        within=TRACED + SLACK,
        starts=3,
    ),
    Mode(
        name="trace_folder_full",
        does="the trace folder has no more room: the write is tried for ever",
        begin="capture",
        failures=("trace_folder_full",),
        says="trace_file",
        ends="failed",
        within=TRACED + SLACK,
        starts=3,
    ),
    Mode(
        name="server_restarted",
        does="the server was restarted in mid-dump: `FWRITE : File not open` for ever",
        begin="capture",
        failures=("server_restarted:1",),
        says="trace_file",
        ends="failed",
        within=TRACED + SLACK,
        starts=3,
    ),
    Mode(
        name="slow_dump",
        does="each file operation takes 10 ms, as on a board",
        begin="capture",
        failures=("slow_dump:0.01",),
        ends="captured",
        within=TRACED + SLACK,
        starts=3,
    ),
    Mode(
        name="stale_traces",
        does="the trace folder is full of an earlier run's traces",
        begin="start_capture",
        failures=("stale_traces:50",),
        ends="captured",
        within=TRACED + SLACK,
        starts=3,
    ),
    Mode(
        name="trace_leak",
        does="a create without tracing leaves the C7x's trace globals on: every run dumps",
        begin="capture",
        failures=("trace_leak",),
        alarms=frozenset({"accelerator_traces"}),
        says="still dumps traces",
        ends="failed",
        within=TRACED + SLACK,
        starts=4,
        reboot=True,
    ),
    Mode(
        name="traces_change_result",
        does="while traces are dumped, five in a hundred codes are one off",
        begin="capture",
        failures=("traces_change_result",),
        says="tracing changed the output",
        ends="captured",
        within=TRACED + SLACK,
        starts=3,
    ),
)

MODES: tuple[Mode, ...] = (*_START_MODES, *_RUN_MODES, *_WRONG_MODES, *_CAPTURE_MODES)


def named(names: tuple[str, ...]) -> tuple[Mode, ...]:
    """The modes of these names, all for none. Raises TidegaugeError for a name that there is not."""
    known = {mode.name: mode for mode in MODES}
    for name in names:
        if name not in known:
            raise TidegaugeError(f"there is no failure mode {name!r}", f"use one of {', '.join(known)}")
    return tuple(known[name] for name in names) if names else MODES
