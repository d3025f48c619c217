"""The twin computes in integers, for every operator it has a layer for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.network import load_artifacts
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.quantise import activation_quant, quantise_weights, sqnr_db

RNG = np.random.default_rng(3)


def model(nodes: list[onnx.NodeProto], consts: dict[str, np.ndarray], shape: tuple[int, ...]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(v, k) for k, v in consts.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made)


def compiled(made: onnx.ModelProto, folder: Path, x: np.ndarray, **options: Any) -> tuple[Twin, np.ndarray]:
    """The twin, and the float model's answer."""
    onnx.save(made, folder / "m.onnx")
    compile_model(folder / "m.onnx", folder / "a", [{"x": x}], CompileOptions(**options))
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return Twin(load_artifacts(folder / "a")), session.run(None, {"x": x})[0]


def weights(*shape: int) -> np.ndarray:
    return RNG.normal(0, 0.4, shape).astype(np.float32)


@pytest.mark.parametrize("scale_type", [0, 4])
def test_an_8_bit_convolution_is_exact_integer_arithmetic(tmp_path: Path, scale_type: int) -> None:
    x = RNG.uniform(-1, 2, (1, 3, 6, 7)).astype(np.float32)
    w, b = weights(4, 3, 3, 3), weights(4)
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    twin, _ = compiled(model(nodes, {"w": w, "b": b}, x.shape), tmp_path, x, quantization_scale_type=scale_type)
    got = twin.run({"x": x}, ["x_netFormat", "y_original", "y"])

    layer = {t.name: t.quant for t in twin.network.tensors()}
    source, target = layer["x_netFormat"], layer["y_original"]
    codes, scale = quantise_weights(w, 8, scale_type == 4)
    shifted = got["x_netFormat"].astype(np.int64) - source.zero_point
    scale = np.broadcast_to(scale, 4).astype(np.float64)
    bias = np.rint(b * (scale.astype(np.float32) * np.float32(source.scale))).astype(np.int64)
    total = np.zeros((4, 4, 5), np.int64)
    for row in range(4):
        for column in range(5):
            patch = shifted[0, :, row : row + 3, column : column + 3]
            total[:, row, column] = np.tensordot(codes.astype(np.int64), patch, 3) + bias
    expected = np.rint(total / (scale[:, None, None] * source.scale) * target.scale) + target.zero_point
    expected = np.clip(expected, *target.code_range)
    off = np.abs(got["y_original"][0].astype(np.int64) - expected)
    assert off.max() <= 1  # a tie may fall either way: the multiplier is a float32
    assert (off == 0).mean() > 0.97
    values = (got["y_original"].astype(np.float32) - target.zero_point) / np.float32(target.scale)
    assert np.array_equal(got["y"], values)


def node(op: str, *inputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), ["y"], **attributes)


IMAGE, ROW = (1, 4, 8, 8), (1, 12)
I64 = np.int64
CASES: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray], tuple[int, ...], str]] = {
    "depthwise": ([node("Conv", "x", "w", group=4)], {"w": weights(4, 1, 3, 3)}, IMAGE, "Convolution"),
    "groups": ([node("Conv", "x", "w", group=2, strides=[2, 2])], {"w": weights(6, 2, 3, 3)}, IMAGE, "Convolution"),
    "batch norm": (
        [helper.make_node("Conv", ["x", "w"], ["c"]), node("BatchNormalization", "c", "g", "b", "m", "v")],
        {
            "w": weights(4, 4, 1, 1),
            "g": weights(4) + 1,
            "b": weights(4),
            "m": weights(4),
            "v": np.abs(weights(4)) + 0.5,
        },
        IMAGE,
        "Convolution",
    ),
    "leaky": (
        [helper.make_node("Conv", ["x", "w"], ["c"]), node("LeakyRelu", "c", alpha=0.1)],
        {"w": weights(4, 4, 1, 1)},
        IMAGE,
        "Convolution",
    ),
    "clip": (
        [helper.make_node("Conv", ["x", "w"], ["c"]), node("Clip", "c", "lo", "hi")],
        {"w": weights(4, 4, 1, 1), "lo": np.float32(-0.1).reshape(()), "hi": np.float32(0.5).reshape(())},
        IMAGE,
        "Convolution",
    ),
    "relu": ([node("Relu", "x")], {}, IMAGE, "BatchNorm"),
    "tanh": ([node("Tanh", "x")], {}, IMAGE, "Tanh"),
    "sigmoid": ([node("Sigmoid", "x")], {}, IMAGE, "Sigmoid"),
    "softmax": ([node("Softmax", "x", axis=1)], {}, ROW, "SoftMax"),
    "add": ([node("Add", "x", "x")], {}, IMAGE, "EltWise"),
    "mul constant": ([node("Mul", "x", "k")], {"k": np.float32(0.3).reshape(())}, IMAGE, "BatchNorm"),
    "constant minus x": ([node("Sub", "k", "x")], {"k": weights(1, 4, 1, 1)}, IMAGE, "BatchNorm"),
    "concat": ([helper.make_node("Relu", ["x"], ["r"]), node("Concat", "x", "r", axis=1)], {}, IMAGE, "Concat"),
    "max pool": ([node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2])], {}, IMAGE, "Pooling"),
    "average pool": ([node("AveragePool", "x", kernel_shape=[3, 3], pads=[1] * 4)], {}, IMAGE, "Pooling"),
    "global average pool": ([node("GlobalAveragePool", "x")], {}, IMAGE, "Pooling"),
    "resize": ([node("Resize", "x", "", "s")], {"s": np.float32([1, 1, 2, 2])}, IMAGE, "Resize"),
    "resize linear": ([node("Resize", "x", "", "s", mode="linear")], {"s": np.float32([1, 1, 2, 2])}, IMAGE, "Resize"),
    "reshape": ([node("Reshape", "x", "s")], {"s": np.array([1, 2, -1, 4], I64)}, IMAGE, "Reshape"),
    "flatten": ([node("Flatten", "x")], {}, IMAGE, "Flatten"),
    "transpose": ([node("Transpose", "x", perm=[0, 2, 3, 1])], {}, IMAGE, "Transpose"),
    "gemm": ([node("Gemm", "x", "w", "b", transB=1)], {"w": weights(5, 12), "b": weights(5)}, ROW, "InnerProduct"),
    "matmul": ([node("MatMul", "x", "w")], {"w": weights(12, 5)}, ROW, "InnerProduct"),
    "split": (
        [helper.make_node("Split", ["x"], ["p", "q"], axis=1), node("Sub", "q", "p")],
        {},
        IMAGE,
        "EltWise",
    ),
    "identities": (
        [helper.make_node("Identity", ["x"], ["i"]), helper.make_node("Relu", ["i"], ["r"]), node("Identity", "r")],
        {},
        IMAGE,
        "Reshape",
    ),
    "computed shape": (
        [
            helper.make_node("Shape", ["x"], ["all"]),
            helper.make_node("Gather", ["all", "first"], ["n"]),
            helper.make_node("Concat", ["n", "rest"], ["s"], axis=0),
            node("Reshape", "x", "s"),
        ],
        {"first": np.array([0], I64), "rest": np.array([-1], I64)},
        IMAGE,
        "Reshape",
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("bits", "scale_type", "least"), [(8, 4, 24.0), (16, 0, 70.0)])
def test_every_operator_is_near_its_float_form(
    tmp_path: Path, case: str, bits: int, scale_type: int, least: float
) -> None:
    nodes, consts, shape, kind = CASES[case]
    x = np.random.default_rng(8).normal(0, 1, shape).astype(np.float32)
    made = model(nodes, consts, shape)
    twin, expected = compiled(made, tmp_path, x, tensor_bits=bits, quantization_scale_type=scale_type)
    got = twin.run({"x": x}, ["y"])["y"]
    assert got.shape == expected.shape
    assert sqnr_db(expected, got) > least
    assert twin.network.layer("y_original").kind == f"TIDL_{kind}Layer"


def test_split_gives_a_slice_layer_an_output(tmp_path: Path) -> None:
    nodes, consts, shape, _ = CASES["split"]
    twin, _ = compiled(model(nodes, consts, shape), tmp_path, np.ones(shape, np.float32))
    assert [t.name for t in twin.network.tensors() if t.kind == "TIDL_SliceLayer"] == ["p", "q"]


def test_an_output_with_two_readers_stays_a_layer(tmp_path: Path) -> None:
    shape = (1, 4, 8, 8)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Add", ["r", "c"], ["y"]),
    ]
    x = RNG.normal(0, 1, shape).astype(np.float32)
    twin, expected = compiled(model(nodes, {"w": weights(4, 4, 1, 1)}, shape), tmp_path, x, tensor_bits=16)
    assert [t.name for t in twin.network.tensors()] == ["x_netFormat", "c", "r", "y_original", "y"]
    assert sqnr_db(expected, twin.run({"x": x}, ["y"])["y"]) > 70


def test_a_clip_holds_for_values_beyond_the_calibration(tmp_path: Path) -> None:
    nodes, consts, shape, _ = CASES["clip"]
    twin, _ = compiled(model(nodes, consts, shape), tmp_path, RNG.normal(0, 1, shape).astype(np.float32))
    y = twin.run({"x": np.full(shape, 1000, np.float32)}, ["y"])["y"]
    assert y.min() >= -0.1 - 0.01
    assert y.max() <= 0.5 + 0.01


@pytest.mark.parametrize(
    ("low", "high", "bits", "asymmetric", "expected"),
    [
        (0.0, 2.0, 8, False, ("uint8", 127.5, 0)),
        (0.5, 2.0, 8, True, ("uint8", 127.5, 0)),
        (-1.0, 0.5, 8, False, ("int8", 127.0, 0)),
        (-1.0, 3.0, 8, True, ("int8", 63.75, -64)),
        (-3.0, -1.0, 8, True, ("int8", 85.0, 127)),
        (-1.0, 3.0, 16, True, ("int16", np.float32(32767 / 3), 0)),
        (0.0, 0.0, 8, False, ("uint8", 255.0, 0)),
    ],
)
def test_activation_quantisation(
    low: float, high: float, bits: int, asymmetric: bool, expected: tuple[str, float, int]
) -> None:
    quant = activation_quant(low, high, bits, 4 if asymmetric else 0)
    assert (str(quant.dtype), quant.scale, quant.zero_point) == expected


def test_weights_use_the_whole_range_of_their_codes() -> None:
    w = np.array([[0.5, -0.25], [0.0, 0.0], [2.0, 1.0]], np.float32)
    codes, scale = quantise_weights(w, 8, True)
    assert codes.tolist() == [[127, -64], [0, 0], [127, 64]]
    assert scale.tolist() == [254.0, 1.0, 63.5]
    codes, scale = quantise_weights(w, 8, False)
    assert codes.tolist() == [[32, -16], [0, 0], [127, 64]]
    assert float(scale) == 63.5
