"""The check `subgraphs`: how the compile has split the model.

Source: `allowedNode.txt` and `onnxrtMetaData.txt` (edgeai-tidl-tools, tidl_osr_debug.md: one or two sub-graphs are
healthy, each boundary copies tensors through the CPU).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tidegauge.preflight import onnx_file
from tidegauge.preflight.context import Context
from tidegauge.preflight.operators import cure_of
from tidegauge.preflight.probe import Finding, Probe, not_applicable, ok, warning
from tidegauge.runtimes import artifact_folder
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.tidl.artifacts import ALLOWED_NODES, METADATA, parse_allowed_nodes, parse_metadata
from tidegauge.tidl.errors import FormatError

HEALTHY = 2


def run(context: Context) -> Finding:
    profile = context.required.profile
    try:
        contents = artifact_folder.read(Path(profile.artifacts)).contents
        groups = parse_allowed_nodes(contents.get(ALLOWED_NODES, b"").decode(errors="replace"))
    except (RuntimeFault, FormatError):
        return not_applicable(f"{ALLOWED_NODES} can't be read: see `artifacts`")
    total = None
    if METADATA in contents:
        try:
            total = parse_metadata(contents[METADATA].decode(errors="replace")).graph_nodes
        except FormatError:
            return not_applicable(f"{METADATA} can't be read: see `artifacts`")
    complete = total is not None and sum(len(group) for group in groups) >= total
    named = profile.runtime == "onnx" and not complete
    return judge(groups, total, operator_types(Path(profile.model)) if named else None)


def operator_types(model: Path) -> list[str] | None:
    """Operators of an ONNX model in its own order; None where they can't be read here."""
    loaded = onnx_file.load(model)
    return None if loaded is None else [node.op_type for node in loaded.graph.node]


def judge(groups: Sequence[Sequence[int]], total: int | None, operators: Sequence[str] | None) -> Finding:
    """`total`: nodes of the graph. `operators`: named only where there are as many as nodes, else the runtime has
    optimised the graph and the indices mean other nodes."""
    taken = sum(len(group) for group in groups)
    count = len([group for group in groups if group])
    told = f"{count} sub-graphs, {taken} nodes on the accelerator"
    if total is None:
        return ok(told) if count <= HEALTHY else _split(told)
    left = total - taken
    told += f", {left} of {total} on the CPU"
    if left <= 0:
        return ok(told) if count <= HEALTHY else _split(told)
    names: list[str] = []
    if operators is not None and len(operators) == total:
        inside = {index for group in groups for index in group}
        names = [name for index, name in enumerate(operators) if index not in inside]
        told += " (" + ", ".join(f"{n} × {name}" for name, n in Counter(names).most_common(6)) + ")"
    cures = list(dict.fromkeys(cure_of(name) for name in names))[:3]
    cure = (
        "; ".join(cures)
        or "run `tidegauge lint MODEL`: it names each operator that TIDL leaves to the CPU, and its cure"
    )
    return warning(told, cure)


def _split(told: str) -> Finding:
    return warning(
        told + ": every boundary copies tensors through the CPU",
        "replace the operators between them (`tidegauge lint MODEL` names them), or list them in `deny_list:layer_name`"
        " together with what hangs between them",
    )


PROBE = Probe(
    id="subgraphs",
    title="number of sub-graphs, nodes left on the CPU",
    why="slower by the copies, and other arithmetic than the engineer believes",
    place="anywhere",
    run=run,
)
