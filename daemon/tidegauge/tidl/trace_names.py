"""Names of trace files, as TIDL's core composes them.

Source: TIDL core (`%s%04d_%04d_%04d_%05d_%05d_%05dx%05d` after the trace base, SDK 9.1 to 11.2); app_fileio_core.c of
app_utils, SDK 11.1 (the `C7x_1_` prefix on the target); edgeai-tidl-tools docs/tidl_osr_debug.md (names of 8.6 and
before: data id, batch, channels, width x height). All field widths are minima.
"""

from __future__ import annotations

import re
from math import prod
from typing import Literal

import msgspec
import numpy as np

Kind = Literal["y", "float", "padded"]
Dims = tuple[int, int, int, int, int, int]

SUFFIXES: dict[Kind, str] = {"y": ".y", "float": "_float.bin", "padded": "_paded.y"}
_KINDS: dict[str, Kind] = {suffix: kind for kind, suffix in SUFFIXES.items()}

_HEAD = r"(?:(?P<cpu>C7x_\d{1,3})_)?tidl_trace"
_TAIL = r"_(?P<w>\d{5,10})x(?P<h>\d{5,10})(?P<kind>_float\.bin|_paded\.y|\.y)"
_ID = r"(?P<id>\d{4,9})"
# A sub-graph's name may hold digits and underscores itself; greedy, so that the six fields count from the right.
_CURRENT = re.compile(
    _HEAD
    + r"(?:_(?P<sub>[^/\n\0]+)_|_?)"
    + _ID
    + r"_(?P<n>\d{4,9})_(?P<d1>\d{4,9})_(?P<d2>\d{5,9})_(?P<c>\d{5,9})"
    + _TAIL,
    re.ASCII,
)
_OLD = re.compile(_HEAD + r"_?" + _ID + r"_(?P<n>\d{5,9})_(?P<c>\d{5,9})" + _TAIL, re.ASCII)
_LONGEST = 1024


class TraceName(msgspec.Struct, frozen=True):
    """The meaning of a trace's name.

    `cpu`: "C7x_1" on the target, None from PC emulation. `subgraph`: None in names of SDK 8.6 and before.
    `dims`: (batch, dim1, dim2, channels, height, width). `kind`: "y" codes without padding, "float" float32,
    "padded" codes with padding.
    """

    cpu: str | None
    subgraph: str | None
    data_id: int
    dims: Dims
    kind: Kind


def parse(name: str) -> TraceName | None:
    """The meaning of a file name without its folder; None where it is not a trace's (as for `…_perf.csv`)."""
    if len(name) > _LONGEST:
        return None
    match = _CURRENT.fullmatch(name) or _OLD.fullmatch(name)
    if match is None:
        return None
    field = match.groupdict()
    return TraceName(
        cpu=field["cpu"],
        subgraph=field.get("sub"),
        data_id=int(field["id"]),
        dims=(
            int(field["n"]),
            int(field.get("d1") or 1),
            int(field.get("d2") or 1),
            int(field["c"]),
            int(field["h"]),
            int(field["w"]),
        ),
        kind=_KINDS[field["kind"]],
    )


def format_name(trace: TraceName) -> str:
    """The file name of today's grammar (SDK 9.1 and later)."""
    cpu = f"{trace.cpu}_" if trace.cpu else ""
    subgraph = f"{trace.subgraph}_" if trace.subgraph else ""
    batch, dim1, dim2, channels, height, width = trace.dims
    fields = f"{trace.data_id:04d}_{batch:04d}_{dim1:04d}_{dim2:05d}_{channels:05d}_{width:05d}x{height:05d}"
    return f"{cpu}tidl_trace_{subgraph}{fields}{SUFFIXES[trace.kind]}"


def expected_bytes(dims: tuple[int, ...], dtype: str) -> int:
    """Size of a trace without padding: elements times the size of NumPy's `dtype`.

    A batch-stitched buffer (`numBatchW` > 1) has another size than its name says: a difference alone is no damage.
    """
    return prod(dims) * np.dtype(dtype).itemsize
