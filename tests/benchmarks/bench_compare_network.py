"""A network of 250 layers for the benchmark of the comparison, compiled and run on the virtual board."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.network import load_artifacts
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.tracing import content, file_name, kinds

Array = NDArray[Any]
#: Channels and blocks of each stage; a block is a 1×1, a depthwise and a 1×1 convolution, and an addition.
STAGES = ((32, 13), (64, 14), (128, 16), (256, 16))


def build(path: Path, side: int) -> int:
    """Write the model, an input of `side`²; returns the number of its traced layers, about 250."""
    random = np.random.default_rng(5)
    nodes: list[Any] = []
    weights: list[Any] = []

    def conv(x: str, name: str, fan: int, out: int, k: int, group: int = 1, stride: int = 1, relu: bool = True) -> str:
        # What is added to a block's input is small, else values grow from block to block beyond what a table can say.
        deviation = np.sqrt(2 * group / (k * k * fan)) * (1.0 if relu else 0.2)
        weight = random.normal(0, deviation, (out, fan // group, k, k)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"{name}.w"))
        weights.append(numpy_helper.from_array(random.normal(0, 0.02, out).astype(np.float32), f"{name}.b"))
        result = f"{name}_conv" if relu else name
        shape = {"kernel_shape": [k, k], "pads": [k // 2] * 4, "strides": [stride, stride], "group": group}
        nodes.append(helper.make_node("Conv", [x, f"{name}.w", f"{name}.b"], [result], **shape))
        if relu:
            nodes.append(helper.make_node("Relu", [result], [name]))
        return name

    x, fan, layers = "input", 3, 0
    for stage, (channels, blocks) in enumerate(STAGES):
        x = conv(x, f"s{stage}_down", fan, channels, 3, stride=2)
        fan, layers = channels, layers + 1
        for block in range(blocks):
            name = f"s{stage}_b{block}"
            y = conv(x, f"{name}_expand", channels, channels, 1)
            y = conv(y, f"{name}_dw", channels, channels, 3, group=channels)
            y = conv(y, f"{name}_project", channels, channels, 1, relu=False)
            nodes.append(helper.make_node("Add", [x, y], [f"{name}_add"]))
            x = f"{name}_add"
            layers += 4
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["gap"]))
    nodes.append(helper.make_node("Flatten", ["gap"], ["flat"]))
    weights.append(numpy_helper.from_array(random.normal(0, 0.05, (256, 10)).astype(np.float32), "fc.w"))
    weights.append(numpy_helper.from_array(np.zeros(10, np.float32), "fc.b"))
    nodes.append(helper.make_node("Gemm", ["flat", "fc.w", "fc.b"], ["logits"]))
    used = {name for node in nodes for name in node.input}
    inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, side, side])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 10])]
    graph = helper.make_graph(nodes, "bench", inputs, outputs, [w for w in weights if w.name in used])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return layers + 3


def capture(folder: Path, side: int) -> int:
    """Model, artifacts, input and the traces of one healthy run in `folder`; returns the bytes of the traces."""
    folder.mkdir(parents=True)
    build(folder / "net.onnx", side)
    value = np.random.default_rng(1).uniform(0, 1, (1, 3, side, side)).astype(np.float32)
    options = CompileOptions(calibration_frames=1)
    compile_model(folder / "net.onnx", folder / "artifacts", [{"input": value}], options)
    network = load_artifacts(folder / "artifacts")
    traces = folder / "traces"
    traces.mkdir()
    tensors = Twin(network).run({"input": value}, [layer.name for layer in network.tensors()])
    for layer in network.tensors():
        (kind,) = kinds(layer, 1)
        data = content(layer, tensors.pop(layer.name), kind)
        (traces / file_name(layer, "subgraph_0", kind)).write_bytes(data)
    np.save(folder / "input.npy", value)
    return sum(path.stat().st_size for path in traces.iterdir())
