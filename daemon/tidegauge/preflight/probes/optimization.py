"""The check `optimizer-level`: the profile's level of ONNX Runtime's optimiser is the one of the compile.

Source: edgeai-tidl-tools, docs/debugging.md: the node numbers in `allowedNode.txt` are those of the optimised graph, so
that the level must be the same at compile and at inference. ONNX Runtime asks a provider which nodes it takes after the
optimisations of its level `basic`, whatever the higher levels add later.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tidegauge.preflight import onnx_file
from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, not_applicable, ok, warning
from tidegauge.runtimes import artifact_folder
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.tidl.artifacts import METADATA, parse_metadata
from tidegauge.tidl.errors import FormatError


def run(context: Context) -> Finding:
    profile = context.required.profile
    if profile.runtime != "onnx":
        return not_applicable("TFLite has no such level")
    try:
        contents = artifact_folder.read(Path(profile.artifacts)).contents
        compiled = parse_metadata(contents[METADATA].decode(errors="replace")).graph_nodes
    except (RuntimeFault, FormatError, KeyError):
        return not_applicable(f"{METADATA} can't be read: see `artifacts`")
    model = onnx_file.load(Path(profile.model))
    if model is None:
        return not_applicable(f"{profile.model} can't be read as a graph here (a board has no package `onnx`)")
    basic = optimised_nodes(Path(profile.model))
    if basic is None:
        return not_applicable(f"{profile.model} does not open on the CPU: see `model`")
    return judge(profile.graph_optimization, compiled, len(model.graph.node), basic)


def optimised_nodes(model: Path) -> int | None:
    """Nodes left by this ONNX Runtime's level `basic`; None where it can't open the model."""
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph, InvalidProtobuf

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        try:
            onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except (Fail, InvalidArgument, InvalidGraph, InvalidProtobuf):
            return None
        written = onnx_file.load(Path(folder) / "optimised.onnx")
    return None if written is None else len(written.graph.node)


def judge(level: str, compiled: int, plain: int, basic: int) -> Finding:
    """`compiled`: nodes that the compile counted; `plain`, `basic`: nodes of the model as it is, and optimised."""
    here, other = (plain, basic) if level == "disabled" else (basic, plain)
    told = f"the compile counted {compiled} nodes; with `graph_optimization = {level}` this runtime counts {here}"
    if compiled == here:
        return ok(told)
    if compiled == other:
        right = "default" if level == "disabled" else "disabled"
        return warning(
            f"{told}, with `{right}` {other}: allowedNode.txt names other nodes than the session has",
            f'set `graph_optimization = "{right}"` in the profile, as at the compile',
        )
    return not_applicable(f"{told}, without it {other}: the compile's ONNX Runtime is of another release")


PROBE = Probe(
    id="optimizer-level",
    title="level of ONNX Runtime's optimiser against the compile's",
    why="the node numbers in allowedNode.txt then mean other nodes: some run on the CPU, or the create fails",
    place="anywhere",
    run=run,
    deadline=lambda _context: 120.0,
)
