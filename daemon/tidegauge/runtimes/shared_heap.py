"""The shared heap: what a session takes of it, and what is free, as TI's vx_app_heap_stats.out tells.

Source: app_mem_map.h of AM62A and tidl_rt_ovx.c, SDK 11.1. The tool is a TIDL client itself: it is run only while
nobody holds a session and the C7x answers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from math import prod
from pathlib import Path

from tidegauge.errors import TidegaugeError
from tidegauge.runtimes import artifact_folder
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.tidl import heap_stats, io_descriptor
from tidegauge.tidl.artifacts import IO_SUFFIX, NET_SUFFIX
from tidegauge.tidl.errors import FormatError
from tidegauge.tidl.heap_stats import Heap

#: The tool may wait for a core that doesn't answer.
TOOL_SECONDS = 20.0
_FLOAT_BYTES = 4


def session_bytes(artifacts: Path) -> int:
    """Bytes of the shared heap for the networks and their float32 inputs and outputs. Raises RuntimeFault."""
    folder = artifact_folder.read(artifacts)
    total = sum(size for name, size in folder.sizes.items() if name.endswith(NET_SUFFIX))
    for name, data in folder.contents.items():
        if not name.endswith(IO_SUFFIX):
            continue
        try:
            descriptor = io_descriptor.parse(data)
        except FormatError as error:
            raise RuntimeFault(f"{name}: {error.problem}", "compile again") from error
        total += sum(_FLOAT_BYTES * prod(tensor.dims) for tensor in (*descriptor.inputs, *descriptor.outputs))
    return total


def ask(tool: Sequence[str]) -> tuple[Heap, ...]:
    """Run the tool. Raises FileNotFoundError where there is none, TidegaugeError where it tells nothing."""
    try:
        done = subprocess.run(list(tool), capture_output=True, timeout=TOOL_SECONDS, check=False)
    except FileNotFoundError:
        raise
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TidegaugeError(f"{tool[0]} tells nothing ({error})", "reboot the board if it hangs again") from error
    heaps = heap_stats.parse(done.stdout.decode(errors="replace"))
    if not heaps:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"it ended with code {done.returncode}"
        raise TidegaugeError(f"{tool[0]} tells of no heap ({why})", "run it by hand, as root")
    return heaps


def shared(heaps: Sequence[Heap]) -> Heap:
    """The shared heap among them. Raises TidegaugeError where it isn't."""
    found = next((heap for heap in heaps if heap.name == heap_stats.SHARED), None)
    if found is None:
        names = ", ".join(heap.name for heap in heaps) or "none"
        raise TidegaugeError(f"vx_app_heap_stats.out tells of no heap {heap_stats.SHARED} (of these: {names})", "")
    return found
