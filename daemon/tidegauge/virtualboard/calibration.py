"""Runs the float model over the calibration frames and writes down every layer's range."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard.lowering import Lowered

Array = NDArray[Any]
Frame = Mapping[str, Array]


@dataclass(frozen=True)
class Ranges:
    """Lowest and highest value of each tensor over all frames; which have neighbouring channels that differ. Frames and
    outputs as the caller sees them."""

    low: dict[str, float]
    high: dict[str, float]
    channels_differ: frozenset[str]
    frames: tuple[dict[str, Array], ...]
    outputs: tuple[dict[str, Array], ...]


def calibrate(model: onnx.ModelProto, lowered: Lowered, frames: Iterable[Frame], limit: int) -> Ranges:
    """Run at most `limit` frames. Raises `TidegaugeError` for no frames, wrong inputs, or values that aren't finite."""
    used = tuple(_checked(frame, lowered, number) for number, frame in enumerate(islice(frames, limit)))
    if not used:
        raise TidegaugeError(
            "there is no calibration frame", "give at least one input tensor (TI recommends 10 or more)"
        )
    inner = lowered.inner
    read = {region.name: inner.get(region.name, region.name) for region in lowered.regions}
    read |= {name: inner[name] for name in lowered.inputs if name in inner}
    asked = list(dict.fromkeys([*read.values(), *lowered.outputs]))
    session = float_session(model, asked)
    low: dict[str, float] = {}
    high: dict[str, float] = {}
    differ: set[str] = set()
    outputs = []
    for number, frame in enumerate(used):
        found = dict(zip(asked, session.run(asked, frame), strict=True))
        plain = {name: value for name, value in frame.items() if name not in inner}
        for name, value in ({name: found[tensor] for name, tensor in read.items()} | plain).items():
            _check_finite(name, value, number)
            low[name] = min(low.get(name, np.inf), float(value.min()))
            high[name] = max(high.get(name, -np.inf), float(value.max()))
            if _channels_differ(value):
                differ.add(name)
        outputs.append({name: found[name] for name in lowered.outputs})
    return Ranges(low, high, frozenset(differ), used, tuple(outputs))


def float_session(model: onnx.ModelProto, names: list[str]) -> Any:
    """A CPU session of the float model with the named tensors as outputs; one thread, so that it is reproducible."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    present = {o.name for o in exposed.graph.output}
    exposed.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in names if n not in present)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(exposed.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _checked(frame: Frame, lowered: Lowered, number: int) -> dict[str, Array]:
    if set(frame) != set(lowered.inputs):
        raise TidegaugeError(
            f"calibration frame {number} has the tensors {sorted(frame)}, the model wants {sorted(lowered.inputs)}",
            "name every input of the model once",
        )
    result = {}
    for name, shape in lowered.inputs.items():
        value = np.asarray(frame[name])
        if value.shape != shape or value.dtype != np.float32:
            raise TidegaugeError(
                f"calibration frame {number}: {name} is {value.dtype} {list(value.shape)}, "
                f"the model wants float32 {list(shape)}",
                "pre-process the frame as the model's profile says",
            )
        result[name] = np.ascontiguousarray(value)
    return result


def _check_finite(name: str, value: Array, number: int) -> None:
    if not np.isfinite(value).all():
        raise TidegaugeError(
            f"calibration frame {number} makes {name} infinite or not a number",
            "leave the frame out, or repair the model",
        )


def _channels_differ(value: Array) -> bool:
    if value.ndim < 3 or value.shape[-3] < 2:
        return False
    spread = float(value.max() - value.min())
    rolled = np.roll(value, 1, axis=-3)
    return bool(np.abs(value - rolled).max() > 0.05 * spread > 0)
