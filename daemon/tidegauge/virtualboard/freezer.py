"""A process that nothing ends, as one that sleeps in a driver (state D): frozen by the cgroup freezer of version 1.

SIGKILL takes effect only when the process is thawed, here by `release`. (The freezer of version 2 lets a killed
process die.) Source: the kernel's Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

from tidegauge.errors import TidegaugeError

ROOT = Path("/sys/fs/cgroup/freezer")
_SECONDS = 10.0


def why_not() -> str:
    """Why this machine can't do it; empty where it can."""
    if not (ROOT / "cgroup.procs").exists():
        return f"there is no cgroup freezer of version 1 at {ROOT}"
    return "" if os.access(ROOT, os.W_OK) else f"{ROOT} can't be written: it takes root"


def require() -> None:
    """Raises `TidegaugeError` where this machine can't do it."""
    if why_not():
        raise TidegaugeError(
            f"no process can be made unkillable here: {why_not()}", "use hang_in_run, whose process SIGKILL ends"
        )


def freeze_self(board: Path) -> None:
    """Freeze the calling process. Returns when it has been thawed and nobody has killed it meanwhile."""
    group = ROOT / f"{_prefix(board)}{os.getpid()}"
    group.mkdir(exist_ok=True)
    (group / "cgroup.procs").write_text(str(os.getpid()))
    (group / "freezer.state").write_text("FROZEN")


def frozen(board: Path) -> list[int]:
    """The pids that are frozen for this board."""
    return [int(pid) for group in _groups(board) for pid in (group / "cgroup.procs").read_text().split()]


def release(board: Path) -> None:
    """End what is frozen for this board. Raises `TidegaugeError` where a process doesn't end."""
    for group in _groups(board):
        for pid in (group / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        (group / "freezer.state").write_text("THAWED")
        deadline = time.monotonic() + _SECONDS
        while pids := (group / "cgroup.procs").read_text().split():
            if time.monotonic() > deadline:
                raise TidegaugeError(f"processes {', '.join(pids)} of {group} don't end", "end them, then try again")
            time.sleep(0.01)
        group.rmdir()


def _groups(board: Path) -> list[Path]:
    return sorted(ROOT.glob(f"{_prefix(board)}*")) if ROOT.is_dir() else []


def _prefix(board: Path) -> str:
    return f"tidegauge-{hashlib.sha256(str(board.absolute()).encode()).hexdigest()[:16]}-"
