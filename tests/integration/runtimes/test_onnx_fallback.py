"""ONNX Runtime's own silent fallback to the CPU, as its Python code does it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from integration.runtimes import ort_with_broken_provider
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.runtimes.factory import open_device
from tidegauge.tidl import io_descriptor, net_header
from tidegauge.tidl.io_descriptor import IoDescriptor, IoInput, IoOutput
from tidegauge.tidl.offload import NotOffloaded


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    folder = tmp_path / "artifacts"
    folder.mkdir()
    dims = (1, 1, 1, 3, 4, 5)
    descriptor = IoDescriptor(
        (IoInput("x", 0, dims, "float32", 1.0, 0),), (IoOutput("y", 2, dims, "float32", 1.0, 0, valid_dims=4),)
    )
    (folder / "allowedNode.txt").write_text("1\n1\n0\n")
    (folder / "onnxrtMetaData.txt").write_text(
        "numGraphNodes=1\n0:subGraphName=subgraph_0\n0:numInputs=1\n0:numOutputs=1\n0:inDataNames=x\n0:outDataNames=y\n"
    )
    (folder / "subgraph_0_tidl_net.bin").write_bytes(net_header.pack(0x20250821) + bytes(64))
    (folder / "subgraph_0_tidl_io_1.bin").write_bytes(io_descriptor.pack(descriptor))
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 4, 5]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "tiny", tensors[:1], tensors[1:])
    model = tmp_path / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    return Profile("tiny", "onnx", str(model), str(folder), Preprocess(width=5, height=4), Output("y", "raw", 0.1))


def test_the_fallback_is_caught_when_the_session_opens(profile: Profile, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotOffloaded, match=r"to the CPU \(EP Error TIDL_populateOptions failed when using"):
        open_device(profile, "integration.runtimes.ort_with_broken_provider")
    printed = capsys.readouterr().out
    assert "Falling back to ['CPUExecutionProvider'] and retrying." in printed, "the worker's log keeps the words"


def test_without_us_nobody_would_notice(profile: Profile, capsys: pytest.CaptureFixture[str]) -> None:
    """The premise: a session comes back, without an exception, and on the CPU."""
    providers = ["TIDLExecutionProvider", "CPUExecutionProvider"]
    session = ort_with_broken_provider.InferenceSession(
        profile.model, providers=providers, provider_options=[{"artifacts_folder": profile.artifacts}, {}]
    )
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert "EP Error" in capsys.readouterr().out
