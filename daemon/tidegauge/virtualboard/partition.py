"""Which nodes of a model run where: sub-graphs for the C7x and, between them, parts for the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import onnx
from onnx import helper

from tidegauge.virtualboard.lowering import fold_constants

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """A piece of a model that runs in one place. `nodes`: indices of its nodes in the model, not counting Constants."""

    model: onnx.ModelProto
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Partition:
    """The parts in order of execution, each with whether it runs on the C7x. `total`: nodes of the model."""

    parts: tuple[tuple[bool, Part], ...]
    total: int

    @property
    def subgraphs(self) -> tuple[Part, ...]:
        return tuple(part for offloaded, part in self.parts if offloaded)


def by_names(model: onnx.ModelProto, denied: frozenset[str]) -> Partition:
    """Leave the nodes of these names, or with outputs of these names, to the CPU."""
    return _split(model, lambda index, node: node.name in denied or any(name in denied for name in node.output))


def by_groups(model: onnx.ModelProto, groups: tuple[tuple[int, ...], ...]) -> Partition:
    """Leave the nodes that no group of `allowedNode.txt` names to the CPU."""
    allowed = {index for group in groups for index in group}
    return _split(model, lambda index, node: index not in allowed)


def names_of(model: onnx.ModelProto) -> frozenset[str]:
    """All names by which a node can be denied."""
    return frozenset(name for node in model.graph.node for name in (node.name, *node.output) if name)


def _split(model: onnx.ModelProto, on_cpu: Callable[[int, onnx.NodeProto], bool]) -> Partition:
    counted = [node for node in model.graph.node if node.op_type != "Constant"]
    number = {name: index for index, node in enumerate(counted) for name in node.output if name}
    folded = fold_constants(model)
    nodes = list(folded.graph.node)
    cpu = [on_cpu(number[node.output[0]], node) for node in nodes]
    depths = depths_of([(node.input, node.output) for node in nodes], cpu)
    remaining = {number[node.output[0]] for node in nodes}
    gone = sorted(set(range(len(counted))) - remaining)  # folded into constants: they belong to the first sub-graph
    known = _value_infos(folded)
    parts: list[tuple[bool, Part]] = []
    for depth in range(max(depths, default=0) + 1):
        for offloaded in (False, True):
            chosen = [i for i in range(len(nodes)) if depths[i] == depth and cpu[i] is not offloaded]
            if not chosen:
                continue
            indices = [number[nodes[i].output[0]] for i in chosen]
            if offloaded and gone:
                indices, gone = sorted([*indices, *gone]), []
            parts.append((offloaded, _part(folded, nodes, chosen, tuple(indices), known)))
    return Partition(tuple(parts), len(counted))


def depths_of(nodes: Sequence[tuple[Iterable[T], Iterable[T]]], cpu: Sequence[bool]) -> list[int]:
    """How many times a path from the inputs has gone from the C7x back to the CPU, for nodes in order of execution.

    A node is given by what it reads and what it makes. Nodes of one depth and place form one part: a path that left it
    could only come back deeper.
    """
    producer: dict[T, int] = {}
    depths: list[int] = []
    for index, (read, made) in enumerate(nodes):
        sources = [producer[name] for name in read if name in producer]
        depths.append(max((depths[s] + (cpu[index] and not cpu[s]) for s in sources), default=0))
        producer |= dict.fromkeys(made, index)
    return depths


def _value_infos(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    graph = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True).graph
    return {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}


def _part(
    model: onnx.ModelProto,
    nodes: list[onnx.NodeProto],
    chosen: list[int],
    indices: tuple[int, ...],
    known: dict[str, onnx.ValueInfoProto],
) -> Part:
    inside, outside = [nodes[i] for i in chosen], [node for i, node in enumerate(nodes) if i not in set(chosen)]
    constants = {item.name: item for item in model.graph.initializer}
    made = [name for node in inside for name in node.output if name]
    read = dict.fromkeys(name for node in inside for name in node.input if name)
    wanted = {name for node in outside for name in node.input} | {output.name for output in model.graph.output}
    inputs = tuple(name for name in read if name not in set(made) and name not in constants)
    outputs = tuple(name for name in made if name in wanted)
    graph = helper.make_graph(
        inside,
        model.graph.name or "part",
        [known[name] for name in inputs],
        [known[name] for name in outputs],
        [constants[name] for name in read if name in constants],
    )
    opsets = list(model.opset_import)
    return Part(helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version), indices, inputs, outputs)
