"""The check `remoteproc`."""

from __future__ import annotations

from collections.abc import Sequence

from tidegauge.preflight import firmware
from tidegauge.preflight.context import Context
from tidegauge.preflight.firmware import Core
from tidegauge.preflight.probe import Finding, Probe, failed, ok

#: "attached": started by the boot loader, before Linux.
RUNNING = ("running", "attached")


def run(context: Context) -> Finding:
    try:
        return judge(firmware.cores(context))
    except OSError as error:
        return failed(f"/sys/class/remoteproc can't be read ({error})", "boot the SDK's kernel and device tree")


def judge(cores: Sequence[Core]) -> Finding:
    ours = [core for core in cores if core.is_c7x]
    if not ours:
        told = ", ".join(f"{core.folder} {core.name}" for core in cores) or "none"
        return failed(
            f"no remote processor is a C7x (found: {told})",
            "this is no AM62A with the SDK's device tree; on a PC set `runtime.module` to the virtual board",
        )
    core = ours[0]
    if core.state not in RUNNING:
        return failed(
            f"the C7x ({core.folder}, {core.name}) is {core.state or 'in no known state'}",
            "reboot the board; if it stays so, read `dmesg | grep remoteproc`: firmware or carve-outs are wrong",
        )
    return ok(f"{core.folder} {core.name} {core.state}, firmware {core.firmware or 'unknown'}")


PROBE = Probe(
    id="remoteproc",
    title="state of the C7x in the kernel",
    why="whoever talks to a core that isn't running waits for ever",
    place="board",
    run=run,
    needs_settings=False,
)
