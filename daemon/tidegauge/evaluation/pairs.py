"""A compiled model on the virtual board, its float reference, and the camera that both see."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper

from tidegauge.demo import board
from tidegauge.demo.settings import profile
from tidegauge.detectors.sight import Sight, input_features, picture_of, see
from tidegauge.evaluation.fixed_camera import NONE, Change, FixedCamera
from tidegauge.evaluation.networks import NETWORKS
from tidegauge.pipeline.preprocess import input_tensor
from tidegauge.pipeline.worker import WARM_UP_RUNS
from tidegauge.profile import Output, Preprocess
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.network import TwinNetwork, load_artifacts
from tidegauge.virtualboard.options import CompileOptions

Array = NDArray[Any]

CALIBRATION_FRAMES = 24
#: Frames up to here are the calibration's; acceptance and watch begin further on, and never share one.
FIRST_ACCEPTANCE, FIRST_WATCH = 1000, 1_000_000


class Model(NamedTuple):
    """What makes a pair: a network of `NETWORKS`, how its input is made and its output judged, where its camera is.

    `light`: least and most exposure; `view`: the photograph that the camera looks at. `options` of the compile.
    """

    network: str
    preprocess: Preprocess
    output: Output
    view: int
    light: tuple[float, float]
    options: CompileOptions


def models() -> dict[str, Model]:
    """The demo's enhancer (at a quarter of its pixels) in mixed precision by night, a classifier in 8 bits by day."""
    enhancer = profile(Path())
    night = msgspec.structs.replace(enhancer.preprocess, width=96, height=64)
    classes = Output(name="prob", kind="classification", step=0.01)
    small = Preprocess(width=64, height=48, scale=(1 / 255,) * 3)
    eight = CompileOptions(calibration_frames=CALIBRATION_FRAMES)
    return {
        "enhancer": Model("curve", night, enhancer.output, 3, (0.05, 0.2), board.options()),
        "classifier": Model("residual", small, classes, 0, (0.6, 1.0), eight),
    }


class Frame(NamedTuple):
    """One frame: its input tensor and what the monitor sees of it. `reference`: the reference's output for it."""

    tensor: Array
    sight: Sight
    features: dict[str, float]
    reference: Array


class Pair:
    """One model with its camera; `seed` draws what the camera sees. Frames are kept, since many cases share them."""

    def __init__(self, root: Path, name: str, seed: int) -> None:
        self.model = models()[name]
        root.mkdir(parents=True, exist_ok=True)
        width, height = self.model.preprocess.width, self.model.preprocess.height
        self.path = NETWORKS[self.model.network](root / "net.onnx")
        if name == "enhancer":
            _resize(self.path, width, height)
        self._camera = FixedCamera(2 * width, 2 * height, self.model.view, self.model.light, seed)
        frames = [{"input": self._tensor(self._camera.frame(number))} for number in range(CALIBRATION_FRAMES)]
        compile_model(self.path, root / "artifacts", frames, self.model.options)
        self.network: TwinNetwork = load_artifacts(root / "artifacts")
        self.reference = Reference(self.path.read_bytes())
        self._frames: dict[int, Frame] = {}
        self._change, self._changed = NONE, dict[int, Frame]()

    def device(self, faults: Sequence[Fault] = ()) -> Device:
        """A session, warmed up as the pipeline worker does it."""
        return Device(self.network, tuple(faults), self.model)

    def frame(self, number: int, change: Change = NONE) -> Frame:
        if change not in (NONE, self._change):
            self._change, self._changed = change, {}  # a case's own, kept as long as it is looked at
        kept = self._frames if change == NONE else self._changed
        if number not in kept:
            kept[number] = self._frame(number, change)
        return kept[number]

    def healthy(self, frame: Frame) -> Array:
        """A healthy device's answer."""
        return self._healthy.run(frame.tensor)

    @cached_property
    def _healthy(self) -> Device:
        return self.device()

    def _frame(self, number: int, change: Change) -> Frame:
        picture = self._camera.frame(number, change)
        tensor = self._tensor(picture)
        sight = see(picture)
        if sight is None:
            raise ValueError(f"a picture of {picture.shape[1]} × {picture.shape[0]} is too small to be judged")
        features = input_features(picture_of(tensor, self.model.preprocess))
        return Frame(tensor, sight, features, self.reference.run(tensor))

    def _tensor(self, picture: Array) -> Array:
        return input_tensor(picture, self.model.preprocess)

    @cached_property
    def weights(self) -> tuple[str, ...]:
        """Names of the model's tensors of weights."""
        graph = onnx.load(self.path).graph
        return tuple(each.name for each in graph.initializer if numpy_helper.to_array(each).size > 1)

    def wrong_reference(self, weights: str, factor: float) -> Reference:
        """A reference whose model file has changed: one tensor of weights is `factor` times as large."""
        model = onnx.load(self.path)
        found = next(each for each in model.graph.initializer if each.name == weights)
        found.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(found) * np.float32(factor), weights))
        return Reference(model.SerializeToString())


class Device:
    """A device session on the virtual board."""

    def __init__(self, network: TwinNetwork, faults: tuple[Fault, ...], model: Model) -> None:
        self._twin, self._name = Twin(network, faults), model.output.name
        grey = np.full((model.preprocess.height, model.preprocess.width, 3), 128, np.uint8)
        for _ in range(WARM_UP_RUNS):
            self.run(input_tensor(grey, model.preprocess))

    def run(self, tensor: Array) -> Array:
        return self._twin.run({"input": tensor}, [self._name])[self._name]


class Reference:
    """The float model on one thread, as the shadow worker runs it."""

    def __init__(self, model: bytes) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def run(self, tensor: Array) -> Array:
        return np.asarray(self._session.run(None, {"input": tensor})[0])


def _resize(path: Path, width: int, height: int) -> None:
    """Another size of picture for a network of convolutions and element-wise operators."""
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        rows, columns = value.type.tensor_type.shape.dim[-2:]
        rows.dim_value, columns.dim_value = height, width
    del model.graph.value_info[:]  # shapes inside follow
    onnx.checker.check_model(model)
    onnx.save(model, path)
