from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.runtimes import inner_ranges
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.runtimes.inner_ranges import open_inner, with_reductions

SHAPE = (1, 3, 6, 8)


def network(opset: int = 13) -> onnx.ModelProto:
    """Convolution, ReLU, a transpose (moves only), a logarithm's -inf, and a softmax."""
    rng = np.random.default_rng(5)
    weights = numpy_helper.from_array(rng.normal(0, 0.5, (4, 3, 3, 3)).astype(np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["input", "w"], ["conv"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("Log", ["relu"], ["log"]),
        helper.make_node("Mul", ["log", "log"], ["infinite"]),
        helper.make_node("Transpose", ["relu"], ["moved"], perm=[0, 2, 3, 1]),
        helper.make_node("Softmax", ["moved"], ["output"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, (1, 6, 8, 4))],
        [weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def profile_of(path: Path, runtime: str = "onnx") -> Profile:
    return Profile(
        name="n",
        runtime=runtime,
        model=str(path),
        artifacts="/a",
        preprocess=Preprocess(8, 6),
        output=Output("output", "raw", step=0.1),
    )


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_ranges_are_those_of_the_inner_tensors(tmp_path: Path, opset: int) -> None:
    model = network(opset)
    onnx.save(model, tmp_path / "m.onnx")
    picture = np.random.default_rng(1).normal(0, 1, SHAPE).astype(np.float32)

    found = open_inner(profile_of(tmp_path / "m.onnx")).ranges({"input": picture})

    for name in ("conv", "relu"):
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 4, 6, 8)))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, array in zip(
        ("conv", "relu", "output"), session.run(["conv", "relu", "output"], {"input": picture}), strict=True
    ):
        assert found[name] == pytest.approx((array.min(), array.max()), rel=1e-5, abs=1e-6)
    assert found.keys() == {"conv", "relu", "output"}, "nothing that only moves elements, and nothing infinite"


def test_the_model_itself_is_left_as_it_is() -> None:
    model = network()
    made, names = with_reductions(model.SerializeToString())
    again = onnx.load_from_string(made)
    onnx.checker.check_model(model)
    assert names == ["conv", "relu", "infinite", "output"]
    assert [each.op_type for each in again.graph.node[: len(model.graph.node)]] == [n.op_type for n in model.graph.node]
    assert again.graph.initializer[0] == model.graph.initializer[0]
    assert again.opset_import == model.opset_import
    assert len(again.graph.output) == 1 + 2 * len(names)


def test_a_large_network_is_watched_at_evenly_spread_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_ranges, "MOST", 2)
    assert with_reductions(network().SerializeToString())[1] == ["conv", "infinite"]


@pytest.mark.parametrize("runtime", ["onnx", "tflite"])
def test_no_model_is_told(tmp_path: Path, runtime: str) -> None:
    (tmp_path / "m").write_bytes(b"\x3a\xff\xff\xff\xff\x0fno model")
    with pytest.raises(RuntimeFault):
        open_inner(profile_of(tmp_path / "m", runtime))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_give_a_model_or_a_fault(data: bytes) -> None:
    try:
        made, names = with_reductions(data)
    except RuntimeFault:
        return
    assert len(made) >= len(data) or names == []
