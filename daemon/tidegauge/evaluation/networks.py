"""Networks for the evaluation of the comparison: the demo's, and four built here with weights from fixed seeds."""

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

    def linear(self, x: str, fan: int, out: int, name: str, gain: float = 1.0) -> str:
        """A matrix product over the last axis, and its bias as a layer of its own, as exporters write it."""
        weight = self.random.normal(0, gain * np.sqrt(1 / fan), (fan, out)).astype(np.float32)
        bias = self.random.normal(0, 0.05, out).astype(np.float32)
        return self.add("Add", [self.add("MatMul", [x, self.const(weight)], f"{name}_product"), self.const(bias)], name)

    def norm(self, x: str, width: int, name: str) -> str:
        scale = self.random.uniform(0.7, 1.3, width).astype(np.float32)
        shift = self.random.normal(0, 0.1, width).astype(np.float32)
        return self.add("LayerNormalization", [x, self.const(scale), self.const(shift)], name, axis=-1)

    def reshape(self, x: str, shape: Sequence[int], name: str) -> str:
        return self.add("Reshape", [x, self.const(np.asarray(shape, np.int64))], name)

    def swap(self, x: str, order: Sequence[int], name: str) -> str:
        return self.add("Transpose", [x], name, perm=list(order))

    def save(
        self, path: Path, shape: Sequence[int], output: str, output_shape: Sequence[int], **more: Sequence[int]
    ) -> Path:
        """`more`: other outputs and their shapes."""
        inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)]
        shapes = {output: output_shape, **more}
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in shapes.items()]
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
    """The demo's low-light enhancer with the weights that are shipped, on smaller pictures."""
    model = onnx.load(MODEL)
    del model.graph.value_info[:]
    for tensor in (*model.graph.input, *model.graph.output):
        dims = tensor.type.tensor_type.shape.dim
        dims[2].dim_value, dims[3].dim_value = 48, 64
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def detector(path: Path) -> Path:
    """Single-shot detector: two scales, a box and a class head each, concatenated over all anchors."""
    net, anchors, classes = _Builder(13), 3, 5
    x = net.relu(net.conv("input", 3, 16, "c1_conv", stride=2), "c1")
    fine = net.relu(net.conv(x, 16, 24, "c2_conv", stride=2), "c2")
    x = net.relu(net.conv(fine, 24, 24, "c3_dw_conv", group=24), "c3_dw")
    coarse = net.relu(net.conv(x, 24, 32, "c3_conv", stride=2), "c3")
    parts: dict[str, list[str]] = {"box": [], "class": []}
    for scale, (source, fan, places) in enumerate(((fine, 24, 12 * 16), (coarse, 32, 6 * 8))):
        for kind, size in (("box", 4), ("class", classes)):
            head = net.conv(source, fan, anchors * size, f"head{scale}_{kind}")
            moved = net.swap(head, (0, 2, 3, 1), f"head{scale}_{kind}_last")
            parts[kind].append(net.reshape(moved, (1, places * anchors, size), f"head{scale}_{kind}_rows"))
    boxes = net.add("Concat", parts["box"], "boxes", axis=1)
    scores = net.add("Sigmoid", [net.add("Concat", parts["class"], "logits", axis=1)], "scores")
    total = (12 * 16 + 6 * 8) * anchors
    return net.save(path, (1, 3, 48, 64), scores, (1, total, classes), **{boxes: (1, total, 4)})


def transformer(path: Path) -> Path:
    """One transformer block on patches: attention with four heads, layer normalisation, a feed-forward network."""
    net, tokens, width, heads = _Builder(14), 48, 32, 4
    x = net.reshape(net.conv("input", 3, width, "patches", k=9, stride=8), (1, width, tokens), "patches_flat")
    x = net.swap(x, (0, 2, 1), "tokens")
    y = net.norm(x, width, "norm1")
    split = {
        name: net.reshape(net.linear(y, width, width, name, 1.5), (1, tokens, heads, width // heads), f"{name}_split")
        for name in ("query", "key", "value")
    }
    query, value = (net.swap(split[n], (0, 2, 1, 3), f"{n}_heads") for n in ("query", "value"))
    key = net.swap(split["key"], (0, 2, 3, 1), "key_heads")
    scale = net.const(np.asarray([(width // heads) ** -0.5], np.float32))
    scores = net.add("Mul", [net.add("MatMul", [query, key], "scores"), scale], "scores_scaled")
    mixed = net.add("MatMul", [net.add("Softmax", [scores], "attention", axis=-1), value], "mixed")
    mixed = net.reshape(net.swap(mixed, (0, 2, 1, 3), "mixed_last"), (1, tokens, width), "mixed_rows")
    x = net.add("Add", [x, net.linear(mixed, width, width, "project")], "attended")
    y = net.relu(net.linear(net.norm(x, width, "norm2"), width, 64, "wide_sum"), "wide")
    x = net.add("Add", [x, net.linear(y, 64, width, "narrow")], "block")
    x = net.reshape(net.swap(x, (0, 2, 1), "block_last"), (1, width, 6, 8), "block_map")
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x], "gap")], "flat")
    return net.save(path, (1, 3, 48, 64), net.gemm(x, width, 10, "logits"), (1, 10))


NETWORKS: dict[str, Callable[[Path], Path]] = {
    "residual": residual,
    "inverted": inverted,
    "curve": curve,
    "detector": detector,
    "transformer": transformer,
}


def picture(shape: Sequence[int], seed: int) -> NDArray[np.float32]:
    """Coloured tiles with noise, in 0…1."""
    random = np.random.default_rng(seed)
    tiles = random.uniform(0.1, 0.9, (*shape[:2], 6, 8))
    large = np.kron(tiles, np.ones((1, 1, -(-shape[2] // 6), -(-shape[3] // 8))))[:, :, : shape[2], : shape[3]]
    return np.clip(large + random.normal(0, 0.05, shape), 0, 1).astype(np.float32)
