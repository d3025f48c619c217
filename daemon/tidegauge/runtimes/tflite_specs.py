"""Tensor specs from a TFLite interpreter, and the one way to run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tidegauge.runtimes.checks import fixed_shape, input_spec, known_dtype
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.runtimes.session import Array
from tidegauge.tensors import TensorSpec


def inputs_of(interpreter: Any) -> tuple[TensorSpec, ...]:
    """Raises RuntimeFault for a dynamic input, also where the interpreter has put ones for unknown dimensions."""
    return tuple(
        input_spec(detail["name"], _declared_shape(detail), np.dtype(detail["dtype"]).name)
        for detail in interpreter.get_input_details()
    )


def outputs_of(interpreter: Any) -> tuple[TensorSpec, ...]:
    """Raises RuntimeFault for a dynamic output."""
    return tuple(_output(detail) for detail in interpreter.get_output_details())


def invoke(interpreter: Any, feed: Mapping[str, Array]) -> list[Array]:
    """Set the inputs by name, run, and copy the outputs out in order."""
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], feed[detail["name"]])
    interpreter.invoke()
    return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]


def _output(detail: Mapping[str, Any]) -> TensorSpec:
    name, declared = detail["name"], _declared_shape(detail)
    shape = fixed_shape(declared)
    if shape is None:
        cure = "convert the model with fixed output shapes"
        raise RuntimeFault(f"output {name} has the dynamic shape {list(declared)}", cure)
    return TensorSpec(name, shape, known_dtype(name, np.dtype(detail["dtype"]).name))


def _declared_shape(detail: Mapping[str, Any]) -> Sequence[object]:
    signature = [int(size) for size in detail.get("shape_signature", ())]
    return signature or [int(size) for size in detail["shape"]]
