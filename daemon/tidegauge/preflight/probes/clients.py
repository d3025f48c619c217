"""The check `tidl-clients`: who else uses the accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidegauge.board import tidl_holders
from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, ok, warning
from tidegauge.preflight.state import running_agent

Client = tuple[int, str]


def run(context: Context) -> Finding:
    proc = context.path("/proc")
    agent = running_agent(context)
    tops = {pid for pid in (agent, context.checker) if pid}
    found = tidl_holders(set(), proc)
    return judge([client for client in found if not tops & set(ancestry(proc, client[0]))])


def ancestry(proc: Path, pid: int) -> list[int]:
    """The process and its parents, nearest first."""
    line: list[int] = []
    while pid > 1 and pid not in line:
        line.append(pid)
        try:
            pid = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            break  # it has ended in the meantime
    return line


def judge(clients: Sequence[Client]) -> Finding:
    if not clients:
        return ok("none but the agent's own")
    told = ", ".join(f"pid {pid} ({unit})" for pid, unit in clients)
    stop = ", ".join(f"`systemctl stop {unit}`" for _, unit in clients if unit.endswith(".service"))
    return warning(
        f"other processes use TIDL: {told}",
        f"captures are refused while they run, since they would be traced too: {stop or 'end them before a capture'}",
    )


PROBE = Probe(
    id="tidl-clients",
    title="other processes that use TIDL",
    why="the trace level is a global of the C7x: a capture would trace and slow them too, so the agent refuses it",
    place="board",
    run=run,
    needs_settings=False,
)
