"""The float model and a compiled network as graphs of one kind, and the pieces of one layer against its operators.

A fused layer is compared at its last tensor, and holds every operator of its part of the chain. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tidegauge.compare.compiled import Subgraph
from tidegauge.compare.fingerprints import UNARY, Node, Skeleton
from tidegauge.compare.model import ORIGINAL, Model, reads
from tidegauge.tidl.netlog import NetLayer

_FAMILIES: dict[str, str] = {
    **dict.fromkeys(("Conv",), "conv"),
    **dict.fromkeys(("ConvTranspose",), "deconv"),
    **dict.fromkeys(("Gemm", "MatMul"), "matmul"),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"), "pool"),
    **dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum"), "pool"),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Sum", "Max", "Min"), "eltwise"),
    **dict.fromkeys(("BatchNormalization", "Relu", "Clip", "LeakyRelu", "PRelu"), "scale"),
    **dict.fromkeys(("Slice", "Split"), "slice"),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Cast", "Pad"), "shape"),
    **dict.fromkeys(("Resize", "Upsample"), "resize"),
    "HardSwish": "silu",
    "LayerNormalization": "layernorm",
    "InstanceNormalization": "instancenorm",
    "GroupNormalization": "groupnorm",
    "ReduceL2": "pool",
    "ScatterND": "scatternd",
}
#: TIDL's layer kinds without `TIDL_` and `Layer`, where their plain lower case is not the operator's.
_KINDS: dict[str, str] = {
    **dict.fromkeys(("Convolution",), "conv"),
    **dict.fromkeys(("Deconv2D", "Deconvolution"), "deconv"),
    **dict.fromkeys(("InnerProduct", "MatMul"), "matmul"),
    **dict.fromkeys(("Pooling", "Reduce"), "pool"),
    **dict.fromkeys(("EltWise",), "eltwise"),
    **dict.fromkeys(("BatchNorm", "ReLU", "PReLU", "Clip", "Scale", "Bias"), "scale"),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Pad", "Cast"), "shape"),
    **dict.fromkeys(("DataConvert",), "convert"),
    "Data": "input",
}
#: A piece of the device's chain may be computed by these of the model's.
_ALSO = {"scale": UNARY, "silu": UNARY | {"eltwise"}}
#: More ways to cut a chain than this are not looked at.
_MOST_CUTS = 2000


def squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    """Dims above 1: what a tensor's shape is, whatever the rank that a tool gives it."""
    return tuple(n for n in shape if n != 1)


def family(op: str, data_inputs: int) -> str:
    """The family of an ONNX operator; arithmetic with a constant is a scale."""
    found = _FAMILIES.get(op, op.lower())
    return "scale" if found == "eltwise" and data_inputs < 2 else found


def kind_family(kind: str) -> str:
    """The family of a TIDL layer kind ("TIDL_ConvolutionLayer")."""
    plain = kind.removeprefix("TIDL_").removesuffix("Layer")
    return _KINDS.get(plain, plain.lower())


def float_graph(model: Model, aliases: Mapping[str, str]) -> list[Node]:
    """The float model's data tensors; constants and what depends on nothing else are left out."""
    alive: set[str] = set(model.inputs)
    outputs = set(model.outputs)
    nodes = [Node(n, "input", (), _shape(model, n), n in outputs) for n in model.inputs]
    for node in model.nodes:
        data = tuple(name for name in reads(node) if name in alive)
        if not data or node.op_type == "Shape":
            continue
        added = node.op_type == "Identity" and (node.output[0] in aliases or f"{node.output[0]}{ORIGINAL}" in aliases)
        kind = "convert" if added else family(node.op_type, len(data))
        for name in node.output:
            if name:
                alive.add(name)
                nodes.append(Node(name, kind, data, _shape(model, name), name in outputs))
    return nodes


def _shape(model: Model, name: str) -> tuple[int, ...] | None:
    shape = model.shapes.get(name)
    return squeezed(shape) if shape is not None and all(n > 0 for n in shape) else None


def device_key(subgraph: str, data_id: int) -> str:
    """The key of a compiled tensor in its graph."""
    return f"{subgraph}:{data_id}"


def device_graph(subgraph: Subgraph) -> list[Node]:
    """The compiled network's tensors, from its netLog. Empty without one, or where edges are missing."""
    rows = [layer for layer in subgraph.layers if layer.outputs]
    known = {data_id for layer in rows for data_id in layer.outputs}
    if any(i not in known for layer in subgraph.layers for i in layer.inputs) or subgraph.incomplete:
        return []
    read_by_sink = {i for layer in subgraph.layers if not layer.outputs for i in layer.inputs}
    nodes = []
    for layer in _sorted(rows):
        inputs = tuple(device_key(subgraph.name, i) for i in layer.inputs)
        for data_id in layer.outputs:
            # A data-convert layer may change the layout, and several outputs share one row.
            plain = len(layer.outputs) == 1 and layer.kind != "TIDL_DataConvertLayer"
            shape = squeezed(layer.output_dims) if plain else None
            key, output = device_key(subgraph.name, data_id), data_id in read_by_sink
            nodes.append(Node(key, kind_family(layer.kind), inputs, shape, output))
    return nodes


def _sorted(rows: Sequence[NetLayer]) -> list[NetLayer]:
    """In topological order: the table's own, as far as it is one."""
    done: set[int] = set()
    waiting, ordered = list(rows), []
    while waiting:
        ready = [row for row in waiting if all(i in done for i in row.inputs)]
        if not ready:
            return []
        ordered += ready
        done.update(i for row in ready for i in row.outputs)
        waiting = [row for row in waiting if not all(o in done for o in row.outputs)]
    return ordered


@dataclass(frozen=True)
class Alignment:
    """The float tensors that a device tensor may be (one: it is), by device key; `extra`: layers the compiler added."""

    candidates: dict[str, tuple[str, ...]]
    extra: tuple[str, ...]


def align(one: Skeleton, a: int, other: Skeleton, b: int) -> Alignment:
    """The pieces of a device vertex against the operators of its twin: every way to cut the longer chain that fits."""
    pieces = [one.nodes[key] for key in one.vertices[a].chain]
    steps = [other.nodes[key] for key in other.vertices[b].chain]
    extra: list[str] = []
    if sum(p.family == "convert" for p in pieces) > sum(s.family == "convert" for s in steps):
        extra = [p.key for p in pieces if p.family == "convert"]
        pieces = [p for p in pieces if p.family != "convert"]
    found: dict[str, set[str]] = {p.key: set() for p in pieces}
    for number, ends in enumerate(combinations(range(len(steps)), len(pieces))):
        if number >= _MOST_CUTS:
            return Alignment({}, tuple(extra))
        if _fits(pieces, steps, ends):
            for piece, end in zip(pieces, ends, strict=True):
                found[piece.key].add(steps[end].key)
    order = {step.key: place for place, step in enumerate(steps)}
    return Alignment({k: tuple(sorted(v, key=order.__getitem__)) for k, v in found.items() if v}, tuple(extra))


def _fits(pieces: Sequence[Node], steps: Sequence[Node], ends: Sequence[int]) -> bool:
    """Each piece begins with an operator of its own family and goes on with what can be fused into it; after the last
    piece only reshapes may follow, which a compiler drops."""
    begin = 0
    for piece, end in zip(pieces, ends, strict=True):
        if end < begin or not _begins(piece, steps, begin, end):
            return False
        shapes = piece.shape, steps[end].shape
        if None not in shapes and shapes[0] != shapes[1]:
            return False
        if any(step.family == "convert" for step in steps[begin + 1 : end + 1]):
            return False
        begin = end + 1
    return all(step.family == "shape" for step in steps[begin:])


def _begins(piece: Node, steps: Sequence[Node], begin: int, end: int) -> bool:
    """Reshapes in front belong to the piece as well: a compiler may drop them."""
    while begin <= end:
        step = steps[begin].family
        if piece.family == step or step in _ALSO.get(piece.family, ()):
            return True
        if step != "shape":
            return False
        begin += 1
    return False


def renamed(pairs: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """The prefix of the first names and the one that stands for it in the second, where at least three in four of the
    pairs that differ agree on it, and two at least; None otherwise."""
    counts: dict[tuple[str, str], int] = {}
    differing = [(a, b) for a, b in pairs if a != b]
    for a, b in differing:
        split = _split(a, b)
        if split is not None:
            counts[split] = counts.get(split, 0) + 1
    if not counts:
        return None
    best = max(counts, key=lambda key: (counts[key], key))
    return best if counts[best] >= max(2, 0.75 * len(differing)) else None


def common_rename(ours: Sequence[str], theirs: Sequence[str]) -> tuple[str, str] | None:
    """The change of prefix that makes most of these whole names names of the other side: half of those that are none
    at least, two at least, and none twice. None where there is no such change."""
    known = set(theirs)
    open_ones = [name for name in dict.fromkeys(ours) if name not in known]
    if len(open_ones) < 2:
        return None
    counts: dict[tuple[str, str], int] = {}
    endings: dict[str, list[str]] = {}
    for name in known:
        for place in _borders(name):
            endings.setdefault(name[place:], []).append(name)
    for name in open_ones:
        shared = next((name[p:] for p in _borders(name) if name[p:] in endings), "")
        for twin in endings.get(shared, ()):
            rule = name[: len(name) - len(shared)], twin[: len(twin) - len(shared)]
            counts[rule] = counts.get(rule, 0) + 1
    if not counts:
        return None
    best = max(counts, key=lambda rule: (counts[rule], rule))
    return best if counts[best] >= max(2, len(open_ones) / 2) else None


def _borders(name: str) -> list[int]:
    """Where a component of a name begins, the whole name first."""
    return [0, *(i for i in range(1, len(name)) if name[i - 1] in "/.:_" or name[i] in "/.:")]


def _split(a: str, b: str) -> tuple[str, str] | None:
    """The prefixes before the longest common ending of whole components."""
    length = 0
    while length < min(len(a), len(b)) and a[-1 - length] == b[-1 - length]:
        length += 1
    while length and not (_border(a, length) and _border(b, length)):
        length -= 1
    return (a[: len(a) - length], b[: len(b) - length]) if length else None


def _border(name: str, length: int) -> bool:
    """Whether the last `length` characters are whole components."""
    place = len(name) - length
    return place == 0 or name[place] in "/.:" or name[place - 1] in "/.:_"


def apply_rename(rule: tuple[str, str], name: str) -> str | None:
    """The name that stands for `name` on the other side; None where the rule says nothing of it."""
    before, after = rule
    return after + name[len(before) :] if name.startswith(before) else None
