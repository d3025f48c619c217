"""Lines about heaps, as vx_app_heap_stats.out and the C7x's performance statistics print them.

Source: app_perf_stats_api.c of app_utils, SDK 11.1:
`CPU: %6s: HEAP: %16s: size = %10d B, free = %10d B (%3d %% unused)`.
"""

from __future__ import annotations

import re

import msgspec

#: The heap of inputs, outputs, copies of networks, camera buffers and the trace object.
SHARED = "DDR_SHARED_MEM"
#: A traced session takes this much more of it (TIVX_TIDL_TRACE_DATA_SIZE, tidl_rt_ovx.c, SDK 11.1), bytes.
TRACE_OBJECT_BYTES = 64 << 20

_LINE = re.compile(
    r"CPU:\s*(?P<cpu>\S{1,32}?)\s*:\s+HEAP:\s+(?P<name>\S{1,64}?)\s*: "
    r"size =\s*(?P<size>\d{1,18}) B, free =\s*(?P<free>\d{1,18}) B",
    re.ASCII,
)


class Heap(msgspec.Struct, frozen=True):
    """One heap of one core, bytes."""

    cpu: str
    name: str
    size: int
    free: int


def parse(text: str) -> tuple[Heap, ...]:
    """Every heap that is told, in order; lines of anything else are passed over."""
    found = (_LINE.search(line) for line in text.splitlines())
    return tuple(Heap(m["cpu"], m["name"], int(m["size"]), int(m["free"])) for m in found if m)


def line(heap: Heap) -> str:
    """A heap as TI's tool prints it."""
    unused = 100 * heap.free // heap.size if heap.size else 0
    sizes = f"size = {heap.size:10d} B, free = {heap.free:10d} B ({unused:3d} % unused)"
    return f"CPU: {heap.cpu:>6}: HEAP: {heap.name:>16}: {sizes}"
