"""Names are compared whole: never by substring, never by order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tidegauge.compare.match import match
from tidegauge.compare.model import Model, fold_batch_norms, load_model


def chain(*names: str, inputs: str = "x") -> Model:
    nodes, before = [], inputs
    for name in names:
        nodes.append(helper.make_node("Relu", [before], [name]))
        before = name
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info(inputs, TensorProto.FLOAT, [1, 4])], [info(before, TensorProto.FLOAT, [1, 4])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return load_model(model.SerializeToString(), "chain.onnx")


def test_conv_1_is_not_conv_10() -> None:
    model = chain("/f/Conv", "/f/Conv_1", "/f/Conv_10", "out")
    found = match(model, ["_f_Conv_1", "/f/Conv_10", "_f_Conv", "1", "Conv_1"])
    assert [m.tensor for m in found] == ["/f/Conv_1", "/f/Conv_10", "/f/Conv", None, None]
    assert [m.how for m in found] == ["sanitised", "name", "sanitised", "none", "none"]
    assert "no tensor of this name" in found[3].reason


def test_short_names_match_only_themselves() -> None:
    found = match(chain("1", "10", "103", "3"), ["103", "3", "10", "1", "0"])
    assert [m.tensor for m in found] == ["103", "3", "10", "1", None]


def test_an_ambiguous_file_name_stays_unmatched() -> None:
    found = match(chain("/a/b", "/a_b", "out"), ["_a_b", "/a/b"])
    assert found[0].tensor is None and "2 tensors" in found[0].reason
    assert found[1].tensor == "/a/b"


def test_two_device_tensors_of_one_name_are_both_refused() -> None:
    found = match(chain("/a", "out"), ["/a", "_a"])
    assert [m.tensor for m in found] == [None, None] and "2 device tensors claim" in found[0].reason


def test_aliases_become_tensors_of_the_model() -> None:
    model = chain("mid", "out")
    found = match(model, ["x_netFormat", "mid", "out_original", "out"])
    assert [(m.tensor, m.how) for m in found] == [
        ("x_netFormat", "input"),
        ("mid", "name"),
        ("out_original", "original"),
        ("out", "name"),
    ]
    assert [(n.op_type, list(n.input), list(n.output)) for n in model.nodes] == [
        ("Identity", ["x"], ["x_netFormat"]),
        ("Relu", ["x_netFormat"], ["mid"]),
        ("Relu", ["mid"], ["out_original"]),
        ("Identity", ["out_original"], ["out"]),
    ]


def test_an_alias_is_not_invented_for_a_tensor_that_has_the_name() -> None:
    model = chain("x_netFormat", "out")
    assert match(model, ["x_netFormat"])[0].how == "name"
    assert len(model.nodes) == 2


def test_a_batch_norm_is_folded_unless_the_convolution_is_traced(tmp_path: Path) -> None:
    del tmp_path
    random = np.random.default_rng(0)
    weights = {
        "w": random.normal(0, 1, (4, 2, 1, 1)),
        "g": random.uniform(0.5, 2, 4),
        "b": random.normal(0, 1, 4),
        "m": random.normal(0, 1, 4),
        "v": random.uniform(0.5, 2, 4),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, [1, 2, 3, 3])],
        [info("y", TensorProto.FLOAT, [1, 4, 3, 3])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto)
    kept = load_model(proto.SerializeToString(), "m.onnx")
    assert fold_batch_norms(kept, ["c"]) == 0
    model = load_model(proto.SerializeToString(), "m.onnx")
    assert fold_batch_norms(model, []) == 1
    assert [n.op_type for n in model.nodes] == ["Conv"] and list(model.nodes[0].output) == ["y"]
    x = random.normal(0, 1, (2,))
    plain = weights["w"][:, :, 0, 0] @ x
    expected = (plain - weights["m"]) / np.sqrt(weights["v"] + 1e-5) * weights["g"] + weights["b"]
    folded = model.weights["w"][:, :, 0, 0] @ x + model.weights[model.nodes[0].input[2]]
    np.testing.assert_allclose(folded, expected, rtol=1e-4, atol=1e-5)


def test_subnormal_weights_are_flushed_and_counted() -> None:
    weight = np.array([[1e-40, 1.0], [0.0, -1e-39]], np.float32)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [info("x", TensorProto.FLOAT, [1, 2])],
        [info("y", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(weight, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = load_model(proto.SerializeToString(), "m.onnx")
    assert model.subnormal == 2 and model.weights["w"].tolist() == [[0.0, 1.0], [0.0, 0.0]]
