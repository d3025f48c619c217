"""Dumps of layer outputs: which files a layer gives, their names, their bytes. `fileserver.py` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.tidl.trace_names import Kind, TraceName, format_name
from tidegauge.virtualboard import remote_log
from tidegauge.virtualboard.fileserver import FileServer
from tidegauge.virtualboard.network import TwinLayer, TwinNetwork

_WRITE_LEVELS = {3: 1, 4: 3, 5: 3}


def write_level(debug_level: int) -> int:
    """TIDL's traceWriteLevel for a `debug_level`: 0 nothing, 1 fixed point, 3 fixed point and float."""
    return _WRITE_LEVELS.get(debug_level, 0)


def kinds(layer: TwinLayer, level: int) -> tuple[Kind, ...]:
    """Which files a layer's tensor gives at a write level: float tensors give `_float.bin` at each."""
    if layer.quant.is_float:
        return ("float",)
    return ("y", "float") if level == 3 else ("y",)


def file_name(layer: TwinLayer, subgraph: str, kind: Kind, cpu: str | None = remote_log.CORE) -> str:
    """A trace's name; `cpu` None: as the host emulation names it."""
    return format_name(TraceName(cpu, subgraph, layer.data_id, layer.dims, kind))


def names(network: TwinNetwork, subgraph: str, level: int, cpu: str | None = remote_log.CORE) -> list[str]:
    """The names of all traces of one run, in the order in which they are written."""
    return [file_name(layer, subgraph, kind, cpu) for layer in network.tensors() for kind in kinds(layer, level)]


def dump(folder: Path, subgraph: str, network: TwinNetwork, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Dump every layer in execution order into the board's trace folder, and print its scale into the remote log.

    Hangs for ever while the board has no remote-log server: callers on a real board must check first, too.
    """
    files = FileServer(folder)
    state = files.state
    target = Path(state.trace_folder)
    for layer in network.tensors():
        codes = tensors[layer.name]
        remote_log.append(folder, scale_line(layer, codes))
        for kind in kinds(layer, state.trace_write_level):
            data, limit = content(layer, codes, kind), state.failing("trace_too_large")
            if limit is not None and len(data) > limit:
                sizes = f"requested size is : {len(data)}, allocated size : {limit:.0f}"
                remote_log.append(folder, f"In sufficient Memory to write Traces, {sizes}")
                continue
            files.write(target / file_name(layer, subgraph, kind), data, layer.tiles)


def dump_on_host(
    folder: Path, level: int, subgraph: str, network: TwinNetwork, tensors: Mapping[str, NDArray[Any]]
) -> list[str]:
    """As the emulation on a PC does: plain files in `folder`, no server. Returns the lines it prints."""
    lines = []
    for layer in network.tensors():
        codes = tensors[layer.name]
        lines.append(scale_line(layer, codes))
        for kind in kinds(layer, level):
            (folder / file_name(layer, subgraph, kind, None)).write_bytes(content(layer, codes, kind))
    return lines


def scale_line(layer: TwinLayer, codes: NDArray[Any]) -> str:
    """What TIDL prints of each tensor that it dumps: data id, scale, lowest and highest value, element type."""
    values = layer.quant.values(codes)
    low, high = float(np.min(values)), float(np.max(values))
    scale, element = layer.quant.scale, layer.quant.element_type
    return f" {layer.data_id:3d} {scale:15.5f} {low:15.5f} {high:15.5f} {element:d}"


def content(layer: TwinLayer, codes: NDArray[Any], kind: Kind) -> bytes:
    """The bytes of a trace: codes or float32 values, little-endian, no padding."""
    data = codes if kind == "y" else layer.quant.values(codes)
    return np.ascontiguousarray(data, data.dtype.newbyteorder("<")).tobytes()
