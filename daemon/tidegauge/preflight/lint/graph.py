"""A model as the rules see it: nodes in order, shapes, constants; the same for ONNX and TFLite.

Operators have ONNX's names where both have one (`native` keeps the file's own), so that a rule is written once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import msgspec
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]


class Remark(msgspec.Struct, frozen=True):
    """One thing to change. `status` "failed": TIDL can't compile it, or computes something else than is meant."""

    rule: str
    status: Literal["warning", "failed"]
    where: str
    found: str
    cure: str


@dataclass(frozen=True)
class Node:
    """`inputs` and `outputs`: tensor names ("" for a left-out input). `attributes`: plain values."""

    op: str
    native: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def output(self) -> str:
        return self.outputs[0] if self.outputs else self.name


@dataclass(frozen=True)
class Graph:
    """`inputs`, `outputs`: names. `shapes`: what is known; a dimension that isn't is -1. `constants`: by tensor name.

    `folded`: tensors that are constant too, since the runtime computes them once; their nodes are left out.
    """

    kind: Literal["onnx", "tflite"]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    shapes: Mapping[str, Shape]
    constants: Mapping[str, Array]
    folded: frozenset[str] = frozenset()

    @property
    def channels_last(self) -> bool:
        return self.kind == "tflite"

    def variable_inputs(self, node: Node) -> list[str]:
        """What isn't constant."""
        return [name for name in node.inputs if name and name not in self.constants and name not in self.folded]

    def constant(self, node: Node, position: int) -> Array | None:
        return self.constants.get(node.inputs[position]) if position < len(node.inputs) else None

    def size(self, name: str) -> int:
        """Elements of a tensor, 0 where its shape isn't known."""
        shape = self.shapes.get(name, ())
        return prod(shape) if shape and min(shape) > 0 else 0

    def plane(self, name: str) -> tuple[int, int] | None:
        """Height and width of a picture-like tensor."""
        shape = self.shapes.get(name, ())
        if len(shape) != 4 or min(shape) < 1:
            return None
        return (shape[1], shape[2]) if self.channels_last else (shape[2], shape[3])

    def producers(self) -> dict[str, Node]:
        return {name: node for node in self.nodes for name in node.outputs}

    def consumers(self) -> dict[str, list[Node]]:
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                found.setdefault(name, []).append(node)
        return found

    def of_type(self, *operators: str) -> Iterator[Node]:
        return (node for node in self.nodes if node.op in operators)
