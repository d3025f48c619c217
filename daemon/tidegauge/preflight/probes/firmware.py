"""The check `firmware`."""

from __future__ import annotations

from tidegauge.preflight import firmware
from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, failed, ok

_ELF = b"\x7fELF"


def run(context: Context) -> Finding:
    try:
        path = firmware.find(context)
        with path.open("rb") as file:
            magic = file.read(len(_ELF))
        size = path.stat().st_size
    except OSError as error:
        return failed(
            f"the C7x's firmware can't be read ({error})",
            f"point the link /lib/firmware/{firmware.DEFAULT} to the SDK's vision-apps firmware of the C7x",
        )
    if magic != _ELF:
        return failed(f"{path} is no ELF file", "install the SDK's firmware again; the file is damaged")
    return ok(f"{path}, {size} bytes")


PROBE = Probe(
    id="firmware",
    title="firmware file of the C7x",
    why="the kernel can't start the C7x at boot, or after a restart of the core",
    place="board",
    run=run,
    needs_settings=False,
)
