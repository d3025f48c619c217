"""Activations that eight bits can't hold, measured in float on recorded inputs.

A tensor's 8-bit scale follows from its largest value over all frames; rounding then adds noise of power step²/12
(uniform quantiser). A frame whose signal is within `LEAST_DB` of that noise has lost it in this tensor alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tidegauge.errors import TidegaugeError
from tidegauge.preflight.lint.graph import Array, Remark

#: Signal to rounding noise below which a frame is told of, dB: a hundredth of the signal's power is noise.
LEAST_DB = 20.0
_FLOATS = (np.float16, np.float32, np.float64)


class Activation(msgspec.Struct, frozen=True):
    """One tensor over all frames: its range, and the mean square of each frame."""

    name: str
    low: float
    high: float
    powers: tuple[float, ...]

    @property
    def step(self) -> float:
        """Of TIDL's symmetric 8-bit scale: 127 steps to the largest magnitude, 255 where nothing is negative."""
        return max(-self.low, self.high) / (127 if self.low < 0 else 255)

    def decibels(self) -> tuple[float, ...]:
        """Signal to rounding noise of each frame; infinite for a frame of zeros, which is held exactly."""
        noise = self.step**2 / 12
        return tuple(10 * math.log10(power / noise) if power > 0 else math.inf for power in self.powers)


def too_wide(measured: Sequence[Activation]) -> Iterator[Remark]:
    for each in measured:
        if not (math.isfinite(each.low) and math.isfinite(each.high)):
            yield Remark(
                "activation-range",
                "failed",
                each.name,
                "not finite in float on these inputs: no scale holds it",
                "mend the model, or the preparation of its input",
            )
            continue
        if each.step == 0:
            continue
        levels = each.decibels()
        worst = min(range(len(levels)), key=lambda index: levels[index])
        if levels[worst] < LEAST_DB:
            size = math.sqrt(each.powers[worst])
            yield Remark(
                "activation-range",
                "warning",
                each.name,
                f"in {each.low:.4g} … {each.high:.4g} a step of 8 bits is {each.step:.3g}; input {worst + 1} is "
                f"{size:.3g} (rms): {levels[worst]:.1f} dB over the rounding noise, {LEAST_DB:g} wanted",
                f"name {each.name} in `advanced_options:output_feature_16bit_names_list`, or calibrate on frames like "
                "those that count",
            )


def measure(model: Path, inputs: Sequence[Path]) -> tuple[Activation, ...]:
    """Run the model in float on each input (.npy; .npz for several tensors; folders of them).

    Raises TidegaugeError where the model or an input can't be used.
    """
    run = _tflite(model) if model.suffix == ".tflite" else _onnx(model)
    low: dict[str, float] = {}
    high: dict[str, float] = {}
    powers: dict[str, list[float]] = {}
    for path in _files(inputs):
        for name, value in run(path):
            data = value.astype(np.float64, copy=False)
            low[name] = float(np.minimum(low.get(name, math.inf), data.min()))  # a NaN stays one
            high[name] = float(np.maximum(high.get(name, -math.inf), data.max()))
            powers.setdefault(name, []).append(float(np.mean(np.square(data))))
    return tuple(Activation(name, low[name], high[name], tuple(powers[name])) for name in low)


def _files(inputs: Sequence[Path]) -> Iterator[Path]:
    for path in inputs:
        found = sorted(p for p in path.iterdir() if p.suffix in (".npy", ".npz")) if path.is_dir() else [path]
        if not found:
            raise TidegaugeError(f"the folder {path} holds no .npy or .npz file", "save input tensors there")
        yield from found


def _load(path: Path, names: Sequence[str]) -> Mapping[str, Array]:
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise TidegaugeError(f"{path} can't be read as an input tensor ({error})", "save it with numpy.save") from error
    if isinstance(loaded, np.ndarray):
        tensors = {names[0]: loaded}
    else:
        with loaded:
            tensors = {name: loaded[name] for name in loaded.files}
    if set(tensors) != set(names):
        raise TidegaugeError(
            f"{path} holds {', '.join(tensors) or 'nothing'}, the model has the inputs {', '.join(names)}",
            "give one .npy for a model with one input, else .npz with the inputs' names",
        )
    return tensors


def _floats(values: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Array]]:
    for name, value in values:
        if isinstance(value, np.ndarray) and value.size and value.dtype in _FLOATS:
            yield name, value


def _onnx(model: Path) -> Any:
    import onnx
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph, RuntimeException

    loaded = onnx.shape_inference.infer_shapes(onnx.load(str(model)))
    known = {value.name for value in loaded.graph.output}
    loaded.graph.output.extend(
        onnx.ValueInfoProto(name=name)
        for node in loaded.graph.node
        for name in node.output
        if name and name not in known
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(loaded.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except (Fail, InvalidArgument, InvalidGraph) as error:
        raise TidegaugeError(f"{model} does not open in float on the CPU: {error}", "see `tidegauge check`") from error
    names = [each.name for each in session.get_inputs()]
    outputs = [name for node in loaded.graph.node for name in node.output if name]  # in the graph's order

    def run(path: Path) -> Iterator[tuple[str, Array]]:
        feed = dict(_load(path, names))
        try:
            results = session.run(outputs, feed)
        except (Fail, InvalidArgument, RuntimeException) as error:
            raise TidegaugeError(f"{path} is no input of {model}: {error}", "save what the session is fed") from error
        yield from _floats(iter([*feed.items(), *zip(outputs, results, strict=True)]))

    return run


def _tflite(model: Path) -> Any:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    resolver = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES  # a delegate keeps no tensor in between
    try:
        interpreter = Interpreter(
            str(model), experimental_preserve_all_tensors=True, experimental_op_resolver_type=resolver
        )
        interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise TidegaugeError(f"{model} does not open in float on the CPU: {error}", "see `tidegauge check`") from error
    details = interpreter.get_input_details()
    names = [each["name"] for each in details]

    def run(path: Path) -> Iterator[tuple[str, Array]]:
        feed = _load(path, names)
        try:
            for each in details:
                interpreter.set_tensor(each["index"], feed[each["name"]])
            interpreter.invoke()
        except (ValueError, RuntimeError) as error:
            raise TidegaugeError(f"{path} is no input of {model}: {error}", "save what the model is fed") from error
        yield from _floats(_tensors(interpreter))

    return run


def _tensors(interpreter: Any) -> Iterator[tuple[str, Any]]:
    """Inputs and what operators wrote; constants and scratch tensors have no value to read."""
    written = {int(index) for op in interpreter._get_ops_details() for index in op["outputs"]}
    written |= {int(each["index"]) for each in interpreter.get_input_details()}
    for each in interpreter.get_tensor_details():
        if each["index"] in written:
            yield each["name"], interpreter.get_tensor(each["index"])
