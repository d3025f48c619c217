"""The check `watchdog`."""

from __future__ import annotations

from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, ok, warning


def run(context: Context) -> Finding:
    found = sorted(path.name for path in context.path("/dev").glob("watchdog*"))
    if found:
        return ok(", ".join(f"/dev/{name}" for name in found))
    return warning(
        "there is no /dev/watchdog",
        "enable the kernel's driver (rti_wdt on AM62A) and systemd's `RuntimeWatchdogSec`: a hung C7x may need it",
    )


PROBE = Probe(
    id="watchdog",
    title="watchdog device",
    why="a board whose accelerator hangs the kernel stays away until somebody visits it",
    place="board",
    run=run,
    needs_settings=False,
)
