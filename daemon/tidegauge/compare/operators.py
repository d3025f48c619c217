"""Another operator in the place of the model's: an import that mistakes one, a kernel that leaves out a half of it.

Each node of a wrong region is replaced by what is known to be mistaken for it (HardSwish by HardSigmoid, bilinear by
nearest, padding at the other end, …), the region runs on the device's own inputs again, and what the device made of
them is compared. A replacement is named only where it accounts for nearly all of the error: most are far from it.
Where none of these does, operators with a number of their own are fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from tidegauge.compare.cutgraph import part_for, run_part
from tidegauge.compare.layers import Evaluation, Layer
from tidegauge.compare.model import Model
from tidegauge.compare.operator_fit import best_number, families
from tidegauge.compare.residual import Cause, Evidence
from tidegauge.compare.substitute import Substitute
from tidegauge.errors import TidegaugeError

Array = NDArray[Any]

#: Less is explained by chance, and by operators that merely resemble the right one.
_PLAIN = 0.9
#: It must leave no more than this part of what a simple pattern leaves, for that is the simpler word. A bound is a part
#: of many operators, with numbers that no other fault has: there it may explain this much less, for codes at the bound.
_LEFT, _MARGIN = 0.25, 0.02
#: A region's last nodes that are replaced, and replacements in all.
_NODES, _TRIES = 6, 48
#: Of these, the ones that get operators with a fitted number.
_FITTED = 2
_ABSENT = "as if it were not there"
_MOVED_BY_BOUND = ("saturation_low", "saturation_high")


def find_operator(work: Evaluation, layer: Layer, case: Evidence, found: Cause) -> Cause:
    """The cause "wrong operator", or `found` where no replacement explains the tensor better."""
    part = work.reference.region(layer.twin)
    if part is None or found.name in ("non_finite", "all_zero", "constant"):
        return found
    model, best, tries, needed = work.reference.model, found, 0, max(_PLAIN, _needed(found))
    for index in reversed(part.nodes[-_NODES:]):
        for other in substitutes(model, model.nodes[index]):
            tries += 1
            explained = _explained(work, layer, case, index, other) if tries <= _TRIES else -np.inf
            if explained > needed:
                best, needed = _cause(model.nodes[index], other, explained), explained
    if best is not found:
        return best
    for index in reversed(part.nodes[-_FITTED:]):
        for family in families(model, model.nodes[index]):
            other = best_number(family, lambda each, at=index: -_explained(work, layer, case, at, each))  # type: ignore[misc]
            explained = _explained(work, layer, case, index, other)
            if explained > needed:
                best, needed = _cause(model.nodes[index], other, explained), explained
    return best


def _explained(work: Evaluation, layer: Layer, case: Evidence, index: int, other: Substitute) -> float:
    """The share of the error that a replacement accounts for; minus infinity where it can't stand there."""
    value = _run(work, layer, index, other)
    if value is None or value.size != case.local.size or not np.isfinite(value).all():
        return float(-np.inf)
    return case.explained(case.clipped(value.reshape(case.local.shape).astype(np.float32, copy=False)))


def _cause(node: Any, other: Substitute, explained: float) -> Cause:
    where = f"node {node.name or node.output[0]}"
    return Cause("wrong_operator", explained, f"{node.op_type} ({where}) is computed {other.words}")


def _needed(found: Cause) -> float:
    if found.explained is None:
        return _PLAIN
    if found.name in _MOVED_BY_BOUND:
        return found.explained - _MARGIN
    return 1.0 - _LEFT * (1.0 - found.explained)


def _run(work: Evaluation, layer: Layer, index: int, other: Substitute) -> Array | None:
    """The region's output with one node replaced; None where the replacement does not run."""
    model, reference = work.reference.model, work.reference
    nodes = [*model.nodes[:index], *other.nodes, *model.nodes[index + 1 :]]
    changed = replace(model, nodes=nodes, weights={**model.weights, **other.constants})
    part = part_for(changed, [layer.twin], reference.cut)
    feeds = {name: reference.feed(name) for name in part.reads_cut}
    feeds |= {name: reference.inputs[name] for name in part.reads_inputs}
    try:
        return run_part(changed, part, reference.cut, feeds, layer.scheme, reference.rounding)[layer.twin]
    except TidegaugeError:
        return None  # another shape, or an operator that this model's opset doesn't have


# --- what is mistaken for what -----------------------------------------------------------------------------------


def substitutes(model: Model, node: Any) -> Iterator[Substitute]:
    """What could stand in the place of a node; also the node's own operator where that is on the list of its kind."""
    if node.domain not in ("", "ai.onnx") or len([name for name in node.output if name]) != 1:
        return
    make = _KINDS.get(node.op_type)
    if make is not None:
        yield from make(model, node)


def _like(node: Any, op: str, inputs: list[str] | None = None, **attributes: Any) -> Any:
    """A node that writes what `node` writes."""
    return helper.make_node(op, list(node.input) if inputs is None else inputs, list(node.output), **attributes)


def _attributes(node: Any) -> dict[str, Any]:
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def _activation(model: Model, node: Any) -> Iterator[Substitute]:
    """The activations that compilers have, from operators that every opset has."""
    read, inner, six = node.input[0], f"{node.output[0]}::inner", f"{node.output[0]}::six"
    yield Substitute(_ABSENT, (_like(node, "Identity", [read]),))
    yield Substitute("as Relu", (_like(node, "Relu", [read]),))
    relu = helper.make_node("Relu", [read], [inner])
    yield Substitute("as Relu6", (relu, _like(node, "Min", [inner, six])), {six: np.asarray(6, np.float32)})
    for slope in (0.01, 0.1, 0.2):
        yield Substitute(f"as LeakyRelu of slope {slope:g}", (_like(node, "LeakyRelu", [read], alpha=slope),))
    for alpha, words in ((1 / 6, "1/6"), (0.2, "0.2")):
        yield Substitute(
            f"as HardSigmoid of slope {words}", (_like(node, "HardSigmoid", [read], alpha=alpha, beta=0.5),)
        )
    gates: list[tuple[str, str, dict[str, Any]]]
    gates = [("HardSigmoid", "HardSwish", {"alpha": 1 / 6, "beta": 0.5}), ("Sigmoid", "Swish", {})]
    for gate, words, more in gates:
        first = helper.make_node(gate, [read], [inner], **more)
        yield Substitute(f"as {words}", (first, _like(node, "Mul", [read, inner])))
    for op in ("Sigmoid", "Tanh", "Elu", "Softplus"):
        yield Substitute(f"as {op}", (_like(node, op, [read]),))


def _pair(model: Model, node: Any) -> Iterator[Substitute]:
    if len(node.input) != 2:
        return
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
        if op != node.op_type and {op, node.op_type} != {"Max", "Min"}:
            yield Substitute(f"as {op}", (_like(node, op),))
    for position, words in ((0, "as its first input alone"), (1, "as its second input alone")):
        if node.input[position] not in model.weights:
            yield Substitute(words, (_like(node, "Identity", [node.input[position]]),))


def _pool(model: Model, node: Any) -> Iterator[Substitute]:
    given = _attributes(node)
    shape = {
        name: given[name] for name in ("kernel_shape", "strides", "pads", "auto_pad", "ceil_mode") if name in given
    }
    for counted, words in ((0, "without the padding"), (1, "with the padding counted")):
        yield Substitute(f"as AveragePool, {words}", (_like(node, "AveragePool", **shape, count_include_pad=counted),))
    yield Substitute("as MaxPool", (_like(node, "MaxPool", **shape),))
    yield from _padding(node, given)


def _whole(model: Model, node: Any) -> Iterator[Substitute]:
    """Reductions: over the whole picture, or over given axes."""
    if node.op_type.startswith("Global"):
        for op in ("GlobalAveragePool", "GlobalMaxPool"):
            yield Substitute(f"as {op}", (_like(node, op),))
        return
    for op in ("ReduceMean", "ReduceMax", "ReduceMin"):  # a sum is the mean with a gain
        yield Substitute(f"as {op}", (_like(node, op, **_attributes(node)),))


def _resize(model: Model, node: Any) -> Iterator[Substitute]:
    kept = {k: v for k, v in _attributes(node).items() if k not in _RESIZE}
    for places in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
        linear: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": places}
        yield Substitute(f"as bilinear, {places}", (_like(node, "Resize", **kept, **linear),))
        for rounding in ("floor", "round_prefer_floor", "round_prefer_ceil"):
            nearest: dict[str, Any] = {
                "mode": "nearest",
                "coordinate_transformation_mode": places,
                "nearest_mode": rounding,
            }
            yield Substitute(f"as nearest, {places}, {rounding}", (_like(node, "Resize", **kept, **nearest),))


_RESIZE = ("mode", "coordinate_transformation_mode", "nearest_mode")


def _softmax(model: Model, node: Any) -> Iterator[Substitute]:
    given = _attributes(node)
    for axis in (-1, -2, -3):
        yield Substitute(f"as Softmax over axis {axis}", (_like(node, "Softmax", axis=axis),))
    yield Substitute("as Sigmoid", (_like(node, "Sigmoid"),))
    yield Substitute("as LogSoftmax", (_like(node, "LogSoftmax", **given),))
    yield Substitute(_ABSENT, (_like(node, "Identity"),))


def _convolution(model: Model, node: Any) -> Iterator[Substitute]:
    given = _attributes(node)
    if len(node.input) > 2:
        yield Substitute("without its bias", (_like(node, node.op_type, list(node.input[:2]), **given),))
    yield from _padding(node, given)
    weight = model.weights.get(node.input[1])
    if weight is not None and weight.ndim == 4 and weight.shape[2:] != (1, 1):
        name = f"{node.output[0]}::turned"
        turned = np.ascontiguousarray(weight[:, :, ::-1, ::-1])
        inputs = [node.input[0], name, *node.input[2:]]
        yield Substitute("with its kernel upside down", (_like(node, node.op_type, inputs, **given),), {name: turned})


def _padding(node: Any, given: dict[str, Any]) -> Iterator[Substitute]:
    """The same padding at other ends: SAME_UPPER for SAME_LOWER, all before or all behind."""
    pads = list(given.get("pads", ()))
    if len(pads) != 4 or not any(pads):
        return
    top, left, bottom, right = pads
    high, wide = top + bottom, left + right
    others = {
        "with its padding at the end only": [0, 0, high, wide],
        "with its padding at the beginning only": [high, wide, 0, 0],
        "with its padding the other way round": [bottom, right, top, left],
    }
    for words, moved in others.items():
        if moved != pads:
            yield Substitute(words, (_like(node, node.op_type, **{**given, "pads": moved}),))


_ACTIVATIONS = (
    *("Relu", "Clip", "LeakyRelu", "PRelu", "HardSigmoid", "HardSwish", "Sigmoid", "Tanh", "Elu", "Gelu", "Softplus"),
    *("Mish", "Softsign", "Selu", "Celu"),
)
_KINDS: dict[str, Callable[[Model, Any], Iterator[Substitute]]] = {
    **dict.fromkeys(_ACTIVATIONS, _activation),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min"), _pair),
    **dict.fromkeys(("MaxPool", "AveragePool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax", "ReduceMin"), _whole),
    **dict.fromkeys(("Conv", "ConvTranspose"), _convolution),
    "Resize": _resize,
    "Softmax": _softmax,
}
