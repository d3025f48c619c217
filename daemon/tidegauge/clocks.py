"""Two clocks as two types, so that the type checker refuses arithmetic between them.

`Monotonic` seconds order events and measure durations within one boot; `Wall` seconds (Unix epoch) are for people
and for other machines, and may jump or start in 1970 on a board without a clock battery.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NewType

import msgspec

Monotonic = NewType("Monotonic", float)
Wall = NewType("Wall", float)


class Stamp(msgspec.Struct, frozen=True):
    """When something happened, so that it can be re-dated after a board's clock was wrong."""

    wall: float
    boot_id: str
    uptime: float


def monotonic() -> Monotonic:
    return Monotonic(time.monotonic())


def wall() -> Wall:
    return Wall(time.time())


def stamp() -> Stamp:
    """The present moment by wall clock, boot id and seconds since boot."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Stamp(wall=time.time(), boot_id=boot_id, uptime=time.clock_gettime(time.CLOCK_BOOTTIME))
