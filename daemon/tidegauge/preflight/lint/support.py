"""Rules on what TIDL takes: operators, their forms, shapes, and into how many sub-graphs the rest splits the model.

Source of the forms: edgeai-tidl-tools docs/operators.md, tools 11_00 and 11_01.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tidegauge.preflight.lint.graph import Graph, Node, Remark
from tidegauge.preflight.operators import ONNX, TFLITE, cure_of

#: Largest plane (height × width) of a global average pool.
LARGEST_POOL = 1024


def dynamic_shapes(graph: Graph) -> Iterator[Remark]:
    for name in graph.inputs:
        shape = graph.shapes.get(name, ())
        if any(size < 1 for size in shape):
            told = ", ".join("?" if size < 1 else str(size) for size in shape)
            yield Remark(
                "dynamic-shape",
                "failed",
                name,
                f"the input has the shape [{told}]",
                "export with a fixed batch (1) and a fixed size: TIDL compiles one shape",
            )
    if not any(any(size < 1 for size in graph.shapes.get(name, ())) for name in graph.inputs):
        unknown = [n.output for n in graph.nodes if any(size < 1 for size in graph.shapes.get(n.output, ()))]
        if unknown:
            yield Remark(
                "dynamic-shape",
                "warning",
                unknown[0],
                f"{len(unknown)} tensors inside have shapes that depend on the data",
                "move what makes them (NonZero, NonMaxSuppression, TopK with a variable k) behind the last layer",
            )


def taken(graph: Graph, node: Node) -> bool:
    """Whether TIDL takes this node in this form."""
    known = node.native in (TFLITE if graph.kind == "tflite" else ONNX)
    return (known and _wrong_form(graph, node) is None) or _part_of_gelu(graph, node)


def operators(graph: Graph) -> Iterator[Remark]:
    known = TFLITE if graph.kind == "tflite" else ONNX
    for node in graph.nodes:
        if _part_of_gelu(graph, node):
            continue
        if node.native not in known:
            yield Remark("operator", "warning", node.output, f"TIDL does not take {node.native}", cure_of(node.native))
            continue
        wrong = _wrong_form(graph, node)
        if wrong is not None:
            yield Remark("operator-form", "warning", node.output, f"{node.native} {wrong[0]}", wrong[1])


def subgraphs(graph: Graph) -> Iterator[Remark]:
    count = count_subgraphs(graph)
    if count > 1:
        yield Remark(
            "sub-graphs",
            "warning",
            "the whole model",
            f"what TIDL does not take splits it into about {count} sub-graphs, each copied in and out by the CPU",
            "cure the operators named above, or move them to the model's beginning or end",
        )


def count_subgraphs(graph: Graph) -> int:
    """Connected groups of nodes that TIDL takes, none of which needs a node of the CPU between two of its own.

    An estimate: TIDL itself also limits their number and their nodes.
    """
    producers = graph.producers()
    depth: dict[int, int] = {}
    group: dict[int, int] = {}
    for node in graph.nodes:
        before = [producers[name] for name in graph.variable_inputs(node) if name in producers]
        ours = taken(graph, node)
        levels = [depth.get(id(p), 0) + (1 if ours and id(p) not in group else 0) for p in before]
        depth[id(node)] = max(levels, default=0)
        if not ours:
            continue
        same = {group[id(p)] for p in before if id(p) in group and depth[id(p)] == depth[id(node)]}
        number = min(same, default=id(node))
        group[id(node)] = number
        for key, value in group.items():
            if value in same:
                group[key] = number
    return len(set(group.values()))


def _part_of_gelu(graph: Graph, node: Node) -> bool:
    """Erf between a Div (or Mul) and an Add: the pattern that TIDL fuses."""
    if node.op != "Erf":
        return False
    before = graph.producers().get(node.inputs[0])
    after = graph.consumers().get(node.output, [])
    return before is not None and before.op in ("Div", "Mul") and [n.op for n in after] == ["Add"]


Form = tuple[str, str]


def _wrong_form(graph: Graph, node: Node) -> Form | None:
    """What TIDL does not take of an operator that it knows, and the cure."""
    rule = _FORMS.get(node.op)
    return rule(graph, node) if rule is not None and graph.kind == "onnx" else None


def _conv(graph: Graph, node: Node) -> Form | None:
    strides = list(node.attributes.get("strides", [1, 1]))
    weights = graph.constant(node, 1)
    if weights is None:
        return "has weights that are not constant", "make them constants of the model"
    kernel = list(weights.shape[2:])
    if len(set(strides)) > 1:
        return f"has strides {strides}", "use the same stride along both axes"
    if kernel == [3, 3] and strides == [3, 3]:
        return (
            "has a 3×3 kernel with stride 3, which AM62A does not take",
            "use stride 2, or a pool of stride 3 before it",
        )
    if max(kernel, default=0) > 7 and strides and strides[0] == 2:
        return f"has a kernel {kernel} with stride 2", "use a kernel of at most 7, or two convolutions"
    if strides and strides[0] == 4 and kernel != [11, 11]:
        return f"has stride 4 with a kernel {kernel}", "use two convolutions of stride 2"
    return None


def _pool(graph: Graph, node: Node) -> Form | None:
    plane = graph.plane(node.inputs[0])
    if node.op == "GlobalAveragePool" and plane is not None and plane[0] * plane[1] > LARGEST_POOL:
        return (
            f"averages a plane of {plane[0]}×{plane[1]}, more than {LARGEST_POOL} elements",
            "average in two steps (AveragePool, then GlobalAveragePool), or write it as MatMul with a constant",
        )
    if len(node.outputs) > 1 and node.outputs[1]:
        return "returns indices", "remove the second output"
    if any(size != 1 for size in node.attributes.get("dilations", [])):
        return "is dilated", "use a plain pool"
    return None


def _slice(graph: Graph, node: Node) -> Form | None:
    steps = graph.constant(node, 4)
    if steps is not None and bool(np.any(np.asarray(steps) != 1)):
        return (
            f"has steps {np.asarray(steps).tolist()}",
            "write a convolution with that stride and a one-hot kernel, or Split; a focus layer becomes SpaceToDepth",
        )
    shape = graph.shapes.get(node.inputs[0], ())
    if shape and len(shape) != 4:
        return f"cuts a tensor of {len(shape)} dimensions", "reshape to four dimensions before it"
    return None


def _resize(graph: Graph, node: Node) -> Form | None:
    mode = _text(node.attributes.get("mode", b"nearest"))
    if mode not in ("nearest", "linear"):
        return f"has the mode {mode}", "use nearest or linear"
    before, after = graph.plane(node.inputs[0]), graph.plane(node.output)
    if before is None or after is None:
        return None
    scales = (after[0] / before[0], after[1] / before[1])
    if scales[0] != scales[1]:
        return f"scales height by {scales[0]:g} and width by {scales[1]:g}", "use one scale for both"
    if scales[0] < 1:
        return f"scales by {scales[0]:g}", "use AveragePool to make a tensor smaller"
    if scales[0] not in (1, 2, 4, 8, 16):
        return f"scales by {scales[0]:g}", "use a power of two, in several steps if needed"
    return None


def _softmax(graph: Graph, node: Node) -> Form | None:
    rank = len(graph.shapes.get(node.inputs[0], ()))
    axis = int(node.attributes.get("axis", -1))
    axis = axis - rank if axis >= 0 else axis
    if rank >= 3 and axis not in (-1, -2):
        return (
            f"works along axis {axis}",
            "transpose so that it works along width or height, or leave it to the CPU at the end",
        )
    return None


def _cast(graph: Graph, node: Node) -> Form | None:
    ends = set(graph.inputs) & set(node.inputs) or set(graph.outputs) & set(node.outputs)
    return None if ends else ("stands inside the model", "keep one type inside; cast at the input or the output only")


def _clip(graph: Graph, node: Node) -> Form | None:
    low, high = graph.constant(node, 1), graph.constant(node, 2)
    if low is not None and float(np.asarray(low).reshape(-1)[0]) > 0:
        return "has a minimum above 0", "add a constant before and subtract it after"
    if high is not None and float(np.asarray(high).reshape(-1)[0]) <= 0:
        return "has a maximum of 0 or less", "add a constant before and subtract it after"
    return None


def _pow(graph: Graph, node: Node) -> Form | None:
    exponent = graph.constant(node, 1)
    if exponent is None or exponent.size != 1:
        return "has an exponent that is no single constant", "write it as Mul, or with Exp and Log"
    return None


def _gemm(graph: Graph, node: Node) -> Form | None:
    values = node.attributes
    if values.get("transA", 0) or values.get("alpha", 1.0) != 1.0 or values.get("beta", 1.0) != 1.0:
        return "has alpha, beta or transA", "fold them into the weights"
    return None


def _pad(graph: Graph, node: Node) -> Form | None:
    mode = _text(node.attributes.get("mode", b"constant"))
    return None if mode == "constant" else (f"has the mode {mode}", "pad with zeros, or let the convolution pad")


def _deconvolution(graph: Graph, node: Node) -> Form | None:
    weights = graph.constant(node, 1)
    kernel = list(weights.shape[2:]) if weights is not None else []
    strides = list(node.attributes.get("strides", [1, 1]))
    if strides != [2, 2] or kernel not in ([2, 2], [3, 3], [4, 4]):
        return (
            f"has a kernel {kernel} with strides {strides}",
            "use Resize by 2 and a convolution, which is faster too",
        )
    return None


def _arg(graph: Graph, node: Node) -> Form | None:
    rank = len(graph.shapes.get(node.inputs[0], ()))
    axis = int(node.attributes.get("axis", 0))
    axis = axis - rank if axis >= 0 else axis
    if axis != -3 or not node.attributes.get("keepdims", 1):
        return f"works along axis {axis}", "let it work along the channels with keepdims = 1"
    return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


_FORMS: dict[str, Callable[[Graph, Node], Form | None]] = {
    "Conv": _conv,
    "GlobalAveragePool": _pool,
    "AveragePool": _pool,
    "MaxPool": _pool,
    "Slice": _slice,
    "Resize": _resize,
    "Upsample": _resize,
    "Softmax": _softmax,
    "Cast": _cast,
    "Clip": _clip,
    "Pow": _pow,
    "Gemm": _gemm,
    "Pad": _pad,
    "ConvTranspose": _deconvolution,
    "ArgMax": _arg,
    "ArgMin": _arg,
}
