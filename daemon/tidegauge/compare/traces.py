"""From trace files to device tensors: names, types and scales from the tables, and a status for what can't be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.compiled import Buffer, Subgraph
from tidegauge.compare.statistics import Encoding
from tidegauge.compare.types import Finding, ScaleSource, Status
from tidegauge.errors import TidegaugeError
from tidegauge.tidl import trace_names
from tidegauge.tidl.tensor_table import TensorInfo, codes_of
from tidegauge.tidl.trace_names import TraceName

Array = NDArray[Any]
Reader = Callable[[], Any]

#: In codes: a rounded scale that may move the largest code by more is too coarse.
TOO_COARSE = 0.02


@dataclass
class DeviceTensor:
    """A traced tensor of the device. `read` gives its bytes; None where there are none. `dims` as in manifests.

    `dtype`, `scale`, `zero_point`: None where no table tells them; `low`, `high`: its range in calibration. `table`:
    the codes that the tables of the compile promise where the trace holds floats, and from which source. `order`: of
    the stored dims, where the trace is read in another layout than it has. `doubt`: the share that the table's scale
    may be off by, since it is printed rounded.
    """

    name: str
    subgraph: str
    data_id: int
    file: str
    dims: tuple[int, ...]
    size: int
    read: Reader | None
    kind: str = ""
    dtype: str | None = None
    scale: float | None = None
    zero_point: int | None = None
    source: ScaleSource = "none"
    low: float | None = None
    high: float | None = None
    status: Status = "ok"
    reason: str = ""
    table: Encoding | None = None
    table_source: ScaleSource = "none"
    order: tuple[int, ...] | None = None
    doubt: float = 0.0

    @property
    def count(self) -> int:
        return prod(self.dims)

    @property
    def coarse(self) -> bool:
        """Whether the table prints too few digits of the scale to compute codes with."""
        return self.doubt * codes_of(self.dtype) > TOO_COARSE

    def codes(self) -> Array:
        """The codes (or floats), flat. Raises `TidegaugeError` where the file has changed since it was measured."""
        if self.read is None or self.dtype is None:
            raise TidegaugeError(f"the trace of {self.name} can't be read", self.reason)
        codes = np.frombuffer(self.read(), np.dtype(self.dtype).newbyteorder("<"))
        if codes.size != self.count:
            raise TidegaugeError(f"{self.file} has {codes.size} elements instead of {self.count}", "copy it again")
        if self.order is None:
            return codes
        stored = [0] * len(self.order)
        for place, axis in enumerate(self.order):
            stored[axis] = self.dims[place]
        return codes.reshape(stored).transpose(self.order).reshape(-1)

    def arrange(self, order: tuple[int, ...]) -> None:
        """Read the trace with its six dims in this order from now on."""
        self.dims = tuple(self.dims[axis] for axis in order)
        self.order = order


def device_tensors(
    sizes: Mapping[str, int],
    readers: Mapping[str, Reader],
    dtypes: Mapping[str, str],
    subgraphs: Mapping[str, Subgraph],
) -> tuple[list[DeviceTensor], list[Finding]]:
    findings = [
        Finding("scales_disagree", "warning", f"The compile contradicts itself about {text}.")
        for subgraph in subgraphs.values()
        for text in subgraph.conflicts
    ]
    findings += [
        Finding("absurd_scale", "warning", f"A scale is refused: {text}. The next source is taken.")
        for subgraph in subgraphs.values()
        for text in subgraph.refused
    ]
    groups: dict[tuple[str, int], list[tuple[str, TraceName]]] = {}
    for file in sorted(sizes):
        parsed = trace_names.parse(file)
        if parsed is None:
            continue
        subgraph = _subgraph_of(parsed.subgraph, subgraphs)
        if subgraph is None:
            known = ", ".join(subgraphs)
            text = f"{file} is of the sub-graph {parsed.subgraph}; the tempDir knows only {known}."
            findings.append(Finding("unknown_subgraph", "warning", text))
            continue
        groups.setdefault((subgraph, parsed.data_id), []).append((file, parsed))
    tensors = []
    sides = {bool(parsed.cpu) for files in groups.values() for _, parsed in files}
    if len(sides) > 1:
        text = "Traces of the board (C7x_…) and of the PC lie in one folder: the board's are compared where both are."
        findings.append(Finding("mixed_sources", "warning", text))
    for (name, data_id), files in sorted(groups.items()):
        chosen = _choose(files, subgraphs[name].info(data_id))
        tensors.append(_tensor(subgraphs[name], data_id, chosen, sizes, readers, dtypes))
    tensors += _missing(subgraphs, set(groups))
    return sorted(tensors, key=lambda t: (t.subgraph, t.data_id)), findings


def _subgraph_of(name: str | None, subgraphs: Mapping[str, Subgraph]) -> str | None:
    if name in subgraphs:
        return name
    # Names of SDK 8.6 and before don't tell the sub-graph.
    return next(iter(subgraphs)) if name is None and len(subgraphs) == 1 else None


def _choose(files: list[tuple[str, TraceName]], info: TensorInfo | None) -> list[tuple[str, TraceName]]:
    """The board's files before the PC's; codes before floats, unless the tensor is a float one."""
    if any(t.cpu for _, t in files):
        files = [(f, t) for f, t in files if t.cpu]
    wanted = "float" if info is not None and info.dtype == "float32" else "y"
    whole = [(f, t) for f, t in files if t.kind != "padded"] or files
    return [(f, t) for f, t in whole if t.kind == wanted] or whole


def _tensor(
    subgraph: Subgraph,
    data_id: int,
    files: list[tuple[str, TraceName]],
    sizes: Mapping[str, int],
    readers: Mapping[str, Reader],
    dtypes: Mapping[str, str],
) -> DeviceTensor:
    file, parsed = files[0]
    info = subgraph.info(data_id)
    tensor = DeviceTensor(
        name=subgraph.names.get(data_id, (info.name if info else None) or ""),
        subgraph=subgraph.name,
        data_id=data_id,
        file=file,
        dims=parsed.dims,
        size=sizes[file],
        read=readers.get(file),
        kind=subgraph.kinds.get(data_id, ""),
    )
    if len(files) > 1:
        tensor.status, tensor.reason = (
            "duplicate",
            f"{len(files)} files claim this tensor: {', '.join(f for f, _ in files)}",
        )
        return tensor
    if parsed.kind == "float":
        tensor.dtype, tensor.scale, tensor.zero_point, tensor.source = "float32", 1.0, 0, "float"
        if info is not None and info.dtype not in (None, "float32") and info.scale is not None:
            tensor.table = Encoding(str(info.dtype), info.scale, info.zero_point or 0)
            tensor.table_source = cast(ScaleSource, info.source)
    elif info is not None and info.dtype not in (None, "float32"):
        tensor.dtype, tensor.scale, tensor.zero_point = info.dtype, info.scale, info.zero_point
        tensor.source = cast(ScaleSource, info.source if info.scale is not None else "none")
        tensor.doubt = info.doubt
        if info.problem:
            tensor.reason = info.problem
    else:
        tensor.dtype = dtypes.get(file)
    if info is not None:
        tensor.low, tensor.high = info.minimum, info.maximum
    _unpad(tensor, subgraph.buffers.get(data_id), parsed.kind == "padded")
    _check_size(tensor)
    return tensor


def _unpad(tensor: DeviceTensor, buffer: Buffer | None, padded: bool) -> None:
    """A dump of the whole buffer is read at its pitch; what the file holds besides is padding."""
    if tensor.read is None or tensor.dtype is None or buffer is None:
        return
    width = np.dtype(tensor.dtype).itemsize
    whole = _reach(tensor.dims, buffer)
    if not (padded or tensor.size > tensor.count * width) or tensor.size < whole * width or tensor.size % width:
        return
    read, dtype, dims = tensor.read, np.dtype(tensor.dtype).newbyteorder("<"), tensor.dims

    def cut() -> Any:
        codes = np.frombuffer(read(), dtype)
        strides = tuple(width * step for step in (*buffer.pitch, 1))
        start = codes[buffer.pad[0] * buffer.pitch[4] + buffer.pad[1] :]
        data = np.lib.stride_tricks.as_strided(start, dims, strides, writeable=False)
        return np.ascontiguousarray(data).view(np.uint8)

    tensor.read, tensor.size = cut, tensor.count * width


def _reach(dims: tuple[int, ...], buffer: Buffer) -> int:
    """The number of elements of a buffer up to the last one of the data."""
    last = sum((n - 1) * step for n, step in zip(dims, (*buffer.pitch, 1), strict=True))
    return buffer.pad[0] * buffer.pitch[4] + buffer.pad[1] + last + 1


def _check_size(tensor: DeviceTensor) -> None:
    if tensor.read is None:
        tensor.status, tensor.reason = "missing", "its trace stayed on the board; only its fingerprint was sent"
        return
    if tensor.dtype is None:
        if tensor.size not in (tensor.count, 2 * tensor.count, 4 * tensor.count):
            tensor.status, tensor.reason = (
                "truncated",
                f"{tensor.size} bytes for {tensor.count} elements of unknown type",
            )
        return
    expected = trace_names.expected_bytes(tensor.dims, tensor.dtype)
    if tensor.size < expected:
        tensor.status, tensor.reason = "truncated", f"{tensor.size} bytes instead of {expected}"
    elif tensor.size > expected:
        tensor.status = "shape_mismatch"
        tensor.reason = f"{tensor.size} bytes, but its name and type say {expected} (padding, or a stitched batch)"


def _missing(subgraphs: Mapping[str, Subgraph], present: set[tuple[str, int]]) -> list[DeviceTensor]:
    found = []
    for subgraph in subgraphs.values():
        for data_id in subgraph.expected:
            if (subgraph.name, data_id) in present:
                continue
            info = subgraph.info(data_id)
            found.append(
                DeviceTensor(
                    name=subgraph.names.get(data_id, ""),
                    subgraph=subgraph.name,
                    data_id=data_id,
                    file="",
                    dims=info.dims if info is not None and info.dims else (),
                    size=0,
                    read=None,
                    kind=subgraph.kinds.get(data_id, ""),
                    dtype=info.dtype if info else None,
                    scale=info.scale if info else None,
                    zero_point=info.zero_point if info else None,
                    status="missing",
                    reason="the compile has this layer, but no trace of it was taken",
                )
            )
    return found
