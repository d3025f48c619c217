"""A process that SIGKILL doesn't end: frozen by the cgroup freezer (version 1), as one that hangs in a driver."""

from __future__ import annotations

import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup/freezer")
_FROZEN_SECONDS = 5.0


def why_not() -> str:
    """Why this machine can't freeze; empty where it can."""
    if not (ROOT / "cgroup.procs").exists():
        return f"needs the cgroup freezer of version 1 at {ROOT} (a process frozen by version 2 can be killed)"
    if not os.access(ROOT, os.W_OK):
        return "needs root"
    return ""


class Frozen:
    """Freezes from `freeze` until `thaw`, which may be called twice."""

    def __init__(self, pid: int) -> None:
        self._group = ROOT / f"tidegauge-{os.getpid()}-{pid}"
        self._pid = pid

    def freeze(self) -> None:
        """Raises OSError where the process can't be frozen."""
        self._group.mkdir()
        (self._group / "cgroup.procs").write_text(str(self._pid))
        (self._group / "freezer.state").write_text("FROZEN")
        deadline = time.monotonic() + _FROZEN_SECONDS
        while (self._group / "freezer.state").read_text().strip() != "FROZEN":
            if time.monotonic() > deadline:
                raise OSError(f"process {self._pid} does not freeze")
            time.sleep(0.01)

    def thaw(self) -> None:
        if not self._group.exists():
            return
        (self._group / "freezer.state").write_text("THAWED")
        for pid in (self._group / "cgroup.procs").read_text().split():
            try:
                (ROOT / "cgroup.procs").write_text(pid)
            except ProcessLookupError:
                continue  # it has ended: it was killed while it was frozen
        deadline = time.monotonic() + _FROZEN_SECONDS
        while (self._group / "cgroup.procs").read_text().strip() and time.monotonic() < deadline:
            time.sleep(0.01)
        self._group.rmdir()
