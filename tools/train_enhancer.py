# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "jax[cpu]==0.10.2", "optax==0.2.8", "onnx>=1.17", "numpy>=1.26", "msgspec>=0.19", "opencv-python-headless>=4.10",
# ]
# ///
"""Train the demo's low-light enhancer and write it as ONNX.

    PYTHONPATH=daemon python tools/train_enhancer.py [--steps 3000] [--out daemon/tidegauge/demo/data]

The network estimates curves after Zero-DCE (Guo et al., "Zero-Reference Deep Curve Estimation for Low-Light Image
Enhancement", CVPR 2020): seven 3×3 convolutions with skips, Tanh, and eight rounds of x + r·(x² − x), one slice of
three channels of r a round. It is trained here in a plainer way than in the paper, with a reference: crops of the
demo's photographs are taken again in low light by the project's own sensor model, and the loss is the mean absolute
difference from the bright original. The right-hand part of each photograph is held out from training.

Rerun, it gives the same weights on the same machine and library versions; other CPUs may round differently.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import optax
from onnx import TensorProto, helper, numpy_helper

from tidegauge.camera.sensor import Sensor, expose

SEED = 20240917
CHANNELS = 12
CURVES = 8
HEIGHT, WIDTH = 128, 192
CROP = 64
BATCH = 8
HELD_OUT = 0.3
WEIGHT_DECAY = 1e-4
#: Input channels of each convolution; 5 to 7 take two earlier layers side by side.
INPUTS = (3, CHANNELS, CHANNELS, CHANNELS, 2 * CHANNELS, 2 * CHANNELS, 2 * CHANNELS)
OUTPUTS = (CHANNELS,) * 6 + (3 * CURVES,)

Params = list[dict[str, Any]]


def initial(rng: np.random.Generator) -> Params:
    """He initialisation; the last layer starts small, so that the curves start near the identity."""
    params = []
    for index, (fan_in, fan_out) in enumerate(zip(INPUTS, OUTPUTS, strict=True)):
        deviation = np.sqrt(2 / (9 * fan_in)) * (0.1 if index == 6 else 1.0)
        weight = rng.normal(0, deviation, (fan_out, fan_in, 3, 3)).astype(np.float32)
        params.append({"w": jnp.asarray(weight), "b": jnp.zeros(fan_out, jnp.float32)})
    return params


def conv(layer: dict[str, Any], x: Any) -> Any:
    y = jax.lax.conv_general_dilated(x, layer["w"], (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
    return y + layer["b"][None, :, None, None]


def enhance(params: Params, x: Any) -> Any:
    """(N, 3, H, W) in 0…1 to the same."""
    y1 = jax.nn.relu(conv(params[0], x))
    y2 = jax.nn.relu(conv(params[1], y1))
    y3 = jax.nn.relu(conv(params[2], y2))
    y4 = jax.nn.relu(conv(params[3], y3))
    y5 = jax.nn.relu(conv(params[4], jnp.concatenate([y3, y4], 1)))
    y6 = jax.nn.relu(conv(params[5], jnp.concatenate([y2, y5], 1)))
    curves = jnp.tanh(conv(params[6], jnp.concatenate([y1, y6], 1)))
    for index in range(CURVES):
        r = curves[:, 3 * index : 3 * index + 3]
        x = x + r * (x * x - x)
    return x


def load(folder: Path) -> list[np.ndarray]:
    photos = [cv2.imread(str(path), cv2.IMREAD_COLOR) for path in sorted(folder.glob("*.jpg"))]
    return [cv2.cvtColor(photo, cv2.COLOR_BGR2RGB) for photo in photos]


def batch(photos: list[np.ndarray], rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Dark crops and their bright originals, float32 (BATCH, 3, size, size) in 0…1."""
    dark, bright = [], []
    for _ in range(BATCH):
        photo = photos[rng.integers(len(photos))]
        scale = rng.uniform(0.5, 1.0)
        side = min(int(size / scale), photo.shape[0], photo.shape[1])
        y, x = (int(rng.integers(limit - side + 1)) for limit in photo.shape[:2])
        crop = cv2.resize(photo[y : y + side, x : x + side], (size, size), interpolation=cv2.INTER_AREA)
        crop = crop[:, ::-1] if rng.random() < 0.5 else crop
        exposure = float(np.exp(rng.uniform(np.log(0.05), np.log(0.4))))
        bright.append(crop)
        dark.append(expose(crop, exposure, Sensor(), rng))
    return tuple(np.stack(s).astype(np.float32).transpose(0, 3, 1, 2) / 255 for s in (dark, bright))  # type: ignore[return-value]


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.mean(-10 * np.log10(np.mean((a - b) ** 2, axis=(1, 2, 3)))))


def evaluate(params: Params, photos: list[np.ndarray]) -> dict[str, float]:
    """Mean PSNR to the bright original before and after, over 20 batches of held-out crops."""
    rng = np.random.default_rng(SEED + 1)
    run = jax.jit(enhance)
    before, after, losses = [], [], []
    for _ in range(20):
        dark, bright = batch(photos, rng, CROP)
        out = np.asarray(run(params, dark))
        before.append(psnr(dark, bright))
        after.append(psnr(out, bright))
        losses.append(np.abs(out - bright).mean())
    return {
        "psnr_dark_db": round(float(np.mean(before)), 2),
        "psnr_enhanced_db": round(float(np.mean(after)), 2),
        "l1": round(float(np.mean(losses)), 4),
    }


def train(photos: list[np.ndarray], steps: int) -> Params:
    rng = np.random.default_rng(SEED)
    params = initial(rng)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 2e-3, steps // 20, steps, 1e-5)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=WEIGHT_DECAY))
    state = optimiser.init(params)

    def loss(params: Params, dark: Any, bright: Any) -> Any:
        return jnp.abs(enhance(params, dark) - bright).mean()

    @jax.jit
    def step(params: Params, state: Any, dark: Any, bright: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, dark, bright)
        updates, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    for index in range(steps):
        dark, bright = batch(photos, rng, CROP)
        params, state, value = step(params, state, dark, bright)
        if (index + 1) % 500 == 0:
            print(f"step {index + 1}: loss {float(value):.4f}", flush=True)
    return params


class Graph:
    """Nodes and constants of the ONNX graph, with names as an exporter would give them."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def node(
        self, op: str, scope: str, inputs: list[str], output: str = "", suffix: str = "", **attributes: Any
    ) -> str:
        name = f"/{scope}/{op}{suffix}"
        output = output or f"{name}_output_0"
        self.nodes.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        return output

    def conv(self, index: int, layer: dict[str, Any], x: str, *, relu: bool = True) -> str:
        weight = self.constant(f"conv{index}.weight", np.asarray(layer["w"], np.float32))
        bias = self.constant(f"conv{index}.bias", np.asarray(layer["b"], np.float32))
        y = self.node("Conv", f"conv{index}", [x, weight, bias], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])
        return self.node("Relu", f"conv{index}", [y]) if relu else y


def to_onnx(params: Params) -> onnx.ModelProto:
    graph = Graph()
    y1 = graph.conv(1, params[0], "input")
    y2 = graph.conv(2, params[1], y1)
    y3 = graph.conv(3, params[2], y2)
    y4 = graph.conv(4, params[3], y3)
    y5 = graph.conv(5, params[4], graph.node("Concat", "skip5", [y3, y4], axis=1))
    y6 = graph.conv(6, params[5], graph.node("Concat", "skip6", [y2, y5], axis=1))
    y7 = graph.conv(7, params[6], graph.node("Concat", "skip7", [y1, y6], axis=1), relu=False)
    curves = graph.node("Tanh", "conv7", [y7])
    axes = graph.constant("curve.axes", np.array([1], np.int64))
    bounds = [graph.constant(f"curve.bound{3 * n}", np.array([3 * n], np.int64)) for n in range(CURVES + 1)]
    x = "input"
    for index in range(CURVES):
        scope = f"curve{index + 1}"
        r = graph.node("Slice", scope, [curves, bounds[index], bounds[index + 1], axes])
        square = graph.node("Mul", scope, [x, x])
        difference = graph.node("Sub", scope, [square, x])
        change = graph.node("Mul", scope, [r, difference], suffix="_1")
        x = graph.node("Add", scope, [x, change], output="enhanced" if index == CURVES - 1 else "")
    shape = [1, 3, HEIGHT, WIDTH]
    proto = helper.make_graph(
        graph.nodes,
        "enhancer",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("enhanced", TensorProto.FLOAT, shape)],
        graph.constants,
    )
    model = helper.make_model(
        proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tidegauge-train-enhancer"
    )
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--photos", type=Path, default=Path("daemon/tidegauge/demo/data/photos"))
    parser.add_argument("--out", type=Path, default=Path("daemon/tidegauge/demo/data"))
    arguments = parser.parse_args()
    photos = load(arguments.photos)
    seen = [photo[:, : int(photo.shape[1] * (1 - HELD_OUT))] for photo in photos]
    unseen = [photo[:, int(photo.shape[1] * (1 - HELD_OUT)) :] for photo in photos]
    started = time.monotonic()
    params = train(seen, arguments.steps)
    model = to_onnx(params)
    onnx.save(model, arguments.out / "enhancer.onnx")
    summary = {
        "seed": SEED,
        "steps": arguments.steps,
        "batch": BATCH,
        "crop": CROP,
        "parameters": int(sum(np.size(leaf) for leaf in jax.tree.leaves(params))),
        "onnx_bytes": (arguments.out / "enhancer.onnx").stat().st_size,
        "seen": evaluate(params, seen),
        "held_out": evaluate(params, unseen),
    }
    text = json.dumps(summary, indent=2)
    (arguments.out / "enhancer.json").write_text(text + "\n")
    print(f"{text}\ntrained in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
