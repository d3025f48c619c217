"""Strict checks at a session's two ends; a runtime would cast, broadcast or accept in silence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tidegauge.profile import Profile
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.runtimes.session import Array
from tidegauge.tensors import ELEMENT_SIZES, TensorSpec

_INPUT_CURE = "make the input tensor as the model's profile says"


def checked_inputs(specs: Sequence[TensorSpec], tensors: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors in C order. Raises RuntimeFault naming the first that differs from its spec in name, shape, type."""
    expected = {spec.name for spec in specs}
    if tensors.keys() != expected:
        raise RuntimeFault(f"inputs are {sorted(tensors)}, the model expects {sorted(expected)}", _INPUT_CURE)
    for spec in specs:
        _check(spec, tensors[spec.name], "input", _INPUT_CURE)
    return {spec.name: np.ascontiguousarray(tensors[spec.name]) for spec in specs}


def checked_outputs(specs: Sequence[TensorSpec], answers: Sequence[Array]) -> dict[str, Array]:
    """The outputs by name. Raises RuntimeFault where one is not of the announced shape and type."""
    if len(answers) != len(specs):
        raise RuntimeFault(f"the runtime gave {len(answers)} outputs, not {len(specs)}", "check the model file")
    for spec, answer in zip(specs, answers, strict=True):
        _check(spec, answer, "output", "export the model with fixed shapes, then compile it again")
    return {spec.name: answer for spec, answer in zip(specs, answers, strict=True)}


def _check(spec: TensorSpec, array: object, what: str, cure: str) -> None:
    if not isinstance(array, np.ndarray):
        raise RuntimeFault(f"{what} {spec.name} is a {type(array).__name__}, not an array", cure)
    if array.shape != spec.shape or array.dtype != np.dtype(spec.dtype):
        got = f"{array.dtype} {list(array.shape)}"
        raise RuntimeFault(f"{what} {spec.name} is {got}, expected {spec.dtype} {list(spec.shape)}", cure)


def fixed_shape(shape: Sequence[object]) -> tuple[int, ...] | None:
    """A shape whose dimensions are all known, else None (a name, None or a number below one is not known)."""
    known = tuple(int(size) for size in shape if isinstance(size, (int, np.integer)) and size >= 1)
    return known if len(known) == len(shape) else None


def input_spec(name: str, shape: Sequence[object], dtype: str) -> TensorSpec:
    """Raises RuntimeFault for a dynamic dimension or an element type that can't be carried."""
    fixed = fixed_shape(shape)
    if fixed is None:
        raise RuntimeFault(
            f"input {name} has the dynamic shape {list(shape)}", "export the model with a fixed batch and size"
        )
    return TensorSpec(name, fixed, known_dtype(name, dtype))


def known_dtype(name: str, dtype: str) -> str:
    """The type, if a tensor of it can cross a process. Raises RuntimeFault."""
    if dtype not in ELEMENT_SIZES:
        raise RuntimeFault(f"tensor {name} is of type {dtype}", "export it as one of: " + ", ".join(ELEMENT_SIZES))
    return dtype


def random_tensor(spec: TensorSpec) -> Array:
    """Every code of an integer type, values of a normalised picture in a float one; the same at each call."""
    random, kind = np.random.default_rng(1), np.dtype(spec.dtype)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return random.integers(limits.min, limits.max, spec.shape, kind, endpoint=True)
    return random.uniform(-1, 1, spec.shape).astype(kind)


def model_path(profile: Profile) -> Path:
    """The model file. Raises RuntimeFault where there is none."""
    path = Path(profile.model)
    if not path.is_file():
        raise RuntimeFault(f"profile {profile.name}: model {path} is not a file", "correct `model` in the profile")
    return path
