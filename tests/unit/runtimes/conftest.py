"""Fakes of the accelerator's runtimes (the accelerator alone is faked), a tiny ONNX model, an artifacts folder.

The fakes record their calls and fail as TI's runtimes do: a silent fallback to the CPU, missing time stamps, exceptions
that derive from Exception only, a delegate that hides a failed create.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.tidl import io_descriptor, net_header
from tidegauge.tidl.io_descriptor import IoDescriptor, IoInput, IoOutput

STAMPS = {
    "ts:run_start": 1_000,
    "ts:run_end": 9_000,
    "ddr:read_start": 0,
    "ddr:read_end": 0,
    "ts:subgraph_subgraph_0_copy_in_start": 2_000,
    "ts:subgraph_subgraph_0_proc_start": 3_000,
    "ts:subgraph_subgraph_0_proc_end": 7_000,
}
ONLY_RUN = {key: value for key, value in STAMPS.items() if "subgraph" not in key}


class FakeFail(Exception):
    """As onnxruntime_pybind11_state.Fail: no RuntimeError."""


class FakeOnnxTidl(ModuleType):
    """Call shapes of TI's onnxruntime. `failure`: "", "fallback", "no_stamps", "create", "run", "stock"."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, Any]] = []
        self.failure = ""
        self.output_shape: list[object] = [1, 3, 4, 5]
        self.input_shape: list[object] = [1, 3, 4, 5]
        self.answer: Callable[[Any], Any] = lambda x: x * np.float32(2)
        self.GraphOptimizationLevel = SimpleNamespace(ORT_DISABLE_ALL=0, ORT_ENABLE_ALL=99)

    def get_available_providers(self) -> list[str]:
        return (
            ["CPUExecutionProvider"] if self.failure == "stock" else ["TIDLExecutionProvider", "CPUExecutionProvider"]
        )

    def SessionOptions(self) -> SimpleNamespace:
        return SimpleNamespace()

    def InferenceSession(self, *args: Any, **kwargs: Any) -> FakeOnnxSession:
        self.calls.append(("InferenceSession", (args, kwargs)))
        if self.failure == "create":
            raise FakeFail("[ONNXRuntimeError] : 1 : FAIL : Create state function failed. Return value:-1")
        return FakeOnnxSession(self)


class FakeOnnxSession:
    def __init__(self, runtime: FakeOnnxTidl) -> None:
        self._runtime = runtime

    def get_inputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name="x", shape=self._runtime.input_shape, type="tensor(float)")]

    def get_outputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name="y", shape=self._runtime.output_shape, type="tensor(float)")]

    def get_providers(self) -> list[str]:
        cpu = ["CPUExecutionProvider"]
        return cpu if self._runtime.failure == "fallback" else ["TIDLExecutionProvider", *cpu]

    def get_TI_benchmark_data(self) -> dict[str, int]:
        return ONLY_RUN if self._runtime.failure in ("fallback", "no_stamps") else STAMPS

    def run(self, names: list[str], feed: dict[str, Any]) -> list[Any]:
        self._runtime.calls.append(("run", (names, feed)))
        if self._runtime.failure == "run":
            raise FakeFail("TIDL Compute Invoke Failed.")
        return [self._runtime.answer(feed["x"])]


class FakeTfliteTidl(ModuleType):
    """Call shapes of TI's tflite_runtime.interpreter. `failure`: "", "no_delegate", "no_nodes", "zeros", "run"."""

    class OpResolverType(Enum):
        AUTO = 0
        BUILTIN_WITHOUT_DEFAULT_DELEGATES = 3

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, Any]] = []
        self.failure = ""

    def load_delegate(self, library: str, options: dict[str, str] | None = None) -> object:
        self.calls.append(("load_delegate", (library, options)))
        if self.failure == "no_delegate":
            raise OSError(f"{library}: cannot open shared object file: No such file or directory")
        return SimpleNamespace(library=library)

    def Interpreter(self, *args: Any, **kwargs: Any) -> FakeInterpreter:
        self.calls.append(("Interpreter", (args, kwargs)))
        return FakeInterpreter(self)


class FakeInterpreter:
    def __init__(self, runtime: FakeTfliteTidl) -> None:
        self._runtime = runtime
        self._input = np.zeros((1, 4, 4, 3), np.uint8)
        self._output = self._input

    def allocate_tensors(self) -> None:
        self._runtime.calls.append(("allocate_tensors", ()))

    def get_input_details(self) -> list[dict[str, Any]]:
        return [{"name": "x", "index": 0, "shape": np.array([1, 4, 4, 3]), "dtype": np.uint8}]

    def get_output_details(self) -> list[dict[str, Any]]:
        return [{"name": "y", "index": 9, "shape": np.array([1, 4, 4, 3]), "dtype": np.uint8}]

    def set_tensor(self, index: int, value: Any) -> None:
        assert index == 0
        self._input = value

    def invoke(self) -> None:
        if self._runtime.failure == "run":
            raise RuntimeError("Node number 1 (TIDLDelegate) failed to invoke.")
        self._output = self._input * (0 if self._runtime.failure == "zeros" else 2)

    def get_tensor(self, index: int) -> Any:
        assert index == 9
        return self._output.copy()

    def _get_ops_details(self) -> list[dict[str, str]]:
        return [{"op_name": "CONV_2D" if self._runtime.failure == "no_nodes" else "DELEGATE"}]

    def get_TI_benchmark_data(self) -> dict[str, int]:
        # A create that failed leaves its stamps at zero.
        return dict.fromkeys(STAMPS, 0) if self._runtime.failure == "zeros" else STAMPS


@pytest.fixture
def fake_onnx(monkeypatch: pytest.MonkeyPatch) -> FakeOnnxTidl:
    runtime = FakeOnnxTidl("fake_onnxruntime_tidl")
    state = ModuleType("fake_onnxruntime_tidl.capi.onnxruntime_pybind11_state")
    state.Fail = FakeFail  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, runtime.__name__, runtime)
    monkeypatch.setitem(sys.modules, state.__name__, state)
    return runtime


@pytest.fixture
def fake_tflite(monkeypatch: pytest.MonkeyPatch) -> FakeTfliteTidl:
    runtime = FakeTfliteTidl("fake_tflite_tidl")
    monkeypatch.setitem(sys.modules, runtime.__name__, runtime)
    return runtime


def make_model(path: Path, shape: list[int | str], output: list[int | str] | None = None) -> Path:
    """y = relu(x * 2 - 1), opset 17."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["m"]),
        helper.make_node("Sub", ["m", "one"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output or shape)],
        [
            helper.make_tensor("two", TensorProto.FLOAT, [], [2.0]),
            helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    folder = tmp_path / "artifacts"
    folder.mkdir()
    dims = (1, 1, 1, 3, 4, 5)
    descriptor = IoDescriptor(
        (IoInput("x", 0, dims, "float32", 1.0, 0),), (IoOutput("y", 2, dims, "float32", 1.0, 0, valid_dims=4),)
    )
    (folder / "allowedNode.txt").write_text("1\n3\n0\n1\n2\n")
    (folder / "onnxrtMetaData.txt").write_text(
        "numGraphNodes=3\n0:subGraphName=subgraph_0\n0:numInputs=1\n0:numOutputs=1\n0:inDataNames=x\n0:outDataNames=y\n"
    )
    (folder / "subgraph_0_tidl_net.bin").write_bytes(net_header.pack(0x20250821) + bytes(64))
    (folder / "subgraph_0_tidl_io_1.bin").write_bytes(io_descriptor.pack(descriptor))
    return folder


def profile(model: Path, artifacts: Path, runtime: Any = "onnx") -> Profile:
    return Profile(
        name="tiny",
        runtime=runtime,
        model=str(model),
        artifacts=str(artifacts),
        preprocess=Preprocess(width=5, height=4),
        output=Output(name="y", kind="raw", step=0.1),
    )


@pytest.fixture
def onnx_profile(tmp_path: Path, artifacts: Path) -> Profile:
    return profile(make_model(tmp_path / "tiny.onnx", [1, 3, 4, 5]), artifacts)


@pytest.fixture
def tflite_profile(tmp_path: Path, artifacts: Path) -> Profile:
    model = tmp_path / "tiny.tflite"
    model.write_bytes(b"the fake reads no model")
    return profile(model, artifacts, "tflite")


@pytest.fixture
def model_maker() -> Callable[..., Path]:
    return make_model


@pytest.fixture
def profile_maker() -> Callable[..., Profile]:
    return profile
