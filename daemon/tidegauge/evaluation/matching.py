"""How often layers are matched right: two compiles of one model with other ids, fusing and names, and the model."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tidegauge.compare.evidence import Values
from tidegauge.compare.match import match_tensors
from tidegauge.compare.model import load_model
from tidegauge.compare.pairing import pair_compiles
from tidegauge.compare.reference import Reference
from tidegauge.compare.release_values import trace_values
from tidegauge.evaluation.figures import Figure, Report
from tidegauge.evaluation.networks import NETWORKS, picture
from tidegauge.evaluation.second_compile import Naming, SecondCompile, make

Array = NDArray[Any]
RIGHT = 0.98
#: The share of fused operators that a compile leaves apart.
_SPLIT = 0.4


def twins(path: Path) -> Path:
    """Two branches of equal shape that nothing but their weights tells apart, and a pooled head over each."""
    random = np.random.default_rng(21)
    nodes: list[Any] = []
    weights: list[Any] = []

    def const(value: Array) -> str:
        weights.append(numpy_helper.from_array(value, f"w{len(weights)}"))
        return f"w{len(weights) - 1}"

    def conv(x: str, fan: int, out: int, name: str) -> str:
        deviation = np.sqrt(2 / (9 * fan)) * random.uniform(0.5, 1.5)
        weight = random.normal(0, deviation, (out, fan, 3, 3)).astype(np.float32)
        nodes.append(helper.make_node("Conv", [x, const(weight)], [f"{name}/Conv_output_0"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"{name}/Conv_output_0"], [f"{name}/Relu_output_0"]))
        return f"{name}/Relu_output_0"

    stem = conv("input", 3, 8, "/stem")
    sides = [conv(conv(stem, 8, 8, f"/{s}/0"), 8, 8, f"/{s}/1") for s in ("left", "right")]
    nodes.append(helper.make_node("Add", sides, ["/sum/Add_output_0"]))
    heads = [conv("/sum/Add_output_0", 8, 4, f"/head.{i}") for i in range(3)]
    nodes.append(helper.make_node("Concat", heads, ["/cat/Concat_output_0"], axis=1))
    nodes.append(helper.make_node("GlobalAveragePool", ["/cat/Concat_output_0"], ["scores"]))
    info = helper.make_tensor_value_info
    shape = (1, 3, 32, 48)
    graph = helper.make_graph(
        nodes,
        "net",
        [info("input", TensorProto.FLOAT, shape)],
        [info("scores", TensorProto.FLOAT, (1, 12, 1, 1))],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def unet(path: Path) -> Path:
    """Pooling, both kinds of Resize, Concat, Sigmoid: skips over several layers."""
    random = np.random.default_rng(22)
    nodes: list[Any] = []
    weights: list[Any] = []

    def const(value: Array) -> str:
        weights.append(numpy_helper.from_array(value, f"w{len(weights)}"))
        return f"w{len(weights) - 1}"

    def add(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def conv(x: str, fan: int, out: int, name: str) -> str:
        weight = random.normal(0, np.sqrt(2 / (9 * fan)), (out, fan, 3, 3)).astype(np.float32)
        plain = add("Conv", [x, const(weight)], f"{name}_conv", pads=[1] * 4)
        norm = [const(random.uniform(0.5, 1.5, out).astype(np.float32)) for _ in range(4)]
        return add("Relu", [add("BatchNormalization", [plain, *norm], f"{name}_bn")], name)

    twice = const(np.array([1, 1, 2, 2], np.float32))
    a = conv("input", 3, 8, "e1")
    b = conv(add("MaxPool", [a], "p1", kernel_shape=[2, 2], strides=[2, 2]), 8, 16, "e2")
    c = conv(add("AveragePool", [b], "p2", kernel_shape=[2, 2], strides=[2, 2]), 16, 16, "e3")
    d = add("Concat", [add("Resize", [c, "", twice], "u1", mode="linear"), b], "c1", axis=1)
    e = add("Resize", [conv(d, 32, 8, "d1"), "", twice], "u2", mode="nearest")
    add("Sigmoid", [conv(add("Concat", [e, a], "c2", axis=1), 16, 3, "d2")], "mask")
    info = helper.make_tensor_value_info
    shape = (1, 3, 40, 56)
    graph = helper.make_graph(
        nodes, "net", [info("input", TensorProto.FLOAT, shape)], [info("mask", TensorProto.FLOAT, shape)], weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


@dataclass(frozen=True)
class Case:
    """What a compile changes, what is known of it, and whether a goal stands behind its right ones. `faulty`: the share
    of layers whose trace is noise."""

    name: str
    naming: Naming
    traces: bool
    weights: bool
    goal: bool
    faulty: float = 0.0


CASES = (
    Case("names kept", "kept", False, False, True),
    Case("another prefix", "prefix", False, False, True),
    Case("another prefix, with traces", "prefix", True, False, True),
    Case("numbers for names, with traces", "numbers", True, False, True),
    Case("numbers for names, with weight scales", "numbers", False, True, False),
    Case("numbers for names, nothing else", "numbers", False, False, False),
    Case("numbers for names, a third of the traces noise", "numbers", True, False, False, 1 / 3),
)


@dataclass
class Count:
    """Device tensors that have a twin: in all, matched right, matched wrong."""

    total: int = 0
    right: int = 0
    wrong: int = 0

    def add(self, found: str | None, truth: str) -> None:
        self.total += 1
        self.right += found == truth
        self.wrong += found is not None and found != truth


def evaluate(quick: bool, seed: int, progress: Callable[[str], None]) -> Report:
    """Every case over all networks, several draws each."""
    networks = {**NETWORKS, "twins": twins, "unet": unet}
    draws = 2 if quick else 20
    counts = {case.name: (Count(), Count()) for case in CASES}
    hows: Counter[str] = Counter()
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(prefix="tidegauge-") as place:
        for name, build in networks.items():
            progress(name)
            model = build(Path(place) / f"{name}.onnx")
            for draw in range(draws):
                for case in CASES:
                    folder = Path(place) / f"{name}_{draw}_{CASES.index(case)}"
                    one(model, folder, case, random, counts[case.name], hows)
    return _report(seed, quick, len(networks), draws, counts, hows)


def one(
    model: Path,
    folder: Path,
    case: Case,
    random: np.random.Generator,
    counts: tuple[Count, Count],
    hows: Counter[str],
) -> None:
    """One pair of compiles: the second against the model, and both against each other."""
    shape = tuple(d.dim_value for d in onnx.load(model).graph.input[0].type.tensor_type.shape.dim)
    feeds = {"input": picture(shape, int(random.integers(1000)))} if case.traces else None
    first = make(model, folder / "1", random, naming="kept", split=_SPLIT, feeds=feeds, weights=case.weights)
    second = make(
        model,
        folder / "2",
        random,
        naming=case.naming,
        split=_SPLIT,
        feeds=feeds,
        weights=case.weights,
        faulty=case.faulty,
    )
    _with_model(model, second, feeds, counts[0], hows)
    _with_each_other(first, second, case.traces, counts[1])


def _with_model(
    model: Path, compiled: SecondCompile, feeds: Mapping[str, Array] | None, count: Count, hows: Counter[str]
) -> None:
    loaded = load_model(model.read_bytes(), model.name)

    def run(names: Sequence[str]) -> dict[str, Array]:
        sizes = {n: int(np.prod(loaded.shapes[n])) for n in names if n in loaded.producer}
        found = {name: value for name, value in (feeds or {}).items() if name in names}
        for values in Reference(loaded, feeds or {}, {}, sizes).walk():
            found.update(values)
        return found

    values = Values(run) if feeds is not None else None
    matched = match_tensors(loaded, compiled.tensors, {"subgraph_0": compiled.subgraph}, values)
    for tensor, found in zip(compiled.tensors, matched.found, strict=True):
        count.add(found.tensor, compiled.truth[tensor.data_id])
        hows[found.how] += 1


def _with_each_other(first: SecondCompile, second: SecondCompile, traces: bool, count: Count) -> None:
    score = trace_values(first.tensors, second.tensors) if traces else None
    found = pair_compiles({"subgraph_0": first.subgraph}, {"subgraph_0": second.subgraph}, score)
    twins_ = {pair.before: pair.after for pair in found.pairs}
    back = {tensor: data_id for data_id, tensor in second.truth.items()}
    for data_id, tensor in first.truth.items():
        after = twins_.get(f"subgraph_0:{data_id}")
        if tensor in back:
            count.add(after, f"subgraph_0:{back[tensor]}")
        elif after is not None:
            count.wrong += 1


def _report(
    seed: int,
    quick: bool,
    networks: int,
    draws: int,
    counts: Mapping[str, tuple[Count, Count]],
    hows: Counter[str],
) -> Report:
    figures = []
    groups = "second compile against the model", "two compiles against each other, without the model"
    for place, group in enumerate(groups):
        for case in CASES:
            count = counts[case.name][place]
            note = f"{count.total} layers, {networks} networks, {draws} draws"
            goal = RIGHT if case.goal else None
            figures.append(
                Figure(group, f"{case.name}: right", count.right / max(1, count.total), "", goal, ">=", note)
            )
            figures.append(Figure(group, f"{case.name}: wrong", float(count.wrong), "layers", 0.0, "<="))
    for how, number in sorted(hows.items(), key=lambda item: -item[1]):
        figures.append(Figure("how layers were matched with the model", how, float(number), "layers"))
    return Report(seed, quick, figures, [])
