"""Operators with a number of their own in the place of the model's: another slope, an input that is scaled.

No list can hold them all. So the number is looked for that brings the region closest to what the device made of its own
inputs. What it finds is judged as the operators of a list are (`compare.operators`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from onnx import helper

from tidegauge.compare.model import Model
from tidegauge.compare.substitute import Substitute

#: Numbers that are tried first, evenly spread, and steps of the golden-section search about the best of them.
_GRID, _STEPS = 6, 12
_GOLDEN = (sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Family:
    """`make` gives the operator with its number, which lies between `low` and `high`."""

    low: float
    high: float
    make: Callable[[float], Substitute]


def families(model: Model, node: Any) -> Iterator[Family]:
    """Operators with a number that could stand in the place of a node."""
    if node.op_type in ("Relu", "LeakyRelu", "PRelu"):
        yield Family(-0.5, 0.95, lambda t: _replaced(node, "LeakyRelu", f"as LeakyRelu of slope {t:.2g}", alpha=t))
    elif node.op_type in ("HardSigmoid", "Sigmoid"):
        yield Family(
            0.02, 1.0, lambda t: _replaced(node, "HardSigmoid", f"as HardSigmoid of slope {t:.2g}", alpha=t, beta=0.5)
        )
    elif node.op_type == "Add" and len(node.input) == 2:
        for position, word in ((0, "first"), (1, "second")):
            if node.input[position] not in model.weights:
                yield Family(-2.0, 2.0, lambda t, p=position, w=word: _alone(node, p, w, t))  # type: ignore[misc]
                yield Family(-2.0, 2.0, lambda t, p=position, w=word: _weighed(node, p, w, t))  # type: ignore[misc]


def _replaced(node: Any, op: str, words: str, **attributes: Any) -> Substitute:
    return Substitute(words, (helper.make_node(op, [node.input[0]], list(node.output), **attributes),))


def _alone(node: Any, position: int, word: str, factor: float) -> Substitute:
    name = f"{node.output[0]}::factor"
    made = helper.make_node("Mul", [node.input[position], name], list(node.output))
    constants = {name: np.full(1, factor, np.float32)}
    return Substitute(f"as its {word} input alone, times {factor:.2g}", (made,), constants)


def _weighed(node: Any, position: int, word: str, factor: float) -> Substitute:
    name, scaled = f"{node.output[0]}::factor", f"{node.output[0]}::scaled"
    inputs = list(node.input)
    inputs[position] = scaled
    made = (
        helper.make_node("Mul", [node.input[position], name], [scaled]),
        helper.make_node("Add", inputs, list(node.output)),
    )
    return Substitute(f"with its {word} input times {factor:.2g}", made, {name: np.full(1, factor, np.float32)})


def best_number(family: Family, distance: Callable[[Substitute], float]) -> Substitute:
    """The operator with the number of least distance, where that has one minimum between two of those tried first."""
    tried = [(distance(family.make(float(t))), float(t)) for t in np.linspace(family.low, family.high, _GRID)]
    step = (family.high - family.low) / (_GRID - 1)
    centre = min(tried)[1]
    low, high = max(family.low, centre - step), min(family.high, centre + step)
    inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    far = [distance(family.make(t)) for t in inner]
    for _ in range(_STEPS):
        if far[0] <= far[1]:
            high, inner[1], far[1] = inner[1], inner[0], far[0]
            inner[0] = high - _GOLDEN * (high - low)
            far[0] = distance(family.make(inner[0]))
        else:
            low, inner[0], far[0] = inner[0], inner[1], far[1]
            inner[1] = low + _GOLDEN * (high - low)
            far[1] = distance(family.make(inner[1]))
    return family.make(inner[0] if far[0] <= far[1] else inner[1])
