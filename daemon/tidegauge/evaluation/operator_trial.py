"""Imports that mistake an operator: a model is changed in one node, compiled, run, and compared with the original.

The changes are not taken from the comparison's own list (`compare.operators`): some are not on it, with numbers drawn
at random. Of those the layer must be named all the same, and no other cause.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tidegauge.evaluation.networks import NETWORKS, picture
from tidegauge.evaluation.trial import CHANGED, Bench, Outcome, value_of
from tidegauge.virtualboard.calibration import float_session
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.network import load_artifacts
from tidegauge.virtualboard.options import CompileOptions

Array = NDArray[Any]
Random = np.random.Generator

_FRAMES = 4
_TRIES = 12


class Imports(NamedTuple):
    """What one process does: so many mistaken imports of one network."""

    network: str
    cases: int
    seed: int


@dataclass
class Mistake:
    """`known`: whether a cause is asked for; else the layer alone, and no other cause. `edit` changes the node in
    place; the constants that it returns are added to the model."""

    words: str
    known: bool
    edit: Callable[[Any, Random], Mapping[str, Array]]


def _as(op: str, **attributes: Any) -> Callable[[Any, Random], Mapping[str, Array]]:
    """The node's first input through another operator."""

    def edit(node: Any, random: Random) -> Mapping[str, Array]:
        first = node.input[0]
        _rewrite(node, op, [first], attributes)
        return {}

    return edit


def _rewrite(node: Any, op: str, inputs: list[str], attributes: Mapping[str, Any]) -> None:
    made = helper.make_node(op, inputs, list(node.output), node.name, **attributes)
    node.CopyFrom(made)


def _clip(low: float, high: float) -> Callable[[Any, Random], Mapping[str, Array]]:
    def edit(node: Any, random: Random) -> Mapping[str, Array]:
        names = [f"{node.output[0]}::low", f"{node.output[0]}::high"]
        _rewrite(node, "Clip", [node.input[0], *names], {})
        return {name: np.asarray(value, np.float32) for name, value in zip(names, (low, high), strict=True)}

    return edit


def _leaky(node: Any, random: Random) -> Mapping[str, Array]:
    _rewrite(node, "LeakyRelu", [node.input[0]], {"alpha": float(random.uniform(0.25, 0.6))})
    return {}


def _slope(node: Any, random: Random) -> Mapping[str, Array]:
    _rewrite(node, "HardSigmoid", [node.input[0]], {"alpha": float(random.uniform(0.25, 0.6)), "beta": 0.5})
    return {}


def _pair(op: str) -> Callable[[Any, Random], Mapping[str, Array]]:
    def edit(node: Any, random: Random) -> Mapping[str, Array]:
        node.op_type = op
        return {}

    return edit


def _alone(position: int) -> Callable[[Any, Random], Mapping[str, Array]]:
    """One input only: with nothing added, so that it stays a layer."""

    def edit(node: Any, random: Random) -> Mapping[str, Array]:
        name = f"{node.output[0]}::nothing"
        _rewrite(node, "Add", [node.input[position], name], {})
        return {name: np.zeros(1, np.float32)}

    return edit


def _half(node: Any, random: Random) -> Mapping[str, Array]:
    """Two inputs, of which the first is given half its weight: an unlucky rescaling, and no operator."""
    name = f"{node.output[0]}::half"
    _rewrite(node, "Mul", [node.input[0], name], {})
    return {name: np.full(1, 0.5, np.float32)}


def _no_bias(node: Any, random: Random) -> Mapping[str, Array]:
    del node.input[2:]
    return {}


def _pads(node: Any, random: Random) -> Mapping[str, Array]:
    pads = next(item for item in node.attribute if item.name == "pads")
    top, left, bottom, right = pads.ints
    end = bool(random.integers(2))
    pads.ints[:] = [0, 0, top + bottom, left + right] if end else [top + bottom, left + right, 0, 0]
    return {}


_RELU = (
    Mistake("Relu6", True, _clip(0.0, 6.0)),
    Mistake("left out", True, _clip(-1e6, 1e6)),
    Mistake("Sigmoid", True, _as("Sigmoid")),
    Mistake("Tanh", True, _as("Tanh")),
    Mistake("another slope", False, _leaky),
)
#: By operator of the node that is mistaken.
MISTAKES: dict[str, tuple[Mistake, ...]] = {
    "Relu": _RELU,
    "HardSigmoid": (
        Mistake("Sigmoid", True, _as("Sigmoid")),
        Mistake("Tanh", True, _as("Tanh")),
        Mistake("default slope", True, _as("HardSigmoid")),
        Mistake("another slope", False, _slope),
    ),
    "Sigmoid": (
        Mistake("HardSigmoid", True, _as("HardSigmoid", alpha=1 / 6, beta=0.5)),
        Mistake("Tanh", True, _as("Tanh")),
    ),
    "Tanh": (
        Mistake("Sigmoid", True, _as("Sigmoid")),
        Mistake("HardSigmoid", True, _as("HardSigmoid")),
        Mistake("clipped", False, _clip(-1.0, 1.0)),
    ),
    "Add": (
        Mistake("Sub", True, _pair("Sub")),
        Mistake("Mul", True, _pair("Mul")),
        Mistake("first alone", True, _alone(0)),
        Mistake("second alone", True, _alone(1)),
        Mistake("half of the first", False, _half),
    ),
    "Mul": (
        Mistake("Add", True, _pair("Add")),
        Mistake("first alone", True, _alone(0)),
        Mistake("second alone", True, _alone(1)),
    ),
    "Softmax": (Mistake("Sigmoid", True, _as("Sigmoid")),),
    "Conv": (Mistake("no bias", True, _no_bias), Mistake("padding elsewhere", True, _pads)),
}


def try_imports(job: Imports) -> list[Outcome]:
    """All cases of one network."""
    found: list[Outcome] = []
    random = np.random.default_rng([job.seed, list(NETWORKS).index(job.network), 7])
    with tempfile.TemporaryDirectory(prefix="tidegauge-evaluate-") as folder:
        root = Path(folder)
        model = NETWORKS[job.network](root / "net.onnx")
        for number in range(job.cases * _TRIES):
            if len(found) == job.cases:
                break
            outcome = _case(root / str(number), model, random)
            if outcome is not None:
                found.append(outcome)
    return found


def _case(root: Path, model: Path, random: Random) -> Outcome | None:
    """None where the change makes no difference, or another shape."""
    drawn = _draw(model, random)
    if drawn is None:
        return None
    wrong, layer, mistake, kind = drawn
    bench = _compile(root, model, wrong)
    value = value_of(bench, int(random.integers(1000, 1 << 20)))
    names = {tensor.name: tensor for tensor in bench.network.tensors()}
    tensor, layer = layer, f"{layer}_original" if f"{layer}_original" in names else layer
    if layer not in names:
        return None
    changed = _changed(onnx.load(model), wrong, tensor, value, 0.5 / names[layer].quant.scale)
    if changed is None or changed == 0:
        return None
    answer = bench.judge(value, bench.run(value))
    named = (*answer.culprits, *answer.recovered)
    first = named[0] if named else None
    hit = first is not None and first.layer == layer
    allowed = {"wrong_operator"} if mistake.known else {"wrong_operator", "unknown"}
    return Outcome(
        what=f"{layer}: {kind} taken for {mistake.words}",
        detectable=changed >= CHANGED,
        changed=changed,
        hit=hit,
        both={c.layer for c in named} == {layer},
        cause=bool(hit and first is not None and first.cause in allowed),
        named=tuple(f"{c.layer}: {c.cause}" for c in named),
    )


def _draw(model: Path, random: Random) -> tuple[Any, str, Mistake, str] | None:
    wrong = onnx.load(model)
    weights = {item.name for item in wrong.graph.initializer}
    able = [node for node in wrong.graph.node if node.op_type in MISTAKES and _fits(node, weights)]
    if not able:
        return None
    node = able[int(random.integers(len(able)))]
    kind = node.op_type
    mistake = MISTAKES[kind][int(random.integers(len(MISTAKES[kind])))]
    if mistake.words == "no bias" and len(node.input) < 3:
        return None
    constants = mistake.edit(node, random)
    wrong.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    del wrong.graph.value_info[:]
    return wrong, node.output[0], mistake, kind


def _fits(node: Any, weights: set[str]) -> bool:
    if node.op_type in ("Add", "Mul"):
        return not any(name in weights for name in node.input)
    if node.op_type == "Conv":
        return any(item.name == "pads" and any(item.ints) for item in node.attribute)
    return True


def _compile(root: Path, model: Path, wrong: Any) -> Bench:
    """The wrong model on the board, to be compared with the right one."""
    (root / "traces").mkdir(parents=True)
    onnx.save(wrong, root / "wrong.onnx")
    shape = tuple(d.dim_value for d in wrong.graph.input[0].type.tensor_type.shape.dim)
    frames = [{"input": picture(shape, seed)} for seed in range(_FRAMES)]
    compile_model(root / "wrong.onnx", root / "artifacts", frames, CompileOptions(calibration_frames=_FRAMES))
    return Bench(model, root / "artifacts", root / "traces", load_artifacts(root / "artifacts"), shape)


def _changed(right: Any, wrong: Any, tensor: str, value: Array, half: float) -> float | None:
    """The share of the tensor's values that the change moves by more than half a code; None for another shape."""
    values = [float_session(proto, [tensor]).run([tensor], {"input": value})[0] for proto in (right, wrong)]
    if values[0].shape != values[1].shape:
        return None
    return float((np.abs(values[0] - values[1]) > half).mean())
