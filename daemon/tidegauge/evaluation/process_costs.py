"""What processes cost, as the kernel counts it: memory, CPU time, wake-ups, threads, bytes written, descriptors.

Source: proc(5): `status` (VmRSS, VmHWM, voluntary_ctxt_switches of each thread), `stat` (utime, stime), `io`
(write_bytes: what went to the block layer), `fd`, `maps`, `task/*/children` and `cmdline`.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import msgspec

PROC = Path("/proc")
KIB = 1024
#: What ends in this very moment is there to be listed and gone to be opened, or open and gone to be read.
ENDED = (FileNotFoundError, ProcessLookupError)
_TICKS = os.sysconf("SC_CLK_TCK")


class Costs(msgspec.Struct, frozen=True):
    """Of one process at one moment. Bytes, seconds, counts. `shared`: mappings of anonymous shared memory."""

    resident: int
    peak: int
    cpu: float
    wakeups: int
    threads: int
    written: int
    descriptors: int
    shared: int


def costs(pid: int) -> Costs:
    """Raises OSError where the process is gone or another user's."""
    folder = PROC / str(pid)
    status = _fields(folder / "status")
    stat = (folder / "stat").read_text().rpartition(")")[2].split()
    io = _fields(folder / "io")
    tasks = list((folder / "task").iterdir())
    return Costs(
        resident=_number(status["VmRSS"]) * KIB,
        peak=_number(status["VmHWM"]) * KIB,
        cpu=(int(stat[11]) + int(stat[12])) / _TICKS,
        wakeups=sum(_switches(task) for task in tasks),
        threads=len(tasks),
        written=int(io["write_bytes"]) - int(io["cancelled_write_bytes"]),
        descriptors=len(list((folder / "fd").iterdir())),
        shared=sum("/memfd:" in line or "/dev/shm" in line for line in (folder / "maps").read_text().splitlines()),
    )


def children(pid: int) -> dict[int, str]:
    """Command line of each child that lives, its arguments apart by NUL. Raises OSError where the process is gone."""
    found: dict[int, str] = {}
    for task in (PROC / str(pid) / "task").iterdir():
        with contextlib.suppress(*ENDED):
            for child in (task / "children").read_text().split():
                with contextlib.suppress(*ENDED):
                    found[int(child)] = (PROC / child / "cmdline").read_bytes().decode(errors="replace")
    return found


def _fields(path: Path) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(":") for line in path.read_text().splitlines())}


def _number(text: str) -> int:
    found = re.match(r"\d+", text)
    if found is None:
        raise ValueError(f"{text!r} is no number")
    return int(found[0])


def _switches(task: Path) -> int:
    try:
        return int(_fields(task / "status")["voluntary_ctxt_switches"])
    except ENDED:
        return 0
