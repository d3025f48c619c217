"""Whether the float graph made of a TFLite model computes what LiteRT does, tensor by tensor, on the recorded input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.model import Model
from tidegauge.compare.reference import Reference
from tidegauge.compare.tflite_file import read, run_all
from tidegauge.compare.tflite_model import to_nchw
from tidegauge.compare.types import Finding
from tidegauge.errors import TidegaugeError

Array = NDArray[Any]

#: LiteRT's kernels and ONNX Runtime's may add up in another order, but not compute something else.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5


def check_tflite(data: bytes, name: str, model: Model, inputs: Mapping[str, Array]) -> list[Finding]:
    """Raises `TidegaugeError` at the first tensor that differs: a reference that is wrong would blame the device.

    `inputs` as the model holds them (NCHW). A quantised model's own activations are rounded, so there is no such check
    of it: a note says so.
    """
    file = read(data, name)
    if any(file.tensors[i].dtype != "float32" and file.tensors[i].constant is None for i in _activations(file)):
        text = (
            f"{name} is quantised itself: the reference has its dequantised weights and float activations, so the "
            "rounding of the TFLite model counts as the device's."
        )
        return [Finding("quantised_model", "note", text)]
    feeds = {n: value.transpose(0, 2, 3, 1) if n in model.nhwc else value for n, value in inputs.items()}
    theirs = run_all(data, name, feeds)
    wanted = {n: int(np.prod(theirs[n].shape)) for node in model.nodes for n in node.output if n in theirs}
    for values in Reference(model, inputs, {}, wanted).walk():
        for tensor, ours in values.items():
            other = to_nchw(theirs[tensor]).astype(np.float64)
            bound = _RELATIVE * float(np.abs(other).max(initial=0.0)) + _ABSOLUTE
            off = float(np.abs(ours.astype(np.float64) - other).max(initial=0.0))
            if not off <= bound:
                raise TidegaugeError(
                    f"tensor {tensor} of {name} comes out {off:.3g} off LiteRT's: the reference misreads an operator "
                    "before it",
                    "compare with the ONNX model that the TFLite file was made from",
                )
    return []


def _activations(file: Any) -> list[int]:
    return [i for op in file.operators for i in op.outputs if op.name not in ("DEQUANTIZE", "CAST")]
