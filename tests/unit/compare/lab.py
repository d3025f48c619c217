"""Small models, compiled for the virtual board and traced on it, for the tests of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tidegauge.compare import Comparison, compare, open_source
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.network import load_artifacts
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.tracing import file_name, kinds

Array = NDArray[Any]


class Net:
    """Nodes and weights of a model under construction; every operator returns its output's name."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.random = np.random.default_rng(seed)

    def const(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def conv(
        self, x: str, fan: int, out: int, name: str, k: int = 3, group: int = 1, relu: bool = True, **more: Any
    ) -> str:
        gain = more.pop("gain", 1.0)
        deviation = gain * np.sqrt(2 * group / (k * k * fan))
        weight = self.random.normal(0, deviation, (out, fan // group, k, k)).astype(np.float32)
        bias = self.random.normal(0, 0.05, out).astype(np.float32)
        inputs, output = [x, self.const(weight), self.const(bias)], f"{name}_conv" if relu else name
        self.add("Conv", inputs, output, kernel_shape=[k, k], pads=[k // 2] * 4, group=group, **more)
        return self.add("Relu", [output], name) if relu else output

    def norm(self, x: str, channels: int, name: str) -> str:
        low, high = (0.5, 1.5), (0, 0.1)
        values = [self.random.uniform(*low, channels), self.random.normal(*high, channels)]
        values += [self.random.normal(*high, channels), self.random.uniform(*low, channels)]
        return self.add("BatchNormalization", [x, *(self.const(v.astype(np.float32)) for v in values)], name)

    def save(self, path: Path, shape: Sequence[int], output: str, output_shape: Sequence[int]) -> Path:
        inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)]
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, output_shape)]
        graph = helper.make_graph(self.nodes, "net", inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, path)
        return path


def enhancer(path: Path) -> Path:
    """A curve estimator like Zero-DCE: convolutions with skips, Tanh, rounds of x + r·(x² − x)."""
    net, shape = Net(0), (1, 3, 48, 64)
    c1 = net.conv("input", 3, 12, "/enc/c1/Relu_output_0")
    c2 = net.conv(c1, 12, 12, "/enc/c2/Relu_output_0")
    c3 = net.conv(net.add("Concat", [c1, c2], "/dec/Concat_output_0", axis=1), 24, 12, "/dec/c3/Relu_output_0")
    r = net.add("Tanh", [net.conv(c3, 12, 6, "/dec/c4/Conv_output_0", relu=False, gain=0.15)], "/Tanh_output_0")
    x = "input"
    for i in range(2):
        bounds = [net.const(np.array([n])) for n in (3 * i, 3 * i + 3, 1)]
        part = net.add("Slice", [r, *bounds], f"/Slice_{i}_output_0")
        curve = net.add("Sub", [net.add("Mul", [x, x], f"/Mul_{i}_output_0"), x], f"/Sub_{i}_output_0")
        x = net.add(
            "Add", [x, net.add("Mul", [part, curve], f"/Mul_{i}b_output_0")], "enhanced" if i else "/Add_output_0"
        )
    return net.save(path, shape, "enhanced", shape)


def classifier(path: Path) -> Path:
    """Depthwise convolution, folded batch norm, squeeze-and-excite, residual, pooling, Gemm, Softmax."""
    net = Net(1)
    x = net.conv("input", 3, 16, "stem", strides=[2, 2])
    y = net.conv(x, 16, 16, "dw", group=16)
    y = net.norm(net.conv(y, 16, 16, "pw", k=1, relu=False), 16, "bn")
    s = net.add("GlobalAveragePool", [y], "se_gap")
    s = net.conv(net.conv(s, 16, 8, "se_fc1", k=1), 8, 16, "se_fc2", k=1, relu=False)
    y = net.add("Mul", [y, net.add("Sigmoid", [s], "se_sig")], "se_scale")
    x = net.add("Relu", [net.add("Add", [x, y], "add")], "out")
    x = net.add("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
    x = net.add("Flatten", [net.add("GlobalAveragePool", [net.conv(x, 16, 32, "head")], "gap")], "flat")
    weight = net.random.normal(0, 0.2, (32, 10)).astype(np.float32)
    x = net.add("Gemm", [x, net.const(weight), net.const(np.zeros(10, np.float32))], "logits")
    return net.save(path, (1, 3, 48, 48), net.add("Softmax", [x], "prob", axis=1), (1, 10))


def segmenter(path: Path) -> Path:
    """A small U-net: pooling, both kinds of Resize, Concat, LeakyRelu, Sigmoid."""
    net = Net(2)
    a = net.conv("input", 3, 8, "e1")
    c = net.conv(net.add("MaxPool", [a], "p1", kernel_shape=[2, 2], strides=[2, 2]), 8, 16, "e2")
    d = net.conv(net.add("AveragePool", [c], "p2", kernel_shape=[2, 2], strides=[2, 2]), 16, 16, "mid")
    twice = net.const(np.array([1, 1, 2, 2], np.float32))
    u = net.add("Concat", [net.add("Resize", [d, "", twice], "up1", mode="linear"), c], "cat1", axis=1)
    u = net.add("Resize", [net.conv(u, 32, 8, "d1"), "", twice], "up2", mode="nearest")
    f = net.conv(net.add("Concat", [u, a], "cat2", axis=1), 16, 8, "d2", relu=False)
    f = net.conv(net.add("LeakyRelu", [f], "d2_leaky", alpha=0.1), 8, 3, "logit", k=1, relu=False)
    return net.save(path, (1, 3, 40, 56), net.add("Sigmoid", [f], "mask"), (1, 3, 40, 56))


MODELS = {"enhancer": enhancer, "classifier": classifier, "segmenter": segmenter}

OPTIONS: dict[str, dict[str, Any]] = {
    "8 bit": {},
    "8 bit per channel": {"quantization_scale_type": 4},
    "16 bit": {"tensor_bits": 16},
    "mixed": {
        "output_feature_16bit_names_list": ("/dec/c3/Relu_output_0", "se_gap", "out", "d1", "up1"),
        "params_16bit_names_list": ("/enc/c2/Relu_output_0", "e2", "stem"),
    },
}


def picture(shape: Sequence[int], seed: int) -> NDArray[np.float32]:
    """Coloured tiles with noise, in 0…1."""
    random = np.random.default_rng(seed)
    tiles = random.uniform(0.1, 0.9, (*shape[:2], 6, 8))
    large = np.kron(tiles, np.ones((1, 1, -(-shape[2] // 6), -(-shape[3] // 8))))[:, :, : shape[2], : shape[3]]
    return np.clip(large + random.normal(0, 0.05, shape), 0, 1).astype(np.float32)


@dataclass
class Board:
    """A compiled model on the virtual board, and a calibrated input."""

    model: Path
    artifacts: Path
    root: Path
    shape: tuple[int, ...]

    def trace(self, faults: Sequence[Fault] = (), value: Array | None = None, name: str = "traces") -> Path:
        """A folder with the traces of one run as the C7x writes them, and the input tensor."""
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        value = picture(self.shape, 3) if value is None else value
        network = load_artifacts(self.artifacts)
        tensors = Twin(network, tuple(faults)).run({"input": value}, [layer.name for layer in network.tensors()])
        for layer in network.tensors():
            (kind,) = kinds(layer, 1)
            (folder / file_name(layer, "subgraph_0", kind)).write_bytes(tensors[layer.name].tobytes())
        np.save(folder / "input.npy", value)
        return folder

    def compare(self, faults: Sequence[Fault] = (), value: Array | None = None, **more: Any) -> Comparison:
        return self.compare_folder(self.trace(faults, value), **more)

    def compare_folder(self, folder: Path, **more: Any) -> Comparison:
        inputs = [str(folder / "input.npy")]
        with open_source(folder, model=self.model, tempdir=self.artifacts, inputs=inputs) as source:
            return compare(source, **more)

    def trace_of(self, folder: Path, layer: str) -> Path:
        """The trace file of a layer."""
        found = load_artifacts(self.artifacts).layer(layer)
        (kind,) = kinds(found, 1)
        return folder / file_name(found, "subgraph_0", kind)


def build(root: Path, model: str, options: str = "8 bit") -> Board:
    """Compile one of `MODELS` with one of `OPTIONS`."""
    root.mkdir(parents=True, exist_ok=True)
    path = MODELS[model](root / f"{model}.onnx")
    dims = onnx.load(path).graph.input[0].type.tensor_type.shape.dim
    shape = tuple(d.dim_value for d in dims)
    frames = [{"input": picture(shape, seed)} for seed in range(4)]
    compile_model(path, root / "artifacts", frames, CompileOptions(calibration_frames=4, **OPTIONS[options]))
    return Board(path, root / "artifacts", root, shape)
