"""The firmware of the C7x: which file, and where it is.

Source: /sys/class/remoteproc of an AM62A on SDK 11.1 (`am62a-c71_0-fw`, a link into ti-ipc or vision_apps_eaik).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidegauge.preflight.context import Context

DEFAULT = "am62a-c71_0-fw"


class Core(msgspec.Struct, frozen=True):
    """One remote processor as the kernel tells it."""

    folder: str
    name: str
    state: str
    firmware: str

    @property
    def is_c7x(self) -> bool:
        return "c7" in self.firmware or self.name.endswith(".dsp")


def cores(context: Context) -> list[Core]:
    """Every remote processor. Raises OSError."""
    folders = sorted(context.path("/sys/class/remoteproc").glob("remoteproc*"))
    return [Core(folder.name, *(_text(folder / key) for key in ("name", "state", "firmware"))) for folder in folders]


def find(context: Context) -> Path:
    """The firmware file of the C7x. Raises OSError where there is none."""
    names = [core.firmware for core in cores(context) if core.is_c7x and core.firmware]
    return context.real(f"/lib/firmware/{names[0] if names else DEFAULT}")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""  # an older kernel has no `firmware`
