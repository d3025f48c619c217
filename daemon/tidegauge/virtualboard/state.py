"""The state of the emulated board: a folder with `board.json`, the remote log and its server's pid file.

What lives here is what a real board keeps outside any process: the trace globals of the C7x, the file system it dumps
into, and the faults and failures under test. What the C7x remembers of sessions is in `core.json` (`core.py`).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from tidegauge.errors import TidegaugeError
from tidegauge.files import write_durably
from tidegauge.virtualboard import core, freezer
from tidegauge.virtualboard.core import CoreState
from tidegauge.virtualboard.failures import Failure, FailureName, find
from tidegauge.virtualboard.faults import Fault, check_all
from tidegauge.virtualboard.network import NET_VERSION, load_all

VARIABLE = "TIDEGAUGE_VIRTUALBOARD"
FILE = "board.json"
#: Failures that stand for something a reboot clears.
_UNTIL_REBOOT: frozenset[FailureName] = frozenset({"semaphore_held", "server_restarted", "stale_traces", "unkillable"})
_CURE = "make a board with `tidegauge virtualboard init FOLDER`"


class BoardState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`board.json`.

    `trace_folder`: where the C7x dumps, /tmp on a real board. `trace_write_level`, `trace_subgraph`: globals of the
    C7x, set by the last create of any session and read by every run of every session. `trace_op_seconds`: pause
    before each file operation (a real board: 0.01). `firmware_version`: the only network version it accepts.
    `target`: device, or host: TI's emulation on a PC, which writes its traces itself and under names without the
    core's. `faults`: wrong arithmetic in single layers; `failures`: what else goes wrong, see `failures.py`.
    """

    version: Literal[1] = 1
    trace_folder: str = "/tmp"
    trace_op_seconds: float = 0.0
    faults: tuple[Fault, ...] = ()
    trace_write_level: int = 0
    trace_subgraph: str = "subgraph_0"
    firmware_version: int = NET_VERSION
    failures: tuple[Failure, ...] = ()
    target: Literal["device", "host"] = "device"

    def failing(self, name: FailureName) -> float | None:
        """The strength of a failure that is switched on, else None."""
        return find(self.failures, name)

    @classmethod
    def load(cls, folder: Path) -> BoardState:
        """Raises `TidegaugeError` if the folder is no board or its state can't be read."""
        path = folder / FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise TidegaugeError(f"{path} can't be read ({error.strerror})", _CURE) from error
        except msgspec.MsgspecError as error:
            raise TidegaugeError(f"{path} is damaged ({error})", _CURE) from error

    def save(self, folder: Path) -> None:
        """Write `board.json` so that a reader sees the old state or the new one, also after a power cut."""
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(folder / FILE, msgspec.json.format(msgspec.json.encode(self), indent=2))


def board_folder() -> Path:
    """The folder that the environment names. Raises `TidegaugeError` if it names none."""
    value = os.environ.get(VARIABLE, "")
    if not value:
        raise TidegaugeError(f"the environment variable {VARIABLE} is not set", f"set it to a board's folder; {_CURE}")
    folder = Path(value)
    if not (folder / FILE).is_file():
        raise TidegaugeError(f"{VARIABLE}={value} is no virtual board: there is no {FILE}", _CURE)
    return folder


def update(folder: Path, **changes: Any) -> BoardState:
    """Change fields of the state. Several processes may do so at once; nothing is written if nothing changes."""
    with _locked(folder):
        before = BoardState.load(folder)
        after: BoardState = msgspec.structs.replace(before, **changes)
        if after != before:
            after.save(folder)
    return after


def inject(folder: Path, faults: Iterable[Fault], artifacts: Path | None = None) -> BoardState:
    """Replace the board's faults; running sessions have them from their next run on. An empty list heals.

    With `artifacts` the faults are checked against that network first: raises `TidegaugeError`, naming the layers
    that can have the fault. Without, a session whose network can't have a fault refuses to run.
    """
    wanted = tuple(faults)
    if artifacts is not None:
        check_all(load_all(artifacts).values(), wanted)
    return update(folder, faults=wanted)


def fail(folder: Path, failures: Iterable[Failure]) -> BoardState:
    """Replace the board's failures; running sessions have them from their next call on. An empty list heals what isn't
    beyond healing: a hung C7x and leaked memory stay until `reboot`. Raises `TidegaugeError` for a failure that this
    machine can't have."""
    wanted = tuple(failures)
    if find(wanted, "unkillable") is not None:
        freezer.require()
    after = update(folder, failures=wanted)
    update_core(folder, lambda now: msgspec.structs.replace(now, failed_creates=0, stale_planted=False))
    return after


def update_core(folder: Path, change: Callable[[CoreState], CoreState]) -> CoreState:
    """Change what the C7x remembers. Several processes may do so at once; nothing is written if nothing changes."""
    with _locked(folder):
        before = CoreState.load(folder)
        after = change(before)
        if after != before:
            after.save(folder)
    return after


def reboot(folder: Path) -> BoardState:
    """Switch the board off and on: memory, hang, semaphores and trace globals are as new, and the trace folder, which
    is in RAM, holds no traces. Unkillable processes end. Faults stay, and failures that no reboot cures. Raises
    `TidegaugeError`, naming the processes, while sessions of other living ones are open: on a real board a reboot would
    have ended them."""
    freezer.release(folder)
    with _locked(folder):
        state, now = BoardState.load(folder), CoreState.load(folder)
        living = {held.pid for held in now.sessions} - {held.pid for held in now.orphans()}
        if living:
            raise TidegaugeError(
                f"processes that a reboot would end still hold sessions: {', '.join(map(str, sorted(living)))}",
                "end them, then reboot",
            )
        CoreState().save(folder)
        after = msgspec.structs.replace(
            state,
            trace_write_level=0,
            failures=tuple(failure for failure in state.failures if failure.name not in _UNTIL_REBOOT),
        )
        after.save(folder)
    for path in Path(state.trace_folder).glob("*tidl_trace*"):
        path.unlink(missing_ok=True)
    return after


T = TypeVar("T")


class _Watch(Generic[T]):
    """Reads a file again only when it has changed (inode, time of change, size)."""

    def __init__(self, path: Path, read: Callable[[], T], first: T) -> None:
        self._path = path
        self._read = read
        self._seen: tuple[int, int, int] | None = None
        self._state = first

    def current(self) -> T:
        """Raises FileNotFoundError where there is no file, and what `read` raises."""
        info = self._path.stat()
        mark = (info.st_ino, info.st_mtime_ns, info.st_size)
        if mark != self._seen:
            self._state = self._read()
            self._seen = mark
        return self._state


class BoardWatch:
    """The state of a board and its core, read again only when a file has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._board = _Watch(folder / FILE, lambda: BoardState.load(folder), BoardState())
        self._core = _Watch(folder / core.FILE, lambda: CoreState.load(folder), CoreState())

    def current(self) -> BoardState:
        """The state now. Raises `TidegaugeError` if the board's folder has gone."""
        try:
            return self._board.current()
        except OSError as error:
            raise TidegaugeError(f"{self.folder / FILE} has gone ({error.strerror})", _CURE) from error

    def core(self) -> CoreState:
        """What the C7x remembers now."""
        try:
            return self._core.current()
        except FileNotFoundError:
            return CoreState()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        handle = os.open(folder / "board.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise TidegaugeError(f"{folder} can't be written ({error.strerror})", _CURE) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
