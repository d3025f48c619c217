"""A process that compares is killed in the middle of it, and does not come back: how long until another has done it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from integration.collector_peer import Process
from tidegauge.evaluation.figures import Figure

GOAL, PATIENCE = 30.0, 300.0


def busy(processes: dict[str, Process]) -> str:
    """The name of one that has a comparison under way, in a process of its own; "" for none."""
    for name, process in processes.items():
        assert process.process is not None
        if name.startswith("compare") and any(_is_comparison(pid) for pid in _children(process.process.pid)):
            return name
    return ""


def _children(pid: int) -> list[str]:
    return [pid for task in Path(f"/proc/{pid}/task").iterdir() for pid in (task / "children").read_text().split()]


def _is_comparison(pid: str) -> bool:
    try:
        return b"\0compare\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended in this very moment


def takeover(processes: dict[str, Process], compared: Callable[[], float]) -> float:
    """Seconds from the kill of the process that compares until the comparison is done by another; a bundle is on its
    way, `compared` counts those that are done. The killed one is no longer among the processes afterwards.

    Raises TimeoutError where no comparison begins or ends, RuntimeError where it ended before the kill.
    """
    killed = processes.pop(_wait(lambda: busy(processes), "comparison under way"))
    killed.kill()
    began = time.monotonic()
    if compared():
        raise RuntimeError("the comparison was over before the kill: nothing was measured")
    _wait(compared, "comparison by another process")
    return time.monotonic() - began


def _wait(look: Callable[[], str | float], what: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {PATIENCE:.0f} s")
        time.sleep(0.02)
    return str(found)


def figures_of(seconds: list[float]) -> list[Figure]:
    note = f"{len(seconds)} kills, median {median(seconds):.3g} s"
    group = "a process that compares is killed, and stays away"
    return [Figure(group, "until another has done its comparison, most", max(seconds), "s", GOAL, "<=", note)]
