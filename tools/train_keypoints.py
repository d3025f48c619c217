# /// script
# requires-python = ">=3.11"
# dependencies = ["jax[cpu]==0.10.2", "optax==0.2.8", "onnx>=1.17", "numpy>=1.26", "msgspec>=0.19"]
# ///
"""Train the key-point network of the story `sdk-upgrade` and write it as ONNX.

    PYTHONPATH=daemon uv run tools/train_keypoints.py [--steps 4000] [--out daemon/tidegauge/demo/data]

Five points of a face and its pose, from faces that `tidegauge.demo.story_faces` draws. Two global average pools: one in
a squeeze-and-excite block (Hu et al., "Squeeze-and-Excitation Networks", CVPR 2018), one in the classification head.

Rerun, it gives the same weights on the same machine and library versions; other CPUs may round differently.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import optax
from onnx import TensorProto, helper, numpy_helper

from tidegauge.demo.story_faces import POSES, SIDE, Faces, draw, error_pixels

SEED = 20250606
BATCH = 32
#: name, inputs, outputs, kernel.
CONVS = (
    ("conv1", 3, 16, 3),
    ("conv2", 16, 24, 3),
    ("conv3", 24, 32, 3),
    ("conv4", 32, 48, 3),
    ("se.reduce", 48, 16, 1),
    ("se.expand", 16, 48, 1),
    ("points.conv", 48, 24, 1),
    ("pose.conv", 48, 48, 3),
)
DENSE = (("points.fc", 24 * 64, 10), ("pose.fc", 48, len(POSES)))

Params = dict[str, dict[str, Any]]


def initial(rng: np.random.Generator) -> Params:
    params: Params = {}
    for name, fan, out, k in CONVS:
        weight = rng.normal(0, np.sqrt(2 / (k * k * fan)), (out, fan, k, k))
        params[name] = {"w": jnp.asarray(weight, jnp.float32), "b": jnp.zeros(out, jnp.float32)}
    for name, fan, out in DENSE:
        weight = rng.normal(0, np.sqrt(0.3 / fan), (fan, out))
        params[name] = {"w": jnp.asarray(weight, jnp.float32), "b": jnp.full(out, 0.5 if out == 10 else 0.0)}
    return params


def conv(layer: dict[str, Any], x: Any, stride: int = 1) -> Any:
    pad = layer["w"].shape[-1] // 2
    dims = ("NCHW", "OIHW", "NCHW")
    y = jax.lax.conv_general_dilated(x, layer["w"], (stride, stride), [(pad, pad)] * 2, dimension_numbers=dims)
    return y + layer["b"][None, :, None, None]


def forward(params: Params, x: Any) -> tuple[Any, Any]:
    """Pictures (n, 3, 64, 64) to points (n, 10) and logits (n, 3)."""
    x = jax.nn.relu(conv(params["conv1"], x, 2))
    x = jax.nn.relu(conv(params["conv2"], x, 2))
    x = jax.nn.relu(conv(params["conv3"], x))
    x = jax.nn.relu(conv(params["conv4"], x, 2))
    gate = x.mean((2, 3), keepdims=True)
    x = x * jax.nn.sigmoid(conv(params["se.expand"], jax.nn.relu(conv(params["se.reduce"], gate))))
    points = jax.nn.relu(conv(params["points.conv"], x)).reshape(x.shape[0], -1)
    pose = jax.nn.relu(conv(params["pose.conv"], x)).mean((2, 3))
    points = points @ params["points.fc"]["w"] + params["points.fc"]["b"]
    return points, pose @ params["pose.fc"]["w"] + params["pose.fc"]["b"]


def train(steps: int) -> Params:
    rng = np.random.default_rng(SEED)
    params = initial(rng)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 2e-3, steps // 20, steps, 1e-5)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=1e-3))
    state = optimiser.init(params)

    def loss(params: Params, pictures: Any, points: Any, poses: Any) -> Any:
        got, logits = forward(params, pictures)
        distance = jnp.sqrt(((got.reshape(-1, 5, 2) - points) ** 2).sum(-1) + 1e-6).mean()
        return 10 * distance + 0.5 * optax.softmax_cross_entropy_with_integer_labels(logits, poses).mean()

    @jax.jit
    def step(params: Params, state: Any, pictures: Any, points: Any, poses: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, pictures, points, poses)
        updates, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    for index in range(steps):
        faces = draw(rng, BATCH)
        params, state, value = step(params, state, faces.pictures, faces.points, faces.poses)
        if (index + 1) % 500 == 0:
            print(f"step {index + 1}: loss {float(value):.4f}", flush=True)
    return params


class Graph:
    """Nodes and constants of the ONNX graph, with names as an exporter would give them."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    def node(self, op: str, scope: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        name = f"/{scope}/{op}"
        output = output or f"{name}_output_0"
        self.nodes.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        return output

    def conv(self, name: str, x: str, stride: int = 1, relu: bool = True) -> str:
        layer, scope = self.params[name], name.replace(".", "/")
        weight, bias = (self.constant(f"{name}.{word}", layer[key]) for word, key in (("weight", "w"), ("bias", "b")))
        k = layer["w"].shape[-1]
        shape = {"kernel_shape": [k, k], "pads": [k // 2] * 4, "strides": [stride, stride]}
        y = self.node("Conv", scope, [x, weight, bias], **shape)
        return self.node("Relu", scope, [y]) if relu else y

    def dense(self, name: str, x: str, output: str = "") -> str:
        layer = self.params[name]
        weight, bias = (self.constant(f"{name}.{word}", layer[key]) for word, key in (("weight", "w"), ("bias", "b")))
        return self.node("Gemm", name.replace(".", "/"), [x, weight, bias], output)


def to_onnx(params: Params) -> onnx.ModelProto:
    graph = Graph(params)
    x = graph.conv("conv2", graph.conv("conv1", "input", 2), 2)
    x = graph.conv("conv4", graph.conv("conv3", x), 2)
    gate = graph.conv("se.reduce", graph.node("GlobalAveragePool", "se", [x]))
    gate = graph.node("Sigmoid", "se", [graph.conv("se.expand", gate, relu=False)])
    x = graph.node("Mul", "se", [x, gate])
    points = graph.node("Flatten", "points", [graph.conv("points.conv", x)])
    graph.dense("points.fc", points, "points")
    pose = graph.node("GlobalAveragePool", "pose", [graph.conv("pose.conv", x)])
    pose = graph.dense("pose.fc", graph.node("Flatten", "pose", [pose]))
    graph.node("Softmax", "pose", [pose], "pose", axis=1)
    proto = helper.make_graph(
        graph.nodes,
        "keypoints",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
        [
            helper.make_tensor_value_info("points", TensorProto.FLOAT, [1, 10]),
            helper.make_tensor_value_info("pose", TensorProto.FLOAT, [1, len(POSES)]),
        ],
        graph.constants,
    )
    model = helper.make_model(
        proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tidegauge-train-keypoints"
    )
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    onnx.checker.check_model(model, full_check=True)
    return model


def evaluate(params: Params) -> dict[str, float]:
    faces: Faces = draw(np.random.default_rng(SEED + 1), 512)
    points, logits = (np.asarray(value) for value in jax.jit(forward)(params, faces.pictures))
    return {
        "points_error_pixels": round(float(error_pixels(points.reshape(-1, 5, 2), faces.points).mean()), 3),
        "pose_right_percent": round(100 * float((logits.argmax(1) == faces.poses).mean()), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--out", type=Path, default=Path("daemon/tidegauge/demo/data"))
    arguments = parser.parse_args()
    started = time.monotonic()
    params = train(arguments.steps)
    path = arguments.out / "keypoints.onnx"
    onnx.save(to_onnx(params), path)
    summary = {
        "seed": SEED,
        "steps": arguments.steps,
        "batch": BATCH,
        "parameters": int(sum(np.size(leaf) for leaf in jax.tree.leaves(params))),
        "onnx_bytes": path.stat().st_size,
        "unseen": evaluate(params),
    }
    text = json.dumps(summary, indent=2)
    (arguments.out / "keypoints.json").write_text(text + "\n")
    print(f"{text}\ntrained in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
