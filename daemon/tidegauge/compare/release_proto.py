"""Whether a release may read the quantisation proto that another one wrote.

Source of the limits: TI's quantization_proto.md, tools 11.2 (one sub-graph that holds the whole model, symmetric
scales only, read by layer).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tidegauge.compare.compiled import Subgraph
from tidegauge.compare.release_load import Side
from tidegauge.compare.release_types import ProtoReuse
from tidegauge.tidl import netlog
from tidegauge.tidl.netlog import NetLog

_MOST = 20


def may_reuse(before: Side, after: Side) -> ProtoReuse:
    """Equal networks, one sub-graph each, symmetric scales, and a proto to read; else the reason why not."""
    by, differences = _differences(before.subgraphs, after.subgraphs)
    if by == "none":
        return _refused(by, "no table of one side tells its network", ())
    if differences:
        return _refused(by, f"the compiled networks differ ({differences[0]})", tuple(differences))
    if len(before.subgraphs) != 1 or len(after.subgraphs) != 1:
        return _refused(by, "the model is cut into several sub-graphs, and a proto holds one", ())
    zeros = [row.name or str(row.data_id) for s in before.subgraphs.values() for row in s.table if row.zero_point]
    if zeros:
        return _refused(by, f"its scales are not symmetric ({zeros[0]} has a zero point), which a proto can't tell", ())
    if before.proto is None:
        return _refused(by, "there is none beside the earlier compile, though the networks are equal", ())
    return ProtoReuse(True, by, f"the earlier quantisation proto may be read: the networks are equal by {by}", ())


def _refused(by: Literal["netLog", "svg", "none"], why: str, differences: tuple[str, ...]) -> ProtoReuse:
    return ProtoReuse(False, by, f"the earlier quantisation proto may not be read: {why}", differences)


def _differences(
    before: Mapping[str, Subgraph], after: Mapping[str, Subgraph]
) -> tuple[Literal["netLog", "svg", "none"], list[str]]:
    """Where the networks differ, and the table that says so: netLogs first, svg or html where one has no netLog."""
    if set(before) != set(after):
        return "netLog", [f"sub-graphs {', '.join(sorted(before))} against {', '.join(sorted(after))}"]
    found: list[str] = []
    if all(side[name].layers for side in (before, after) for name in before):
        for name in before:
            logs = NetLog(before[name].layers, None), NetLog(after[name].layers, None)
            found += netlog.differences(*logs)
        return "netLog", found[:_MOST]
    if not all(any(row.source == "svg" for row in side[n].table) for side in (before, after) for n in before):
        return "none", []
    for name in before:
        found += _by_picture(before[name], after[name])
    return "svg", found[:_MOST]


def _by_picture(one: Subgraph, other: Subgraph) -> list[str]:
    rows = [{r.data_id: r for r in side.table if r.source == "svg"} for side in (one, other)]
    found = []
    if len(rows[0]) != len(rows[1]):
        found.append(f"{len(rows[0])} tensors against {len(rows[1])}")
    for data_id in sorted(i for i in rows[0].keys() | rows[1].keys() if i is not None):
        first, second = rows[0].get(data_id), rows[1].get(data_id)
        if first is None or second is None:
            found.append(f"data id {data_id} is only {'after' if first is None else 'before'}")
            continue
        for what, a, b in (
            ("kind", first.layer_kind, second.layer_kind),
            ("name", first.name, second.name),
            ("shape", first.dims, second.dims),
        ):
            if a != b:
                found.append(f"data id {data_id}: {what} {a!r} against {b!r}")
    return found
