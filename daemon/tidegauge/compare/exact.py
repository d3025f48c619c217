"""Two runs of one compile, code by code: emulation against board, or one board against another.

TI's emulation on a PC and the C7x give the same bits for the same input tensor (TIDL user guide, debugging accuracy):
whatever differs is a fault of the device, its firmware or its build. Pure: files come as names, sizes and readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from tidegauge import __version__
from tidegauge.compare.compiled import Subgraph
from tidegauge.compare.exact_difference import Difference, difference
from tidegauge.compare.exact_types import (
    DIFFERS,
    ExactComparison,
    ExactCounts,
    ExactStatus,
    ExactTensor,
    Origin,
)
from tidegauge.compare.exact_words import exact_sentence
from tidegauge.errors import TidegaugeError
from tidegauge.tidl import trace_names
from tidegauge.tidl.trace_names import TraceName

Array = NDArray[Any]
Key = tuple[str, int, str]
Order = Literal["netLog", "layer_info", "data id"]

_PIECE = 1 << 20
#: Compared on both sides, with a class.
_COMPARED = ("exact", "off_by_one", "larger")


@dataclass(frozen=True)
class TraceFile:
    """A trace on one side. `read` gives its bytes, or None where they are not there."""

    file: str
    size: int
    read: Callable[[], Any] | None


def compare_exact(
    host: Iterable[TraceFile],
    device: Iterable[TraceFile],
    subgraphs: Mapping[str, Subgraph],
    *,
    labels: tuple[str, str] = ("host", "device"),
    min_coverage: float = 0.8,
    progress: Callable[[int, int], None] | None = None,
) -> ExactComparison:
    """Pair the traces by sub-graph, data id and kind, and class each pair. `subgraphs` may be empty.

    Raises `TidegaugeError` where nothing can be paired. `seconds` of the answer is 0: the caller owns the clock.
    """
    ours, theirs = _by_key(host, subgraphs, board=False), _by_key(device, subgraphs, board=True)
    _check_pairs(ours, theirs, labels)
    order, position = _order(subgraphs)
    keys = sorted(set(ours) | set(theirs), key=lambda key: (position.get(key[:2], 1 << 40), key))
    paired = {key[:2] for key in set(ours) & set(theirs)}
    tensors = []
    for done, key in enumerate(keys, 1):
        tensors.append(_tensor(key, ours.get(key, []), theirs.get(key, []), subgraphs, key[:2] in paired))
        if progress is not None:
            progress(done, len(keys))
    tensors = _trace_origins(tensors, subgraphs, order)
    first = next((i for i, t in enumerate(tensors) if t.origin == "origin"), None)
    if first is None:
        first = next((i for i, t in enumerate(tensors) if t.origin == "undecided"), None)
    counts = _counts(tensors, min_coverage)
    code: Literal[0, 1, 3] = 3 if counts.share < min_coverage else 1 if counts.off_by_one + counts.larger else 0
    return ExactComparison(
        tool=__version__,
        host=labels[0],
        device=labels[1],
        exit_code=code,
        sentence=exact_sentence(tensors, first, counts),
        order=order,
        counts=counts,
        first=first,
        tensors=tuple(tensors),
        notes=_notes(tensors, order),
        seconds=0.0,
    )


# --- pairing -----------------------------------------------------------------------------------------------------


def _by_key(
    files: Iterable[TraceFile], subgraphs: Mapping[str, Subgraph], *, board: bool
) -> dict[Key, list[tuple[TraceFile, TraceName]]]:
    """Files by key; where a key has files of both prefixes, the board's for the device and the PC's for the host."""
    found: dict[Key, list[tuple[TraceFile, TraceName]]] = {}
    for item in sorted(files, key=lambda f: f.file):
        parsed = trace_names.parse(item.file)
        if parsed is None or parsed.kind == "padded":
            continue
        # Names of SDK 8.6 and before don't tell the sub-graph.
        name = parsed.subgraph or (next(iter(subgraphs)) if len(subgraphs) == 1 else "")
        found.setdefault((name, parsed.data_id, parsed.kind), []).append((item, parsed))
    for key, group in found.items():
        wanted = [pair for pair in group if (pair[1].cpu is not None) == board]
        found[key] = wanted or group
    return found


def _check_pairs(ours: Mapping[Key, Any], theirs: Mapping[Key, Any], labels: tuple[str, str]) -> None:
    for side, label in ((ours, labels[0]), (theirs, labels[1])):
        if not side:
            raise TidegaugeError(f"{label} has no trace files (*tidl_trace*)", "give the folder that holds the traces")
    if set(ours) & set(theirs):
        return
    kinds = [{key[2] for key in side} for side in (ours, theirs)]
    if kinds == [{"float"}, {"y"}] or kinds == [{"y"}, {"float"}]:
        label = labels[0] if kinds[0] == {"float"} else labels[1]
        raise TidegaugeError(
            f"{label} holds floats only, as a network compiled with tensor_bits 32 gives: no codes to compare",
            "give it as --host-float, or dump both sides from the same artifacts",
        )
    raise TidegaugeError(
        f"no trace of {labels[0]} and {labels[1]} has the same sub-graph and data id",
        "give traces of the same artifacts",
    )


def _order(subgraphs: Mapping[str, Subgraph]) -> tuple[Order, dict[tuple[str, int], int]]:
    position: dict[tuple[str, int], int] = {}
    for subgraph in subgraphs.values():
        for data_id in subgraph.order:
            position.setdefault((subgraph.name, data_id), len(position))
    if not position:
        return "data id", position
    return ("netLog" if all(s.edges is not None for s in subgraphs.values()) else "layer_info"), position


# --- one tensor --------------------------------------------------------------------------------------------------


def _tensor(
    key: Key,
    ours: Sequence[tuple[TraceFile, TraceName]],
    theirs: Sequence[tuple[TraceFile, TraceName]],
    subgraphs: Mapping[str, Subgraph],
    paired: bool,
) -> ExactTensor:
    subgraph = subgraphs.get(key[0])
    parsed = (ours or theirs)[0][1]
    info = subgraph.info(key[1]) if subgraph is not None else None
    status, reason = _usable(ours, theirs, paired)
    dtype, guessed = _dtype(key[2], parsed, info.dtype if info is not None else None, (ours or theirs)[0][0].size)
    digests, found = ("", ""), Difference()
    if status == "exact":
        status, reason, digests, found = _content(ours[0], theirs[0], dtype, guessed)
    return ExactTensor(
        subgraph=key[0],
        data_id=key[1],
        kind=key[2],
        name=subgraph.names.get(key[1], "") if subgraph is not None else "",
        layer_kind=subgraph.kinds.get(key[1], "") if subgraph is not None else "",
        dims=parsed.dims,
        dtype=dtype,
        sign_guessed=guessed and status in DIFFERS,
        status=status,
        reason=reason,
        host_file=ours[0][0].file if ours else "",
        device_file=theirs[0][0].file if theirs else "",
        host_xxh3=digests[0],
        device_xxh3=digests[1],
        count=_count(parsed),
        off_by_one=found.off_by_one,
        off_by_more=found.off_by_more,
        largest=found.largest,
        origin="none",
        inputs=subgraph.edges.get(key[1]) if subgraph is not None and subgraph.edges is not None else None,
        rows=found.rows,
        columns=found.columns,
        channels=found.channels,
    )


def _usable(
    ours: Sequence[tuple[TraceFile, TraceName]], theirs: Sequence[tuple[TraceFile, TraceName]], paired: bool
) -> tuple[ExactStatus, str]:
    """ "exact" where the contents can be looked at."""
    for group, side in ((ours, "host"), (theirs, "device")):
        if len(group) > 1:
            return "duplicate", f"{len(group)} files of the {side} claim it: {', '.join(i.file for i, _ in group)}"
    if not ours or not theirs:
        side = "device" if ours else "host"
        if paired:
            return "not_dumped", f"the {side} dumped this tensor in another form only"
        return ("missing" if ours else "unexpected"), f"there is no trace of it from the {side}"
    for (item, _), side in ((ours[0], "host"), (theirs[0], "device")):
        if item.read is None:
            return "missing" if side == "device" else "unexpected", f"the bytes of the {side}'s trace are not here"
    (one, first), (other, second) = ours[0], theirs[0]
    if first.dims != second.dims:
        return "size", f"the host's dims are {list(first.dims)}, the device's {list(second.dims)}"
    if one.size != other.size:
        shorter = "host" if one.size < other.size else "device"
        small, large = sorted((one.size, other.size))
        return "truncated", f"the {shorter}'s file has {small} bytes, the other {large}"
    if one.size == 0 or not _count(first) or one.size % _count(first):
        return "size", f"{one.size} bytes on both sides do not fit {_count(first)} elements"
    return "exact", ""


def _dtype(kind: str, parsed: TraceName, known: str | None, size: int) -> tuple[str | None, bool]:
    """The element type, and whether its sign is a guess."""
    if kind == "float":
        return "float32", False
    width = size // max(1, _count(parsed))
    if known is not None and np.dtype(known).itemsize == width and known != "float32":
        return known, False
    return {1: "int8", 2: "int16", 4: "int32"}.get(width), True


def _content(
    ours: tuple[TraceFile, TraceName], theirs: tuple[TraceFile, TraceName], dtype: str | None, guessed: bool
) -> tuple[ExactStatus, str, tuple[str, str], Difference]:
    buffers = [_bytes(item) for item, _ in (ours, theirs)]
    digests = (_xxh3(buffers[0]), _xxh3(buffers[1]))
    if digests[0] == digests[1]:
        return "exact", "", digests, Difference()
    if dtype is None or buffers[0].size != _count(ours[1]) * np.dtype(dtype).itemsize:
        return "size", f"{buffers[0].size} bytes do not fit {_count(ours[1])} elements", digests, Difference()
    found = difference(buffers[0], buffers[1], dtype, ours[1].dims)
    if guessed:  # the bits differ either way; which reading is right shows in how far
        other = difference(buffers[0], buffers[1], f"u{dtype}", ours[1].dims)
        found = min(found, other, key=lambda each: (each.off_by_more, each.largest))
    unit = "next float" if dtype == "float32" else "code"
    status: ExactStatus = "larger" if found.off_by_more else "off_by_one"
    reason = f"{found.off_by_one} off by one {unit}, {found.off_by_more} by more, at most {found.largest}"
    return status, reason, digests, found


def _count(parsed: TraceName) -> int:
    return prod(parsed.dims)


def _bytes(item: TraceFile) -> Array:
    if item.read is None:
        raise TidegaugeError(f"{item.file} can't be read", "copy it again")
    data = np.frombuffer(item.read(), np.uint8)
    if data.size != item.size:
        raise TidegaugeError(f"{item.file} has {data.size} bytes instead of {item.size}", "copy it again")
    return data


def _xxh3(data: Array) -> str:
    state = xxhash.xxh3_128()
    for first in range(0, data.size, _PIECE):
        state.update(data[first : first + _PIECE].data)
    return state.hexdigest()


# --- where a difference comes from -------------------------------------------------------------------------------


def _trace_origins(
    tensors: Sequence[ExactTensor], subgraphs: Mapping[str, Subgraph], order: Order
) -> list[ExactTensor]:
    """An origin reads exact tensors only. Without edges, the first difference in order is the only candidate."""
    states: dict[tuple[str, int], str] = {}
    for tensor in tensors:
        key = (tensor.subgraph, tensor.data_id)
        now = "differs" if tensor.status in DIFFERS else "exact" if tensor.status == "exact" else "unknown"
        if states.get(key) != "differs" and not (now == "unknown" and key in states):
            states[key] = now
    found: list[ExactTensor] = []
    seen = False
    gap = False
    for tensor in tensors:
        origin: Origin = "none"
        if tensor.status in DIFFERS:
            subgraph = subgraphs.get(tensor.subgraph)
            if order == "netLog" and subgraph is not None:
                origin = _origin(tensor.data_id, subgraph, states)
            else:
                origin = "inherits" if seen else "undecided" if gap else "origin"
            seen = True
        elif tensor.status not in ("exact", "not_dumped"):
            gap = True
        found.append(msgspec.structs.replace(tensor, origin=origin))
    return found


def _origin(data_id: int, subgraph: Subgraph, states: Mapping[tuple[str, int], str]) -> Origin:
    """Through tensors without a usable trace, back to those that are known."""
    edges = subgraph.edges or {}
    if data_id not in edges:
        return "undecided"
    known = True
    waiting, seen = [data_id], {data_id}
    while waiting:
        now = waiting.pop()
        if now in subgraph.incomplete or now not in edges:
            known = False
        for source in edges.get(now, ()):
            if source in seen:
                continue
            seen.add(source)
            state = states.get((subgraph.name, source), "unknown")
            if state == "differs":
                return "inherits"
            if state == "unknown" and source in edges and edges[source]:
                known = False
                waiting.append(source)
    return "origin" if known else "undecided"


def _counts(tensors: Sequence[ExactTensor], minimum: float) -> ExactCounts:
    """`not_dumped` counts for nothing: the tensor is there in another form."""
    status = [tensor.status for tensor in tensors if tensor.status != "not_dumped"]
    compared = sum(s in _COMPARED for s in status)
    return ExactCounts(
        exact=status.count("exact"),
        off_by_one=status.count("off_by_one"),
        larger=status.count("larger"),
        missing=status.count("missing"),
        unexpected=status.count("unexpected"),
        unusable=sum(s in ("size", "truncated", "duplicate") for s in status),
        compared=compared,
        total=len(status),
        share=compared / len(status) if status else 0.0,
        minimum=minimum,
    )


def _notes(tensors: Sequence[ExactTensor], order: Order) -> tuple[str, ...]:
    found = []
    if order == "layer_info":
        found.append("There is no netLog, so the edges are unknown: the order is layer_info's, and the first is named.")
    elif order == "data id":
        found.append("There is no tempDir: layers have no names here, and the order is that of the data ids.")
    skipped = sum(tensor.status == "not_dumped" for tensor in tensors)
    if skipped:
        found.append(f"{skipped} tensors were dumped in one more form on one side; they are compared in the other.")
    if any(tensor.sign_guessed for tensor in tensors):
        found.append("No table tells whether codes are signed; the reading with the smaller difference was taken.")
    return tuple(found)
