"""Networks for the evaluation of the comparison: the demo's, and two built here with weights from fixed seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tidegauge.demo.settings import MODEL

Array = NDArray[Any]


class _Builder:
    """Nodes and weights of a model under construction; every operator returns its output's name."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(seed)

    def const(self, value: Array) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def add(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def conv(self, x: str, fan: int, out: int, name: str, k: int = 3, group: int = 1, stride: int = 1) -> str:
        """He initialisation: the deviation keeps the energy through a ReLU."""
        deviation = np.sqrt(2 * group / (k * k * fan))
        weight = self.random.normal(0, deviation, (out, fan // group, k, k)).astype(np.float32)
        bias = self.random.normal(0, 0.05, out).astype(np.float32)
        shape = {"kernel_shape": [k, k], "pads": [k // 2] * 4, "strides": [stride, stride], "group": group}
        return self.add("Conv", [x, self.const(weight), self.const(bias)], name, **shape)

    def relu(self, x: str, name: str) -> str:
        return self.add("Relu", [x], name)

    def hard_swish(self, x: str, name: str) -> str:
        gate = self.add("HardSigmoid", [x], f"{name}_gate", alpha=1 / 6, beta=0.5)
        return self.add("Mul", [x, gate], name)

    def gemm(self, x: str, fan: int, out: int, name: str) -> str:
        weight = self.random.normal(0, np.sqrt(1 / fan), (fan, out)).astype(np.float32)
        bias = self.random.normal(0, 0.05, out).astype(np.float32)
        return self.add("Gemm", [x, self.const(weight), self.const(bias)], name)

    def save(self, path: Path, shape: Sequence[int], output: str, output_shape: Sequence[int]) -> Path:
        inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)]
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, output_shape)]
        graph = helper.make_graph(self.nodes, "net", inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, path)
        return path


def residual(path: Path) -> Path:
    """ResNet-like: a stem, two residual blocks, one of them with a stride and a projection, pooling, a head."""
    net = _Builder(11)
    x = net.relu(net.conv("input", 3, 16, "stem_conv", stride=2), "stem")
    y = net.relu(net.conv(x, 16, 16, "b1_c1_conv"), "b1_c1")
    x = net.relu(net.add("Add", [net.conv(y, 16, 16, "b1_c2"), x], "b1_add"), "b1")
    y = net.relu(net.conv(x, 16, 32, "b2_c1_conv", stride=2), "b2_c1")
    side = net.conv(x, 16, 32, "b2_side", k=1, stride=2)
    x = net.relu(net.add("Add", [net.conv(y, 32, 32, "b2_c2"), side], "b2_add"), "b2")
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x], "gap")], "flat")
    x = net.add("Softmax", [net.gemm(x, 32, 10, "logits")], "prob", axis=1)
    return net.save(path, (1, 3, 48, 64), x, (1, 10))


def inverted(path: Path) -> Path:
    """Inverted residuals as in MobileNetV3: depthwise, hard-swish (as HardSigmoid and Mul), squeeze-and-excite."""
    net = _Builder(12)
    x = net.hard_swish(net.conv("input", 3, 16, "stem_conv", stride=2), "stem")
    y = net.hard_swish(net.conv(x, 16, 48, "b1_expand_conv", k=1), "b1_expand")
    y = net.hard_swish(net.conv(y, 48, 48, "b1_dw_conv", group=48), "b1_dw")
    s = net.add("GlobalAveragePool", [y], "b1_se_gap")
    s = net.relu(net.conv(s, 48, 16, "b1_se_fc1_conv", k=1), "b1_se_fc1")
    s = net.add("HardSigmoid", [net.conv(s, 16, 48, "b1_se_fc2", k=1)], "b1_se_gate", alpha=1 / 6, beta=0.5)
    y = net.conv(net.add("Mul", [y, s], "b1_se"), 48, 16, "b1_project", k=1)
    x = net.add("Add", [x, y], "b1")
    y = net.hard_swish(net.conv(x, 16, 64, "b2_expand_conv", k=1), "b2_expand")
    y = net.hard_swish(net.conv(y, 64, 64, "b2_dw_conv", group=64, stride=2), "b2_dw")
    x = net.hard_swish(net.conv(y, 64, 32, "b2_project_conv", k=1), "b2_project")
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x], "gap")], "flat")
    return net.save(path, (1, 3, 48, 64), net.gemm(x, 32, 10, "logits"), (1, 10))


def curve(path: Path) -> Path:
    """The demo's low-light enhancer as it is shipped."""
    path.write_bytes(MODEL.read_bytes())
    return path


NETWORKS: dict[str, Callable[[Path], Path]] = {"residual": residual, "inverted": inverted, "curve": curve}


def picture(shape: Sequence[int], seed: int) -> NDArray[np.float32]:
    """Coloured tiles with noise, in 0…1."""
    random = np.random.default_rng(seed)
    tiles = random.uniform(0.1, 0.9, (*shape[:2], 6, 8))
    large = np.kron(tiles, np.ones((1, 1, -(-shape[2] // 6), -(-shape[3] // 8))))[:, :, : shape[2], : shape[3]]
    return np.clip(large + random.normal(0, 0.05, shape), 0, 1).astype(np.float32)
