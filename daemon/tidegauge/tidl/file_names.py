"""Which file of a compile is which, by name, in the naming of every era.

Source: edgeai-tidl-tools 08_06 to 11_00 and the model zoo's packages: TFLite names a sub-graph by its output tensor's
index (`264_tidl_net.bin`); ONNX up to 9.0 by its outputs' names (`191_`, `_backbone_…_output_0_`); since 9.1 by number
(`subgraph_0_`) or by `advanced_options:network_name`; TVM writes `subgraph0_net.bin`. A picture of the network is told
by its presence, svg up to 11.0 and html after, never by a version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

Role = Literal[
    "net", "io", "layer_info", "netlog", "picture", "param_debug", "perf", "perfsim", "proto", "allowed_nodes",
    "metadata", "yaml", "compile_log", "trace",
]  # fmt: skip
Era = Literal["number", "tensor_index", "output_names", "tvm"]

_NET = r"(?P<sub>.{1,400}?)_(?:tidl_)?net\.bin"
_ROLES: tuple[tuple[Role, re.Pattern[str]], ...] = (
    ("trace", re.compile(r"(?P<sub>)(?:C7x_\d{1,3}_)?tidl_trace.*(?:\.y|_float\.bin)")),
    ("perf", re.compile(r"tidl_trace_(?P<sub>.{1,400}?)_perf\.csv")),
    ("net", re.compile(_NET)),
    ("io", re.compile(r"(?P<sub>.{1,400}?)_(?:tidl_io|params)_1\.bin")),
    ("layer_info", re.compile(_NET + r"\.layer_info\.txt")),
    ("netlog", re.compile(_NET + r"_netLog\.txt")),
    ("picture", re.compile(_NET + r"\.(?:svg|html)")),
    ("param_debug", re.compile(_NET + r"_paramDebug\.csv")),
    ("perfsim", re.compile(r"(?P<sub>)(?:perfsim.*\.csv|tempDir_.*_DSP\d+_.*\.csv)")),
    ("proto", re.compile(r"(?P<sub>).*(?:qparams|quant_params)\.prototxt")),
    ("allowed_nodes", re.compile(r"(?P<sub>)allowedNode\.txt")),
    ("metadata", re.compile(r"(?P<sub>)onnxrtMetaData\.txt")),
    ("yaml", re.compile(r"(?P<sub>)param\.yaml")),
    ("compile_log", re.compile(r"(?P<sub>)(?:run|compile)\.log")),
)


class Named(msgspec.Struct, frozen=True):
    """What a name says: the file's role, and the sub-graph it belongs to ("" where it belongs to all)."""

    role: Role
    subgraph: str


def identify(name: str) -> Named | None:
    """The meaning of a file's name without its folder; None where it is none of TIDL's that is read here."""
    if len(name) > 1024 or "/" in name:
        return None
    for role, pattern in _ROLES:
        match = pattern.fullmatch(name)
        if match:
            return Named(role, match["sub"])
    return None


def subgraphs(names: Iterable[str]) -> tuple[str, ...]:
    """The sub-graphs whose network, descriptor or layer table is among the names, in natural order."""
    roles = ("net", "io", "layer_info", "netlog", "picture")
    found = {named.subgraph for name in names if (named := identify(name)) and named.role in roles}
    return tuple(sorted(found, key=_natural))


def era(subgraph: str) -> Era:
    """How a sub-graph is named. A number alone is TFLite's tensor index, or an ONNX output of that name (up to 9.0)."""
    if re.fullmatch(r"subgraph_\d+", subgraph, re.ASCII):
        return "number"
    if re.fullmatch(r"subgraph\d+", subgraph, re.ASCII):
        return "tvm"
    return "tensor_index" if subgraph.isdecimal() and subgraph.isascii() else "output_names"


def _natural(name: str) -> list[tuple[int, int, str]]:
    words = re.split(r"(\d{1,18})", name)
    return [(0, int(word), "") if word.isdecimal() else (1, 0, word) for word in words]
