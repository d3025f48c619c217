"""The check `soc`."""

from __future__ import annotations

from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, ok, warning

EXPECTED = "am62a"


def run(context: Context) -> Finding:
    found = context.environment.get("SOC", "")
    if found == EXPECTED:
        return ok(f"SOC={found}")
    return warning(
        f"SOC is {found}" if found else "SOC is not set",
        f"set SOC={EXPECTED} in the unit (`Environment=SOC={EXPECTED}`) and before TI's own applications",
    )


PROBE = Probe(
    id="soc",
    title="environment variable `SOC`",
    why="TI's GStreamer applications build the pipeline of a plain Arm board without it, with no error",
    place="board",
    run=run,
    needs_settings=False,
)
