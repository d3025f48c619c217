"""The ends of a model that are NHWC outside and NCHW inside: data-convert layers change the layout, as in TIDL.

A float model says so by a Transpose next to the end, whose inner tensor has the end's name and `/nchw`.
"""

from __future__ import annotations

import onnx

TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


def inner(end: str) -> str:
    """The float model's NCHW tensor of an end."""
    return f"{end}/nchw"


def strip(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """The model without those Transposes, its ends NCHW under their own names; the inner tensors by end."""
    ends = {item.name for item in (*model.graph.input, *model.graph.output)}
    found = {name: inner(name) for node in model.graph.node for name in _end(node, ends)}
    if not found:
        return model, {}
    stripped = onnx.ModelProto()
    stripped.CopyFrom(model)
    outer = {tensor: name for name, tensor in found.items()}
    kept = [node for node in stripped.graph.node if not _end(node, ends)]
    for node in kept:
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                names[position] = outer.get(name, name)
    del stripped.graph.node[:]
    stripped.graph.node.extend(kept)
    for value in (*stripped.graph.input, *stripped.graph.output):
        if value.name in found:
            dims = value.type.tensor_type.shape.dim
            sizes = [dims[axis].dim_value for axis in TO_NCHW]
            for dim, size in zip(dims, sizes, strict=True):
                dim.dim_value = size
    return stripped, found


def _end(node: onnx.NodeProto, ends: set[str]) -> list[str]:
    """The end whose layout this node changes, if any."""
    if node.op_type != "Transpose":
        return []
    source, target = node.input[0], node.output[0]
    if source in ends and target == inner(source):
        return [source]
    return [target] if target in ends and source == inner(target) else []


def nhwc(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in TO_NHWC)
