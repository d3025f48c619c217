"""What the ARM side of TIDL prints when a session starts.

Source: a log of a real start with ONNX Runtime (gst-plugins issue 216); app_init.c, SDK 11.1.
"""

from __future__ import annotations

import time


def onnx(subgraphs: int, offloaded: int, total: int) -> str:
    """Of TI's ONNX provider, then of the ARM side."""
    created = (
        f"Final number of subgraphs created are : {subgraphs}, - Offloaded Nodes - {offloaded}, Total Nodes - {total} "
    )
    return "\n".join(["libtidl_onnxrt_EP loaded 0x3d5f1b70 ", created, init()])


def init() -> str:
    """Of the ARM side, whatever the runtime."""
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME)
    return "\n".join(
        [
            "APP: Init ... !!!",
            "MEM: Init ... !!!",
            "MEM: Initialized DMA HEAP (fd=4) !!!",
            "MEM: Init ... Done !!!",
            "IPC: Init ... !!!",
            "IPC: Init ... Done !!!",
            "REMOTE_SERVICE: Init ... !!!",
            "REMOTE_SERVICE: Init ... Done !!!",
            f"{seconds:13.6f} s: GTC Frequency = 200 MHz",
            "APP: Init ... Done !!!",
            f"{seconds:13.6f} s:  VX_ZONE_INIT:[tivxHostInitLocal:86] Initialization Done for HOST !!!",
        ]
    )
