"""Rules on what eight bits do to a model: chains, pools, ranges, weights, normalisation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tidegauge.preflight.lint.graph import Array, Graph, Node, Remark
from tidegauge.profile import Profile

ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Square"})
#: Elements from which a tensor is large: each of a chain's steps rounds that many values again.
LARGE = 1 << 16
#: Element-wise steps one after another that are worth a remark.
LONG_CHAIN = 4
#: A channel whose largest weight is below one step of an 8-bit scale for the whole tensor is lost.
STEPS = 127
SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
_SIXTEEN = "`advanced_options:output_feature_16bit_names_list`"


def chains(graph: Graph) -> Iterator[Remark]:
    """Element-wise operators one after another on large tensors."""
    producers = graph.producers()
    length: dict[int, int] = {}
    start: dict[int, Node] = {}
    ends: dict[int, Node] = {}
    for node in graph.nodes:
        if node.op not in ELEMENTWISE or graph.size(node.output) < LARGE:
            continue
        before = [p for name in graph.variable_inputs(node) if (p := producers.get(name)) and id(p) in length]
        longest = max(before, key=lambda p: length[id(p)], default=None)
        length[id(node)] = 1 if longest is None else length[id(longest)] + 1
        start[id(node)] = node if longest is None else start[id(longest)]
        for each in before:
            ends.pop(id(each), None)
        ends[id(node)] = node
    for key, node in ends.items():
        if length[key] >= LONG_CHAIN:
            yield Remark(
                "element-wise-chain",
                "warning",
                f"{start[key].output} … {node.output}",
                f"{length[key]} element-wise steps in a row on tensors of {graph.size(node.output)} elements: each "
                "rounds again, and one scale must hold them all",
                f"name the tensors between these two in {_SIXTEEN}, or fold constants into the convolution before",
            )


def global_pools(graph: Graph) -> Iterator[Remark]:
    """Global average pools, above all those inside squeeze-excite blocks."""
    consumers = graph.consumers()
    for node in graph.nodes:
        if not _averages_planes(graph, node):
            continue
        gate = _gate(graph, consumers, node)
        if gate is not None:
            yield Remark(
                "squeeze-excite-pool",
                "warning",
                node.output,
                f"a global average pool inside squeeze-excite: its mean is small against the range of its input, and "
                f"its error scales the whole of {gate.output}",
                f"name {node.output} and what follows it up to {gate.output} in {_SIXTEEN}",
            )
        else:
            yield Remark(
                "global-pool",
                "warning",
                node.output,
                "a global average pool: its mean is small against the range of its input",
                f"compare this layer first after an SDK update; name {node.output} in {_SIXTEEN} if it loses accuracy",
            )


def _averages_planes(graph: Graph, node: Node) -> bool:
    if node.op == "GlobalAveragePool":
        return True
    if node.op != "ReduceMean":
        return False
    axes = node.attributes.get("axes")
    if axes is None:
        given = graph.constant(node, 1)
        axes = [] if given is None else np.asarray(given).reshape(-1).tolist()
    rank = len(graph.shapes.get(node.inputs[0], ()))
    planes = {1, 2} if graph.channels_last else {2, 3}
    return rank == 4 and {int(axis) % rank for axis in axes} == planes


_GATE = """
Conv Gemm MatMul Relu Clip LeakyRelu PRelu HardSwish Mul Add Div Sigmoid HardSigmoid Reshape Flatten Squeeze
Unsqueeze Transpose BatchNormalization Softmax Tanh
"""
_BETWEEN = frozenset(_GATE.split())


def _gate(graph: Graph, consumers: dict[str, list[Node]], pool: Node) -> Node | None:
    """The Mul that multiplies the pool's own input by what becomes of its output."""
    gated, reached, todo = pool.inputs[0], {pool.output}, [pool.output]
    while todo:
        for node in consumers.get(todo.pop(), []):
            if node.op == "Mul" and gated in node.inputs and gated != pool.output:
                return node
            if node.op in _BETWEEN and node.output not in reached:
                reached.add(node.output)
                todo.append(node.output)
    return None


def squares(graph: Graph) -> Iterator[Remark]:
    for node in graph.nodes:
        exponent = graph.constant(node, 1) if node.op == "Pow" else None
        if exponent is not None and exponent.size == 1 and float(np.asarray(exponent).reshape(-1)[0]) == 2.0:
            yield Remark(
                "square",
                "warning",
                node.output,
                "Pow with exponent 2: releases before 11 leave it to the CPU",
                f"write Mul of {node.inputs[0]} with itself",
            )


def unbounded(graph: Graph) -> Iterator[Remark]:
    """Operators whose output can be of any size, so that one scale of eight bits holds little of it."""
    for node in graph.of_type("Div", "Exp", "Reciprocal"):
        if node.op == "Div" and graph.constant(node, 1) is not None:
            continue
        if not graph.variable_inputs(node):
            continue
        yield Remark(
            "range",
            "warning",
            node.output,
            f"{node.native} can give values of any size: most of them fall into the few lowest of 256 steps",
            f"bound it (Clip before or after), or name {node.output} in {_SIXTEEN}",
        )


def weights(graph: Graph) -> Iterator[Remark]:
    """Weights that 8 bits with one scale a tensor can't hold, and subnormal ones."""
    subnormal = {name: count for name, array in graph.constants.items() if (count := _subnormal(array))}
    if subnormal:
        worst = max(subnormal, key=lambda name: subnormal[name])
        yield Remark(
            "subnormal-weights",
            "warning",
            worst,
            f"{sum(subnormal.values())} weights in {len(subnormal)} tensors are subnormal (below "
            f"{SMALLEST_NORMAL:.2g}): dead channels, which slow the CPU's reference and may upset TIDL's scales",
            "set them to zero before the export",
        )
    for node in graph.of_type("Conv", "Gemm"):
        array = graph.constant(node, 1)
        if array is None or not np.issubdtype(array.dtype, np.floating) or array.ndim < 2:
            continue
        lost, channels, ratio = _lost_channels(array, 3 if node.native == "DEPTHWISE_CONV_2D" else 0)
        if lost:
            yield Remark(
                "weight-range",
                "warning",
                node.output,
                f"{lost} of {channels} channels have weights below one step of an 8-bit scale for the whole tensor "
                f"(largest channel {ratio:.0f} times the smallest)",
                "compile with `advanced_options:quantization_scale_type` 4 (a scale a channel), or name the layer in "
                "`advanced_options:params_16bit_names_list`",
            )


def _subnormal(array: Array) -> int:
    if array.dtype != np.float32:
        return 0
    size = np.abs(array)
    return int(np.count_nonzero((size > 0) & (size < SMALLEST_NORMAL)))


def _lost_channels(array: Array, axis: int) -> tuple[int, int, float]:
    """Channels that one scale loses, all channels, largest over smallest; channels of zeros are no loss."""
    per_channel = np.abs(np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)).max(axis=1).astype(np.float64)
    alive = per_channel[per_channel > SMALLEST_NORMAL]
    if alive.size == 0:
        return 0, len(per_channel), 1.0
    lost = int(np.count_nonzero(alive * 2 * STEPS < alive.max()))
    return lost, len(per_channel), float(alive.max() / alive.min())


def normalisation(graph: Graph, profile: Profile | None) -> Iterator[Remark]:
    """Scaling at the model's input, which `[preprocess]` does again."""
    consumers = graph.consumers()
    for name in graph.inputs:
        for node in _first_arithmetic(consumers, name):
            value = next((graph.constants[i] for i in node.inputs if i in graph.constants), None)
            if value is None or not np.issubdtype(value.dtype, np.number) or value.size not in (1, 3):
                continue
            factor = float(np.abs(np.asarray(value, np.float64)).max())
            divides = node.op == "Div" and 100 < factor < 300
            multiplies = node.op == "Mul" and 0 < factor < 0.02
            if divides or multiplies:
                yield _twice(node, profile, "divides by" if divides else "multiplies by", factor)


def _twice(node: Node, profile: Profile | None, verb: str, factor: float) -> Remark:
    found = f"the model's input {verb} {factor:g} in the model itself"
    cure = "set `scale` of [preprocess] to 1, and the compile's input_scale too; or remove the operator from the model"
    if profile is not None and max(abs(value) for value in profile.preprocess.scale) < 0.02:
        return Remark("normalised-twice", "failed", node.output, f"{found}, and by `scale` of the profile again", cure)
    return Remark(
        "normalised-twice", "warning", node.output, f"{found}: with a scale in the profile it is done twice", cure
    )


def _first_arithmetic(consumers: dict[str, list[Node]], name: str) -> Iterator[Node]:
    """Sub, Div, Mul and Add that follow the input with only casts and transposes between."""
    for node in consumers.get(name, []):
        if node.op in ("Sub", "Div", "Mul", "Add"):
            yield node
        if node.op in ("Sub", "Add", "Cast", "Transpose", "Identity", "Mul", "Div"):
            yield from _first_arithmetic(consumers, node.output)
