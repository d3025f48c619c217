"""What tells two candidates apart where names and neighbourhoods don't: weights, a common renaming, values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.compiled import WeightScales
from tidegauge.compare.model import Model
from tidegauge.compare.traces import DeviceTensor
from tidegauge.errors import TidegaugeError

Array = NDArray[Any]

#: Elements of a tensor that are looked at, evenly spread.
SAMPLE = 4096
#: Fewer agree by chance, among so many pairs.
LEAST = 32
#: In decades of unexplained energy: a pair explains 90 % at least, and leaves five times less than any rival.
VALUE_LEAST, VALUE_MARGIN = 1.0, 0.7
#: In decades of relative difference: 1 % at most, and ten times less than any rival.
WEIGHT_LEAST, WEIGHT_MARGIN = 2.0, 1.0
_LARGEST = 6.0


class Values:
    """Correlation of device tensors with float tensors. `run`: the float values of tensors by name, once a set."""

    def __init__(self, run: Callable[[Sequence[str]], Mapping[str, Array]]) -> None:
        self._run = run
        self._float: dict[str, Array | None] = {}
        self._device: dict[int, Array | None] = {}

    def want(self, names: Sequence[str]) -> None:
        """Compute these float tensors in one run."""
        missing = [name for name in dict.fromkeys(names) if name not in self._float]
        if missing:
            found = self._run(missing)
            self._float.update({name: _sample(found[name]) if name in found else None for name in missing})

    def score(self, tensor: DeviceTensor, name: str) -> float | None:
        """Decades of energy that a straight line leaves unexplained; None where one side has no usable values."""
        self.want([name])
        ours, theirs = self._codes(tensor), self._float[name]
        if ours is None or theirs is None or ours.size != theirs.size:
            return None
        if np.ptp(ours) == 0 or np.ptp(theirs) == 0:
            return None
        correlation = float(np.corrcoef(ours, theirs)[0, 1])
        if not math.isfinite(correlation) or correlation <= 0:
            return 0.0
        return min(_LARGEST, -math.log10(max(1.0 - correlation**2, 1e-6)))

    def _codes(self, tensor: DeviceTensor) -> Array | None:
        if id(tensor) not in self._device:
            self._device[id(tensor)] = _codes(tensor)
        return self._device[id(tensor)]


def _codes(tensor: DeviceTensor) -> Array | None:
    if tensor.status != "ok" or tensor.read is None or tensor.dtype is None:
        return None
    try:
        return _sample(tensor.codes())
    except TidegaugeError:
        return None  # its own status says why when it is loaded


def _sample(value: Array) -> Array | None:
    flat = value.reshape(-1)
    taken = flat[:: max(1, flat.size // SAMPLE)].astype(np.float64)
    return taken if taken.size >= LEAST and np.isfinite(taken).all() else None


def weight_peaks(model: Model, name: str) -> list[Array]:
    """Largest magnitudes of the weights of the operator that makes `name`, one an output channel: as the model has
    them, and as a batch norm that follows would leave them. Empty where it has none."""
    index = model.producer.get(name)
    if index is None:
        return []
    node = model.nodes[index]
    if len(node.input) < 2 or node.input[1] not in model.weights or model.weights[node.input[1]].ndim < 2:
        return []
    weight = np.abs(model.weights[node.input[1]].astype(np.float64))
    transposed = node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute)
    axis = 0 if node.op_type == "Conv" or transposed else 1 if node.op_type == "ConvTranspose" else weight.ndim - 1
    peaks = weight.max(axis=tuple(i for i in range(weight.ndim) if i != axis))
    found = [peaks]
    readers = [n for n in model.nodes if name in n.input]
    if len(readers) == 1 and readers[0].op_type == "BatchNormalization":
        names = readers[0].input
        if all(n in model.weights for n in names[1:5]):
            epsilon = next((a.f for a in readers[0].attribute if a.name == "epsilon"), 1e-5)
            gamma, variance = model.weights[names[1]], model.weights[names[4]]
            found.append(peaks * np.abs(gamma.astype(np.float64)) / np.sqrt(variance.astype(np.float64) + epsilon))
    return found


def weight_score(scales: WeightScales | None, peaks: Sequence[Array]) -> float | None:
    """Decades of relative difference between the compile's weight scales and those of the model's weights."""
    if scales is None or not peaks:
        return None
    top = 2.0 ** (scales.bits - 1) - 1
    stated = top / np.asarray(scales.scales)
    best = 0.0
    for peak in peaks:
        expected = peak if stated.size == peak.size else np.asarray([peak.max(initial=0.0)])
        if stated.size not in (1, peak.size):
            return 0.0
        scale = float(expected.max(initial=0.0))
        if scale > 0:
            difference = float(np.abs(stated - expected).mean()) / scale
            best = max(best, min(_LARGEST, -math.log10(max(difference, 1e-6))))
    return best


def scales_score(one: WeightScales | None, other: WeightScales | None) -> float | None:
    """The same between two compiles: peaks of the weights, whatever their bits and granularity."""
    if one is None or other is None:
        return None
    first, second = ((2.0 ** (each.bits - 1) - 1) / np.asarray(each.scales) for each in (one, other))
    if first.size != second.size:
        first, second = np.asarray([first.max()]), np.asarray([second.max()])
    scale = float(max(first.max(), second.max()))
    difference = float(np.abs(first - second).mean()) / scale if scale > 0 else 1.0
    return min(_LARGEST, -math.log10(max(difference, 1e-6)))
