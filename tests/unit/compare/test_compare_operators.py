"""An operator taken for another: the model is changed in one node, compiled and run; the right model is compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tidegauge.compare import Comparison
from tidegauge.compare.operator_fit import best_number, families
from tidegauge.compare.operators import substitutes
from tidegauge.compare.substitute import Substitute
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.options import CompileOptions
from unit.compare.lab import MODELS, Board, build, picture


def mistaken(root: Path, model: str, layer: str, edit: Callable[[Any], None]) -> Board:
    """One of `MODELS` as it is, and a compile of it in which the node that makes `layer` is another."""
    path = MODELS[model](root / f"{model}.onnx")
    wrong = onnx.load(path)
    edit(next(node for node in wrong.graph.node if node.output[0] == layer))
    onnx.save(wrong, root / "wrong.onnx")
    shape = tuple(d.dim_value for d in wrong.graph.input[0].type.tensor_type.shape.dim)
    frames = [{"input": picture(shape, seed)} for seed in range(4)]
    compile_model(root / "wrong.onnx", root / "artifacts", frames, CompileOptions(calibration_frames=4))
    return Board(path, root / "artifacts", root, shape)


def become(op: str, **attributes: Any) -> Callable[[Any], None]:
    def edit(node: Any) -> None:
        node.CopyFrom(helper.make_node(op, [node.input[0]], list(node.output), **attributes))

    return edit


def pair(op: str) -> Callable[[Any], None]:
    def edit(node: Any) -> None:
        node.op_type = op

    return edit


def pads(*values: int) -> Callable[[Any], None]:
    def edit(node: Any) -> None:
        next(item for item in node.attribute if item.name == "pads").ints[:] = values

    return edit


def without_bias(node: Any) -> None:
    del node.input[2:]


def averaged(node: Any) -> None:
    node.op_type = "AveragePool"


def resized(node: Any) -> None:
    next(item for item in node.attribute if item.name == "mode").s = b"nearest"


#: Model, layer that is named, tensor whose node is changed, the change, and a word of the detail.
CASES: dict[str, tuple[str, str, str, Callable[[Any], None], str]] = {
    "hard sigmoid": ("classifier", "se_sig", "se_sig", become("HardSigmoid"), "as HardSigmoid of slope 0.2"),
    "tanh to sigmoid": ("enhancer", "/Tanh_output_0", "/Tanh_output_0", become("Sigmoid"), "as Sigmoid"),
    "add to mul": ("classifier", "out", "add", pair("Mul"), "as Mul"),
    "gate lost": ("classifier", "se_scale", "se_scale", become("Identity"), ""),
    "average for maximum": ("classifier", "pool", "pool", averaged, "as AveragePool"),
    "nearest for bilinear": ("segmenter", "up1", "up1", resized, "as nearest"),
    "bias": ("segmenter", "mid", "mid_conv", without_bias, "without its bias"),
    "a slope of its own": ("classifier", "stem", "stem", become("LeakyRelu", alpha=0.37), "as LeakyRelu of slope 0.37"),
    "a gate of its own": (
        "classifier",
        "se_sig",
        "se_sig",
        become("HardSigmoid", alpha=0.4),
        "HardSigmoid of slope 0.4",
    ),
    "padding": ("classifier", "stem", "stem_conv", pads(0, 0, 2, 2), "padding at the end"),
}


@pytest.mark.parametrize("case", [name for name in CASES if name != "gate lost"])
def test_the_operator_is_named(case: str, tmp_path: Path) -> None:
    model, layer, tensor, edit, words = CASES[case]
    answer = mistaken(tmp_path, model, tensor, edit).compare()
    first = (*answer.culprits, *answer.recovered)[0]
    assert (first.layer, first.cause) == (layer, "wrong_operator"), answer.sentence
    assert words in first.detail and words in first.sentence, first.detail
    assert first.explained is not None and first.explained > 0.9
    assert any("mistakes an operator" in item.why for item in first.advice)


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("board"), "segmenter")


def named(answer: Comparison) -> list[tuple[str, str]]:
    return [(c.layer, c.cause) for c in (*answer.culprits, *answer.recovered)]


@pytest.mark.parametrize("kind", ["gain", "offset", "band", "saturate", "boundary_column", "one_channel"])
@pytest.mark.parametrize("layer", ["d2_leaky", "up1", "e2"])
def test_other_faults_are_not_taken_for_an_operator(segmenter: Board, kind: Any, layer: str) -> None:
    assert all(cause != "wrong_operator" for _, cause in named(segmenter.compare([Fault(layer, kind)])))


def test_a_replacement_writes_what_the_node_wrote(segmenter: Board) -> None:
    from tidegauge.compare.model import load_model

    model = load_model(segmenter.model.read_bytes(), "segmenter.onnx")
    kinds = set()
    for node in model.nodes:
        for other in substitutes(model, node):
            kinds.add(node.op_type)
            assert list(other.nodes[-1].output) == list(node.output)
            known = {*node.input, *other.constants, *(o for made in other.nodes for o in made.output)}
            assert all(name in known for made in other.nodes for name in made.input)
            assert all(np.isfinite(value).all() for value in other.constants.values())
    assert {"Conv", "LeakyRelu", "Resize", "AveragePool", "Sigmoid"} <= kinds


@pytest.mark.parametrize("number", [-0.4, 0.03, 0.37, 0.9])
def test_the_number_of_an_operator_is_found(number: float) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    (family,) = families(None, node)  # type: ignore[arg-type]  # a Relu reads no weight
    x = np.linspace(-1, 1, 101)

    def distance(other: Substitute) -> float:
        (slope,) = (item.f for item in other.nodes[0].attribute)
        return float(np.square(np.where(x < 0, slope * x, x) - np.where(x < 0, number * x, x)).sum())

    found = best_number(family, distance)
    assert found.nodes[0].attribute[0].f == pytest.approx(number, abs=2e-3)
