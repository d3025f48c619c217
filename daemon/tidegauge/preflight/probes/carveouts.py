"""The check `carve-outs`.

Source: vision_apps/platform/am62a/rtos/app_mem_map.h, SDK 11.1; the device-tree overlay is k3-am62a7-sk-edgeai.dtbo.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, failed, ok

MIB = 1 << 20
#: Name, address, bytes of what the C7x and the Arm cores share.
REGIONS = (
    ("APP_LOG", 0xA1000000, 256 << 10),
    ("object descriptors", 0xA1040000, 15 * MIB + 768 * 1024),
    ("APP_FILEIO", 0xA2000000, 4 * MIB),
    ("shared memory", 0xA3000000, 172 * MIB),
    ("C7x heap", 0xB2000000, 112 * MIB),
)
Span = tuple[int, int]
_CURE = (
    "let the boot loader apply the overlay k3-am62a7-sk-edgeai.dtbo (`name_overlays` in uEnv.txt; setting the variable "
    "replaces the default, which holds it)"
)


def run(context: Context) -> Finding:
    folder = context.path("/proc/device-tree/reserved-memory")
    if not folder.is_dir():
        return failed("the device tree has no reserved memory (/proc/device-tree/reserved-memory)", _CURE)
    finding = judge(read(folder))
    if finding.status != "ok":
        return finding
    memory = context.path("/dev/mem")
    if not memory.exists():
        return failed("/dev/mem does not exist", "boot the SDK's kernel (CONFIG_DEVMEM)")
    if not os.access(memory, os.R_OK | os.W_OK):
        return failed(
            "/dev/mem can't be opened by this user", "run the agent as root: TIDL maps the shared memory there"
        )
    return ok(f"{finding.found}; /dev/mem can be opened")


def read(folder: Path) -> list[Span]:
    """Start and end of every reserved region: `reg` holds address and size, 64 bits each, big-endian."""
    spans = []
    for path in sorted(folder.glob("*/reg")):
        data = path.read_bytes()
        for offset in range(0, len(data) - 15, 16):
            start, size = struct.unpack_from(">QQ", data, offset)
            spans.append((start, start + size))
    return spans


def judge(spans: Sequence[Span]) -> Finding:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    open_ones = [
        f"{name} (0x{start:08X}, {size / MIB:g} MiB)"
        for name, start, size in REGIONS
        if not any(low <= start and start + size <= high for low, high in merged)
    ]
    if open_ones:
        return failed(f"not reserved in the device tree: {', '.join(open_ones)}", _CURE)
    return ok(f"{len(spans)} reserved regions cover all {len(REGIONS)} of the C7x's memory map")


PROBE = Probe(
    id="carve-outs",
    title="memory reserved in the device tree for the C7x, and /dev/mem",
    why="`Unable to map memory @ 0xa2000000`; or Linux and the C7x overwrite each other and the board crashes",
    place="board",
    run=run,
    needs_settings=False,
)
