"""Tensor specs from an ONNX Runtime session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegauge.runtimes.checks import fixed_shape, input_spec, known_dtype
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.tensors import TensorSpec

_TYPES = {
    "tensor(float)": "float32",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(uint16)": "uint16",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}


def inputs_of(session: Any) -> tuple[TensorSpec, ...]:
    """Raises RuntimeFault for a dynamic input."""
    return tuple(input_spec(node.name, node.shape, _TYPES.get(node.type, node.type)) for node in session.get_inputs())


def outputs_of(session: Any, known: Mapping[str, tuple[int, ...]]) -> tuple[TensorSpec, ...]:
    """Shapes that the model leaves open are taken from `known`. Raises RuntimeFault where it has none."""
    return tuple(_output(node, known) for node in session.get_outputs())


def open_outputs(session: Any) -> bool:
    """Whether the model leaves the shape of an output open."""
    return any(fixed_shape(node.shape) is None for node in session.get_outputs())


def _output(node: Any, known: Mapping[str, tuple[int, ...]]) -> TensorSpec:
    shape = fixed_shape(node.shape) or known.get(node.name)
    if shape is None:
        cure = "export the model with fixed output shapes"
        raise RuntimeFault(f"output {node.name} has the dynamic shape {list(node.shape)}", cure)
    return TensorSpec(node.name, shape, known_dtype(node.name, _TYPES.get(node.type, node.type)))
