"""Trace files against the network that they should be of: whole, truncated, foreign or missing."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import msgspec

from tidegauge.tidl import tensor_table, trace_names
from tidegauge.tidl.network_summary import Network

#: Graph inputs and outputs: layers that compute nothing and are not dumped.
DATA_LAYER = "TIDL_DataLayer"


class TraceFile(msgspec.Struct, frozen=True):
    """One trace. `status`: "whole", "truncated", "too long", "size unknown" (no table told the type), "unexpected"."""

    file: str
    cpu: str | None
    subgraph: str | None
    data_id: int
    kind: str
    name: str | None
    dims: tuple[int, ...]
    dtype: str | None
    size: int
    expected: int | None
    status: str


class MissingTrace(msgspec.Struct, frozen=True):
    """A layer of the table without a trace of its tensor."""

    subgraph: str
    data_id: int
    name: str | None


def printed_types(logs: Mapping[str, bytes]) -> dict[int, str]:
    """Element types by data id, as the C7x prints them while it dumps; not where two networks were dumped."""
    rows = [row for data in logs.values() for row in tensor_table.from_remote_log(data.decode(errors="replace"))]
    return {row.data_id: row.dtype for row in rows if row.data_id is not None and row.dtype and not row.problem}


def judge(sizes: Mapping[str, int], networks: tuple[Network, ...], printed: Mapping[int, str]) -> tuple[TraceFile, ...]:
    found: list[TraceFile] = []
    for path, size in sizes.items():
        trace = trace_names.parse(path.rsplit("/", 1)[-1])
        if trace is not None:
            found.append(_trace(path, size, trace, networks, printed))
    return tuple(sorted(found, key=lambda item: (item.subgraph or "", item.data_id, item.kind)))


def _trace(
    path: str, size: int, trace: trace_names.TraceName, networks: tuple[Network, ...], printed: Mapping[int, str]
) -> TraceFile:
    network = _network_of(trace.subgraph, networks)
    layer = next((row for row in network.layers if row.data_id == trace.data_id), None) if network else None
    dtype = "float32" if trace.kind == "float" else layer.dtype if layer else printed.get(trace.data_id)
    expected = trace_names.expected_bytes(trace.dims, dtype) if dtype and trace.kind != "padded" else None
    if network is not None and network.layers and layer is None:
        status = "unexpected"
    elif trace.kind == "padded":
        status = "size unknown"
    elif expected is None:
        elements = prod(trace.dims)
        status = "size unknown" if size in (elements, 2 * elements) else "truncated" if size < elements else "too long"
    elif size == expected:
        status = "whole"
    else:
        status = "truncated" if size < expected else "too long"
    name = layer.name if layer else None
    return TraceFile(
        path, trace.cpu, trace.subgraph, trace.data_id, trace.kind, name, trace.dims, dtype, size, expected, status
    )


def _network_of(subgraph: str | None, networks: tuple[Network, ...]) -> Network | None:
    named = next((network for network in networks if network.name == subgraph), None)
    return named or (networks[0] if subgraph is None and len(networks) == 1 else None)


def missing_traces(traces: tuple[TraceFile, ...], networks: tuple[Network, ...]) -> tuple[MissingTrace, ...]:
    """Layers of every traced network whose tensor has no trace; data layers (the graph's inputs) are not dumped."""
    traced = {(network.name, row.data_id) for row in traces if (network := _network_of(row.subgraph, networks))}
    names = {name for name, _ in traced}
    return tuple(
        MissingTrace(network.name, layer.data_id, layer.name)
        for network in networks
        if network.name in names
        for layer in network.layers
        if layer.data_id is not None and layer.kind != DATA_LAYER and (network.name, layer.data_id) not in traced
    )
