"""Whether all traces of a capture are there, and whole. Pure.

A trace is whole when its size is the number of its elements times the size of one (1, 2 or 4 bytes). Which traces there
must be is known from an earlier whole capture of the same artifacts, else from the lines that the C7x prints for each
tensor that it dumps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

import msgspec
import numpy as np

from tidegauge.tidl import trace_names
from tidegauge.tidl.tensor_table import TensorInfo

#: Sizes of an element: 8 bits, 16 bits, float32.
ELEMENT_BYTES = (1, 2, 4)


class Completeness(msgspec.Struct, frozen=True):
    """Names of trace files, or `data id N` for a tensor that was printed but has no file."""

    missing: tuple[str, ...]
    truncated: tuple[str, ...]
    unexpected: tuple[str, ...]

    @property
    def whole(self) -> bool:
        return not (self.missing or self.truncated or self.unexpected)

    def counts(self) -> dict[str, float]:
        """For a manifest's evidence."""
        return {
            "traces_missing": float(len(self.missing)),
            "traces_truncated": float(len(self.truncated)),
            "traces_unexpected": float(len(self.unexpected)),
        }


def judge(
    files: Mapping[str, int], dtypes: Mapping[int, str], printed: Collection[int], expected: Mapping[str, int] | None
) -> Completeness:
    """`files`: names and sizes of what came. `dtypes` by data id, `printed`: data ids, both from the remote log.

    `expected`: names and sizes of an earlier whole capture.
    """
    parsed = {name: trace_names.parse(name) for name in files}
    ids = {trace.data_id for trace in parsed.values() if trace is not None}
    truncated = [
        name
        for name, trace in parsed.items()
        if trace is None
        or not _is_whole(trace, files[name], dtypes.get(trace.data_id))
        or (expected is not None and files[name] < expected.get(name, 0))
    ]
    missing = [f"data id {data_id}" for data_id in sorted(set(printed) - ids)]
    unexpected: list[str] = []
    if expected is not None:
        missing = [*sorted(set(expected) - set(files)), *missing]
        unexpected = sorted(set(files) - set(expected))
    return Completeness(tuple(missing), tuple(sorted(truncated)), tuple(unexpected))


def _is_whole(trace: trace_names.TraceName, size: int, dtype: str | None) -> bool:
    if trace.kind == "padded":
        return size > 0  # the padding is not in the name
    elements = prod(trace.dims)
    if trace.kind == "float":
        return size == 4 * elements
    if dtype is not None:
        return size == np.dtype(dtype).itemsize * elements
    return size in {width * elements for width in ELEMENT_BYTES}


def predicted_bytes(table: Collection[TensorInfo], debug_level: int) -> int | None:
    """Bytes of a capture from the compile's tensor table; None where a tensor's shape or type is not told."""
    total = 0
    for info in table:
        if info.dims is None or info.dtype is None:
            return None
        elements = prod(info.dims)
        if info.dtype == "float32":
            total += 4 * elements
        else:
            total += np.dtype(info.dtype).itemsize * elements + (4 * elements if debug_level >= 4 else 0)
    return total or None
