"""The check `remote-log`.

Source: app_fileio_core.c and main_remote_log.c, SDK 11.1: a dump waits for ever for the one process that serves the
C7x's file operations and reads its log; two steal each other's lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidegauge.board import processes_matching
from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, failed, not_applicable, ok


def run(context: Context) -> Finding:
    settings = context.required
    if not settings.capture:
        return not_applicable("captures are switched off (key `capture.enabled`)")
    proc = context.path("/proc")
    pids = [pid for pid in processes_matching(settings.remote_log, proc) if pid != context.checker]
    return judge(settings.remote_log, [(pid, owner(proc, pid)) for pid in pids], virtual=context.virtual)


def owner(proc: Path, pid: int) -> int | None:
    """The effective user id of a process; None where it has ended."""
    try:
        lines = (proc / str(pid) / "status").read_text().splitlines()
    except OSError:
        return None
    ids = [line.split() for line in lines if line.startswith("Uid:")]
    return int(ids[0][2]) if ids else None


def judge(name: str, servers: Sequence[tuple[int, int | None]], *, virtual: bool) -> Finding:
    """`servers`: pid and effective user of each process whose command line contains `name`."""
    start = (
        "start `tidegauge virtualboard remote-log FOLDER`"
        if virtual
        else "start it once after boot, as root and before the agent: `/opt/vx_app_arm_remote_log.out &`, better a unit"
    )
    if not servers:
        return failed(f"no process matches `{name}` (key `capture.remote_log`)", start)
    if len(servers) > 1:
        pids = ", ".join(str(pid) for pid, _ in servers)
        return failed(
            f"{len(servers)} processes match `{name}` (key `capture.remote_log`): pids {pids}",
            "end all but one: they steal lines and file operations from each other; make the key match only the server",
        )
    pid, user = servers[0]
    if user != 0 and not virtual:
        return failed(
            f"the remote-log server (pid {pid}) runs as user {user}, which can't map the C7x's memory",
            "start it as root: it reads /dev/mem",
        )
    return ok(f"pid {pid}, user {'root' if user == 0 else user}")


PROBE = Probe(
    id="remote-log",
    title="exactly one remote-log server, and its owner",
    why="a traced run without it hangs the C7x for ever, and every other client with it",
    place="anywhere",
    run=run,
)
