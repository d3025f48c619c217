"""Dumps of layer outputs, in the manner of the C7x.

For each file the C7x asks the ARM side to open it for writing, close it, open it for appending, write pieces of 200
KiB and close it (app_fileio_core.c, SDK 11.1). So a close alone doesn't mean that a file is complete. An operation
that fails is tried again for ever, and without a server every operation waits for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.tidl.trace_names import Kind, TraceName, format_name
from tidegauge.virtualboard import remote_log
from tidegauge.virtualboard.network import TwinLayer, TwinNetwork
from tidegauge.virtualboard.state import BoardState

PIECE_BYTES = 200 * 1024  # APP_FILEIO_PER_CPU_MEM_SIZE
_RETRY_SECONDS = 0.01
_WRITE_LEVELS = {3: 1, 4: 3, 5: 3}


def write_level(debug_level: int) -> int:
    """TIDL's traceWriteLevel for a `debug_level`: 0 nothing, 1 fixed point, 3 fixed point and float."""
    return _WRITE_LEVELS.get(debug_level, 0)


def kinds(layer: TwinLayer, level: int) -> tuple[Kind, ...]:
    """Which files a layer's tensor gives at a write level: float tensors give `_float.bin` at each."""
    if layer.quant.is_float:
        return ("float",)
    return ("y", "float") if level == 3 else ("y",)


def file_name(layer: TwinLayer, subgraph: str, kind: Kind) -> str:
    return format_name(TraceName(remote_log.CORE, subgraph, layer.data_id, layer.dims, kind))


def dump(folder: Path, state: BoardState, network: TwinNetwork, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Dump every layer in execution order into the state's trace folder, and print its scale into the remote log.

    Hangs for ever while the board has no remote-log server: callers on a real board must check first, too.
    """
    target = Path(state.trace_folder)
    files = _FileServer(folder, state.trace_op_seconds)
    for layer in network.tensors():
        codes = tensors[layer.name]
        values = layer.quant.values(codes)
        low, high = float(np.min(values)), float(np.max(values))
        scale, element = layer.quant.scale, layer.quant.element_type
        remote_log.append(folder, f" {layer.data_id:3d} {scale:15.5f} {low:15.5f} {high:15.5f} {element:d}")
        for kind in kinds(layer, state.trace_write_level):
            data = codes if kind == "y" else values
            little = np.ascontiguousarray(data, data.dtype.newbyteorder("<"))
            files.write(target / file_name(layer, state.trace_subgraph, kind), little.tobytes())


class _FileServer:
    """File operations as the C7x asks for them, one at a time."""

    def __init__(self, folder: Path, pause: float) -> None:
        self._folder = folder
        self._pause = pause

    def write(self, path: Path, data: bytes) -> None:
        self._operation(lambda: path.open("wb").close(), f"FOPEN : Could not open file {path}")
        self._operation(lambda: None, "")  # fclose
        file = self._operation(lambda: path.open("ab", buffering=0), f"FOPEN : Could not open file {path}")
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            piece = view[start : start + PIECE_BYTES]
            done = 0
            while done < len(piece):
                rest = piece[done:]
                complaint = f"Fwrite error - count {len(piece)} written {done}"
                done += self._operation(partial(file.write, rest), complaint)
        self._operation(file.close, "")

    def _operation(self, action: Callable[[], Any], complaint: str) -> Any:
        logged = 0.0
        while True:
            while remote_log.server_pid(self._folder) is None:
                time.sleep(_RETRY_SECONDS)
            if self._pause:
                time.sleep(self._pause)
            try:
                return action()
            except OSError:
                # The real server answers an error but never clears the flag: the C7x waits, the log is flooded.
                if time.monotonic() - logged > 1.0:
                    remote_log.append(self._folder, complaint)
                    logged = time.monotonic()
                time.sleep(_RETRY_SECONDS)
