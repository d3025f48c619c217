"""A small enhancer with random weights, of the demo's structure, and boards to run it on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tidegauge.virtualboard import remote_log
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.state import VARIABLE, BoardState

HEIGHT, WIDTH, FEATURES, STEPS = 24, 32, 8, 2


def random_enhancer() -> onnx.ModelProto:
    """input → convs with skip concats → tanh → slices → x + r(x² - x), twice → enhanced."""
    rng = np.random.default_rng(5)
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def const(name: str, value: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(value, name))
        return name

    def conv(name: str, source: str, ins: int, outs: int) -> str:
        spread = (2.0 / (ins * 9)) ** 0.5
        weights = const(f"{name}.weight", rng.normal(0, spread, (outs, ins, 3, 3)).astype(np.float32))
        bias = const(f"{name}.bias", rng.normal(0, 0.05, outs).astype(np.float32))
        nodes.append(helper.make_node("Conv", [source, weights, bias], [f"{name}_out"], pads=[1] * 4))
        return f"{name}_out"

    def node(op: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    first = node("Relu", [conv("conv1", "input", 3, FEATURES)], "relu1")
    second = node("Relu", [conv("conv2", first, FEATURES, FEATURES)], "relu2")
    skip = node("Concat", [first, second], "skip", axis=1)
    curves = node("Tanh", [conv("conv3", skip, 2 * FEATURES, 3 * STEPS)], "curves")
    image = "input"
    for step in range(STEPS):
        bounds = [const(f"b{step}.{k}", np.array([v], np.int64)) for k, v in enumerate((3 * step, 3 * step + 3, 1))]
        rate = node("Slice", [curves, *bounds], f"rate{step}")
        square = node("Mul", [image, image], f"square{step}")
        bend = node("Mul", [rate, node("Sub", [square, image], f"bend{step}")], f"change{step}")
        image = node("Add", [image, bend], "enhanced" if step == STEPS - 1 else f"image{step}")
    shape = [1, 3, HEIGHT, WIDTH]
    graph = helper.make_graph(
        nodes,
        "enhancer",
        [helper.make_tensor_value_info("input", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("enhanced", onnx.TensorProto.FLOAT, shape)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def frames(count: int, seed: int = 1) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    rows = np.linspace(0, 1, HEIGHT, dtype=np.float32)[None, None, :, None]
    made = []
    for _ in range(count):
        tint = rng.uniform(0.2, 1.0, (1, 3, 1, 1)).astype(np.float32)
        noise = rng.uniform(0, 0.4, (1, 3, HEIGHT, WIDTH)).astype(np.float32)
        made.append({"input": np.clip(rows * tint * 0.6 + noise, 0, 1).astype(np.float32)})
    return made


@pytest.fixture(scope="session")
def enhancer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "enhancer.onnx"
    onnx.save(random_enhancer(), path)
    return path


@pytest.fixture(scope="session")
def calibration() -> list[dict[str, np.ndarray]]:
    return frames(4)


@pytest.fixture(scope="session")
def picture() -> dict[str, np.ndarray]:
    return frames(1, seed=9)[0]


@pytest.fixture(scope="session")
def artifacts(
    tmp_path_factory: pytest.TempPathFactory, enhancer: Path, calibration: list[dict[str, np.ndarray]]
) -> Path:
    folder = tmp_path_factory.mktemp("compiled") / "artifacts"
    options = CompileOptions(
        quantization_scale_type=4, output_feature_16bit_names_list=("enhanced",), calibration_frames=4
    )
    compile_model(enhancer, folder, calibration, options)
    return folder


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "board"
    traces = tmp_path / "tmp"
    traces.mkdir()
    BoardState(trace_folder=str(traces)).save(folder)
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


@pytest.fixture
def log_server(board: Path) -> Iterator[BytesIO]:
    """A remote-log server of the board; what it printed."""
    stop, ready, out = threading.Event(), threading.Event(), BytesIO()
    thread = threading.Thread(target=remote_log.serve, args=(board, out, stop, ready))
    thread.start()
    assert ready.wait(5)
    yield out
    stop.set()
    thread.join(5)
    assert not thread.is_alive()
