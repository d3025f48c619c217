"""Regions that loops or shared sessions compute from codes give what a session of their own gives; all others have
one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tidegauge.compare import reference as references
from tidegauge.compare.cutgraph import Coded, Room, Rounding
from tidegauge.compare.direct import Direct, pieces
from tidegauge.compare.machine_code import KINDS
from tidegauge.compare.model import load_model
from tidegauge.compare.reference import Recorded, Reference
from tidegauge.compare.statistics import Encoding

CHANNELS, HEIGHT, WIDTH = 5, 131, 211
SHAPE = (1, CHANNELS, HEIGHT, WIDTH)
ENCODINGS = {
    "x": Encoding("int8", 31.7, -7),
    "y": Encoding("uint16", 4011.0, 900),
    "small": Encoding("uint8", 50.0, 3),
}
DEPTHWISE: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1] * 4, "group": CHANNELS}


def conv(*inputs: str, **attributes: Any) -> Any:
    return helper.make_node("Conv", inputs, ["made"], **attributes)


def weights(**shapes: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(8)
    return {name: random.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def reference(
    folder: Path, nodes: list[Any], constants: dict[str, NDArray[Any]], rounding: dict[str, Rounding] | None = None
) -> Reference:
    """Tensors x and y, and small of one value a channel, are inputs, passed through so that they can be cut at."""
    random = np.random.default_rng(3)
    shapes = {"x": SHAPE, "y": SHAPE, "small": (1, CHANNELS, 1, 1)}
    passed = [helper.make_node("Identity", [f"{name}.in"], [name]) for name in shapes]
    inputs = [helper.make_tensor_value_info(f"{name}.in", TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    output = helper.make_empty_tensor_value_info("out")
    graph = helper.make_graph(
        [*passed, *nodes], "one", inputs, [output], [numpy_helper.from_array(v, k) for k, v in constants.items()]
    )
    path = folder / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    model = load_model(path.read_bytes(), path.name, folder)
    device = {}
    for name, shape in shapes.items():
        low, high = ENCODINGS[name].code_range
        codes = random.integers(low, high + 1, shape).astype(ENCODINGS[name].dtype)
        device[name] = Recorded(lambda codes=codes: codes, ENCODINGS[name])  # type: ignore[misc]
    device["out"] = Recorded(lambda: np.zeros(0, np.int8), Encoding("int8", 1.0))
    values = {f"{name}.in": random.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    made = Reference(
        model, values, device, dict.fromkeys([*shapes, "out"], CHANNELS * HEIGHT * WIDTH), 1 << 30, rounding
    )
    for _ in made.walk():
        pass
    return made


def named(node: Any, output: str) -> Any:
    node.output[0] = output
    return node


RELU = helper.make_node("Relu", ["made"], ["out"])
CLIP = helper.make_node("Clip", ["made", "low", "high"], ["out"])
ADD = helper.make_node("Add", ["x", "y"], ["made"])
BOUNDS = {"low": np.float32(-0.5), "high": np.float32(6.0)}
FILTER = weights(w=(CHANNELS, 1, 3, 3), b=(CHANNELS,))

KNOWN = {
    "depthwise": ([named(conv("x", "w", **DEPTHWISE), "out")], FILTER),
    "depthwise of 16 bits, bias, ReLU": ([conv("y", "w", "b", **DEPTHWISE), RELU], FILTER),
    "depthwise, clip": ([conv("x", "w", "b", **DEPTHWISE), CLIP], FILTER | BOUNDS),
    "1 × 1": ([named(conv("x", "v", kernel_shape=[1, 1]), "out")], weights(v=(19, CHANNELS, 1, 1))),
    "1 × 1 without attributes": ([named(conv("x", "v"), "out")], weights(v=(8, CHANNELS, 1, 1))),
    "1 × 1 of 16 bits, bias, ReLU": (
        [conv("y", "v", "b", kernel_shape=[1, 1], pads=[0] * 4), RELU],
        weights(v=(CHANNELS, CHANNELS, 1, 1), b=(CHANNELS,)),
    ),
    "1 × 1, clip": ([conv("x", "v", kernel_shape=[1, 1]), CLIP], BOUNDS | weights(v=(CHANNELS, CHANNELS, 1, 1))),
    "sum": ([helper.make_node("Add", ["y", "x"], ["out"])], {}),
    "sum, ReLU": ([ADD, RELU], {}),
    "sum, upper bound only": ([ADD, helper.make_node("Clip", ["made", "", "high"], ["out"])], BOUNDS),
    "sum, bounds of one element": (
        [ADD, CLIP],
        {"low": np.asarray([-0.5], np.float32), "high": np.asarray([6.0], np.float32)},
    ),
    "difference": ([helper.make_node("Sub", ["x", "y"], ["out"])], {}),
    "twice itself": ([helper.make_node("Add", ["x", "x"], ["out"])], {}),
}
CONVOLUTIONS = {
    "stride": ([named(conv("x", "w", **DEPTHWISE | {"strides": [2, 2]}), "out")], FILTER),
    "no padding": ([named(conv("x", "w", **DEPTHWISE | {"pads": [0] * 4}), "out")], FILTER),
    "padding below only": ([named(conv("x", "w", **DEPTHWISE | {"pads": [0, 0, 2, 2]}), "out")], FILTER),
    "holes": ([named(conv("x", "w", **DEPTHWISE | {"dilations": [2, 2], "pads": [2] * 4}), "out")], FILTER),
    "named padding": (
        [named(conv("x", "w", kernel_shape=[3, 3], group=CHANNELS, auto_pad="SAME_UPPER"), "out")],
        FILTER,
    ),
    "dense": (
        [named(conv("x", "v", kernel_shape=[3, 3], pads=[1] * 4), "out")],
        weights(v=(CHANNELS, CHANNELS, 3, 3)),
    ),
    "two of each channel": ([named(conv("x", "v", **DEPTHWISE), "out")], weights(v=(2 * CHANNELS, 1, 3, 3))),
    "dense, bias, ReLU": (
        [conv("y", "v", "b", kernel_shape=[3, 3], pads=[1] * 4), RELU],
        weights(v=(CHANNELS, CHANNELS, 3, 3), b=(CHANNELS,)),
    ),
    "1 × 1, padding": (
        [named(conv("x", "v", kernel_shape=[1, 1], pads=[1] * 4), "out")],
        weights(v=(CHANNELS, CHANNELS, 1, 1)),
    ),
    "1 × 1, stride": (
        [named(conv("x", "v", kernel_shape=[1, 1], strides=[2, 2]), "out")],
        weights(v=(4 * CHANNELS, CHANNELS, 1, 1)),
    ),
    "1 × 1, each channel alone": (
        [named(conv("x", "v", kernel_shape=[1, 1], group=CHANNELS), "out")],
        weights(v=(CHANNELS, 1, 1, 1)),
    ),
    "small": ([named(conv("small", "v", kernel_shape=[1, 1]), "out")], weights(v=(9, CHANNELS, 1, 1))),
}
LEFT = {
    "weights that are computed": (
        [helper.make_node("Abs", ["w"], ["v"]), named(conv("x", "v", **DEPTHWISE), "out")],
        FILTER,
    ),
    "another function behind a convolution": (
        [conv("x", "w", **DEPTHWISE), helper.make_node("Sigmoid", ["made"], ["out"])],
        FILTER,
    ),
    "a sum with one value a channel": ([helper.make_node("Add", ["x", "small"], ["out"])], {}),
    "a sum with a constant": ([helper.make_node("Add", ["x", "c"], ["out"])], weights(c=SHAPE)),
    "another function behind it": ([ADD, helper.make_node("Sigmoid", ["made"], ["out"])], {}),
    "three": ([ADD, helper.make_node("Relu", ["made"], ["r"]), helper.make_node("Neg", ["r"], ["out"])], {}),
}


def values(made: Reference, name: str) -> NDArray[Any]:
    recorded = made.device[name]
    assert isinstance(recorded, Recorded)
    return (recorded.codes().astype(np.float64) - ENCODINGS[name].zero_point) / ENCODINGS[name].scale


def by_a_session(
    made: Reference, monkeypatch: pytest.MonkeyPatch, weights: dict[str, NDArray[Any]] | None = None
) -> NDArray[Any]:
    with monkeypatch.context() as patched:
        patched.setattr(references, "direct", lambda *_: None)
        patched.setattr(references, "convolution", lambda *_: None)
        return made.local(["out"], weights)["out"]


@pytest.mark.parametrize("name", KNOWN)
def test_loops_give_what_a_session_gives(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reference(tmp_path, *KNOWN[name])
    expected = by_a_session(made, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(references, "run_part", lambda *_, **__: pytest.fail("a session is opened"))
        room = Room()
        found = [made.local(["out"])["out"], made.local(["out"], room=room)["out"].copy()]
        found.append(made.local(["out"], room=room)["out"])
    for each in found:
        assert each.shape == expected.shape and each.dtype == np.float32
        assert np.abs(each - expected).max() <= 2e-6 * np.abs(expected).max()
    assert np.unique(expected).size > 100


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(
    "pictures, channels, made, side",
    [(1, 1, 1, 1), (2, 3, 7, 5), (3, 1, 8, 33), (1, 300, 17, 23), (2, 700, 9, 6), (1, 64, 16, 24)],
)
def test_a_1_by_1_convolution_of_any_size(
    dtype: str, pictures: int, channels: int, made: int, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegauge.compare.direct._PIECE", 1 << 10)  # several pieces
    random = np.random.default_rng(channels)
    encoding = Encoding(dtype, 17.0, 11)
    low, high = encoding.code_range
    codes = random.integers(low, high + 1, (pictures, channels, side, side + 1)).astype(dtype)
    weight = random.normal(0, 1, (made, channels)).astype(np.float32)
    bias = random.normal(0, 1, made).astype(np.float32)
    exact = np.einsum("mc,ncyx->nmyx", weight.astype(np.float64), (codes - 11.0) / 17) + bias[:, None, None]
    around = np.full(exact.size + 64, np.float32(7))
    out = around[32:-32].reshape(exact.shape)
    for piece in pieces(Direct(("x",), weight, bias, -0.25, dense=True), [Coded(codes, encoding)], out):
        piece()
    assert np.abs(out - np.maximum(exact, -0.25)).max() <= 1e-6 * channels**0.5 * np.abs(exact).max()
    assert (around[:32] == 7).all() and (around[-32:] == 7).all()  # nothing is written beside it


def test_of_more_channels_onnx_runtime_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reference(tmp_path, *KNOWN["1 × 1, clip"])
    found = made.local(["out"])["out"]
    monkeypatch.setattr("tidegauge.compare.direct._CHANNELS", CHANNELS - 1)
    monkeypatch.setattr(references, "pieces", lambda *_: pytest.fail("taken for a region that the loops know"))
    assert np.abs(made.local(["out"])["out"] - found).max() <= 2e-6 * np.abs(found).max()


def test_a_sum_is_rounded_once(tmp_path: Path) -> None:
    made = reference(tmp_path, *KNOWN["sum"])
    x, y = (values(made, name).astype(np.float32) for name in ("x", "y"))
    assert np.abs(made.local(["out"])["out"] - (x + y)).max() <= 2e-6 * np.abs(x + y).max()


def test_other_weights_stand_in_for_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reference(tmp_path, *KNOWN["depthwise of 16 bits, bias, ReLU"])
    other = {"w": FILTER["w"] * np.float32(-0.5), "b": FILTER["b"] + np.float32(1)}
    found = made.local(["out"], other)["out"]
    expected = by_a_session(made, monkeypatch, other)
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()
    assert np.abs(found - made.local(["out"])["out"]).max() > 0.1


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_shared_session_gives_what_its_own_gives(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reference(tmp_path, *CONVOLUTIONS[name])
    expected = by_a_session(made, monkeypatch)
    monkeypatch.setattr(references, "pieces", lambda *_: pytest.fail("taken for a region that the loops know"))
    monkeypatch.setattr(references, "run_part", lambda *_, **__: pytest.fail("a session of its own is opened"))
    room = Room()
    for found in (made.local(["out"]), made.local(["out"], room=room), made.local(["out"], room=room)):
        assert np.array_equal(found["out"], expected)
    doubled = {name: 2 * value for name, value in CONVOLUTIONS[name][1].items() if name in ("w", "v")}
    assert not np.array_equal(made.local(["out"], doubled)["out"], expected)


@pytest.mark.parametrize("name", LEFT)
def test_everything_else_has_a_session(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reference(tmp_path, *LEFT[name])
    assert np.array_equal(made.local(["out"])["out"], by_a_session(made, monkeypatch))
    monkeypatch.setattr(references, "run_part", lambda *_, **__: pytest.fail("a session is opened"))
    with pytest.raises(pytest.fail.Exception):
        made.local(["out"])


def test_a_region_with_rounding_inside_is_left_to_a_session(tmp_path: Path) -> None:
    rounding = {"made": Rounding(4.0, -20.0, 20.0)}
    made = reference(tmp_path, *KNOWN["sum, ReLU"], rounding)
    found = made.local(["out"])["out"]
    x, y = values(made, "x"), values(made, "y")
    assert np.abs(found * 4 - np.round(found * 4)).max() == 0
    assert np.abs(found - np.clip(x + y, 0, 5.0)).max() <= 0.126


def test_a_small_tensor_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reference(tmp_path, [helper.make_node("Add", ["small", "small"], ["out"])], {})
    monkeypatch.setattr(references, "pieces", lambda *_: pytest.fail("compiled for five values"))
    assert made.local(["out"])["out"] == pytest.approx(2 * values(made, "small"), rel=1e-5)
