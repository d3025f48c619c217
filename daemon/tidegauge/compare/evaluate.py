"""Every matched tensor against the float run and against its own local reference: sums, statuses, the code oracle."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.compiled import Subgraph
from tidegauge.compare.cutgraph import Room, Rounding
from tidegauge.compare.distributions import histogram, profiles
from tidegauge.compare.guess import follow
from tidegauge.compare.layers import EXPLAINS, EXPLAINS_FLOAT, STATED, Evaluation, Layer
from tidegauge.compare.layout import arrange, told_otherwise
from tidegauge.compare.match import Match
from tidegauge.compare.model import Model
from tidegauge.compare.oracle import examine, examine_floats
from tidegauge.compare.range_use import range_use
from tidegauge.compare.reference import GROUP_BYTES, Recorded, Reference
from tidegauge.compare.statistics import Encoding, Sums, mean_square, measure, metrics, noise_floor, planes
from tidegauge.compare.traces import DeviceTensor
from tidegauge.compare.weights import (
    SCHEMES,
    bias_of,
    held_bias,
    round_bias,
    rounded,
    scheme_scales,
    to_scales,
    weight_inputs,
)

Array = NDArray[Any]

#: How much larger an error the weights that the compile tells may leave than float ones.
_STATED = 2.0
#: Below this cosine the bytes of a trace may lie in another order than its dims say.
_STRANGE = 0.9
#: What a scale from a least-squares fit may be off by, as a share of the tensor's rms.
ESTIMATED = 0.02


def prepare(
    model: Model,
    inputs: Mapping[str, Array],
    tensors: Sequence[DeviceTensor],
    matches: Sequence[Match],
    budget: int = GROUP_BYTES,
) -> Evaluation:
    """Decide which tensors can be cut at, and set up the runs."""
    layers = [Layer(t, m, status=t.status, reason=t.reason) for t, m in zip(tensors, matches, strict=True)]
    for layer in layers:
        _before(layer)
    usable = {layer.twin: layer for layer in layers if layer.match.tensor is not None and layer.encoding is not None}
    device = {n: Recorded(layer.tensor.codes, layer.encoding) for n, layer in usable.items() if layer.encoding}
    sizes = {name: layer.tensor.count for name, layer in usable.items()}
    reference = Reference(model, inputs, device, sizes, budget, _rounding(layers, usable))
    return Evaluation(layers, reference, usable)


def _before(layer: Layer) -> None:
    tensor = layer.tensor
    if layer.status != "ok":
        return
    if layer.match.tensor is None:
        claimed = layer.match.reason.endswith(layer.tensor.name) and "claim" in layer.match.reason
        layer.status, layer.reason = ("duplicate" if claimed else "unmatched"), layer.match.reason
    elif tensor.dtype is None or tensor.scale is None or tensor.zero_point is None:
        layer.status = "unmatched"
        layer.reason = tensor.reason or "no table tells its scale, zero point and type"
    else:
        layer.encoding = Encoding(tensor.dtype, tensor.scale, tensor.zero_point)


def _rounding(layers: Sequence[Layer], usable: Mapping[str, Layer]) -> dict[str, Rounding]:
    """Tensors that the device computed and rounded, though their traces can't be used."""
    found: dict[str, Rounding] = {}
    for layer in layers:
        tensor, name = layer.tensor, layer.match.tensor
        if name is None or name in usable or tensor.scale is None or tensor.dtype in (None, "float32"):
            continue
        low, high = Encoding(tensor.dtype, tensor.scale).code_range
        zero = tensor.zero_point or 0
        found[name] = Rounding(tensor.scale, float(low - zero), float(high - zero))
    return found


def evaluate(work: Evaluation, subgraphs: Mapping[str, Subgraph]) -> Iterator[int]:
    """Run everything, yielding the number of layers done after each group."""
    done, rooms = 0, _Rooms()
    inputs = [name for name in work.reference.inputs if name in work.by_twin]
    if inputs:
        _group(work, {name: work.reference.inputs[name] for name in inputs}, subgraphs, rooms)
        done += len(inputs)
    for values in work.reference.walk(rooms.run):
        _group(work, values, subgraphs, rooms)
        done += len(values)
        yield done
    for name, value in work.reference.outputs.items():
        work.reference.outputs[name] = _float_value(work, name, value)


@dataclass
class _Rooms:
    """Where a group's float run, its local references with float weights, and those with the compile's weights lie."""

    run: Room = field(default_factory=Room)
    local: Room = field(default_factory=Room)
    stated: Room = field(default_factory=Room)


def _group(work: Evaluation, values: Mapping[str, Array], subgraphs: Mapping[str, Subgraph], rooms: _Rooms) -> None:
    for name, value in values.items():
        _cumulative(work, work.by_twin[name], _float_value(work, name, value))
    names = [name for name in values if name in work.by_twin]
    for name in names:
        _describe(work, work.by_twin[name])
    sound = [name for name in names if not _tainted(work, work.by_twin[name])]
    if sound:
        _local(work, sound, subgraphs, rooms)


def _float_value(work: Evaluation, name: str, computed: Array) -> Array:
    """The tensor that the device is compared with: one that was given, else the computed one."""
    given = work.given.value(work.reference.model, name, computed) if work.given is not None else None
    return computed if given is None else given


# --- against the float run ---------------------------------------------------------------------------------------


def _cumulative(work: Evaluation, layer: Layer, value: Array) -> None:
    tensor, encoding = layer.tensor, layer.encoding
    if encoding is None:
        return
    if not _same_shape(value.shape, tensor.dims):
        layer.layout = arrange(tensor, value)
    if not _same_shape(value.shape, tensor.dims):
        layer.status = "shape_mismatch"
        layer.reason = f"the trace has dims {list(tensor.dims)}, the model's tensor {list(value.shape)}"
        _drop(work, layer)
        return
    codes = tensor.codes().reshape(value.shape)
    sums = measure(codes, _float32(value), encoding, profiles=False)
    layer.cumulative_sums = sums
    if sums.reference_bad:
        layer.status, layer.reason = "non_finite", f"{sums.reference_bad} values of the float run are NaN or infinite"
        _drop(work, layer)
        return
    layer.low_share, layer.high_share = _ends(sums, encoding)
    if sums.device_bad:
        layer.status, layer.reason = "non_finite", f"{sums.device_bad} values are NaN or infinite"
        return
    rms = math.sqrt(sums.f2 / sums.count) if sums.count else 0.0
    layer.cumulative = metrics(sums, encoding, noise_floor(encoding, rms))
    layer.float_clipped = 0.0 if _fits(encoding, sums) else _clipping(encoding, _float32(value), 1.0)[0]
    layer.range_use = range_use(encoding, codes, layer.float_clipped)
    _flatness(layer, codes, sums, encoding)
    if layer.cumulative.cosine is not None and layer.cumulative.cosine < _STRANGE:
        layer.laid_otherwise = told_otherwise(tensor, value)


def _drop(work: Evaluation, layer: Layer) -> None:
    """Take a tensor out of the cut: no region may start from it."""
    work.by_twin.pop(layer.twin)
    work.reference.cut.discard(layer.twin)


def _same_shape(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    return [n for n in shape if n != 1] == [n for n in dims if n != 1]


def _float32(value: Array) -> Array:
    return value if value.dtype == np.float32 else value.astype(np.float32)


def _ends(sums: Sums, encoding: Encoding) -> tuple[float | None, float | None]:
    if not encoding.integer or not sums.count:
        return None, None
    return sums.low / sums.count, sums.high / sums.count


def _flatness(layer: Layer, codes: Array, sums: Sums, encoding: Encoding) -> None:
    """Constant tensors whose reference is not, and references below the tensor's resolution."""
    resolution = encoding.step**2 / 12.0
    if sums.f2 / sums.count < resolution or sums.f2 == 0.0:
        layer.status = "below_resolution"
        layer.reason = "the float tensor is smaller than one step: compared in steps, without SQNR and cosine"
        return
    low, high = codes.min(), codes.max()
    spread = sums.g2 / sums.count - (sums.g / sums.count) ** 2
    if low == high and spread > resolution:
        zero = float(low) == encoding.zero_point
        layer.status = "all_zero" if zero else "constant"
        layer.reason = "all values are zero, the float run's are not" if zero else f"all codes are {low}"


# --- against the region's own inputs -----------------------------------------------------------------------------


def _describe(work: Evaluation, layer: Layer) -> None:
    part = work.reference.region(layer.twin)
    if part is None:
        layer.operators = ("Input",)
        return
    nodes = [work.reference.model.nodes[i] for i in part.nodes]
    layer.reads = part.reads_cut
    layer.reads_input = next((n for n in (*part.reads_inputs, *part.reads_cut) if n in work.reference.inputs), "")
    layer.operators = tuple(node.op_type for node in nodes)
    made = {name for node in nodes for name in node.output} - {layer.twin}
    known = {other.match.tensor for other in work.layers if other.match.tensor is not None}
    layer.hidden = tuple(sorted(made & known))


def _tainted(work: Evaluation, layer: Layer) -> bool:
    """Whether a region can't be judged since what it reads, or what it made, is not finite."""
    bad = [name for name in layer.reads if work.by_twin[name].status == "non_finite"]
    if bad and layer.status == "ok":
        layer.reason = f"what it reads ({bad[0]}) is not finite"
    return bool(bad) or layer.status == "non_finite"


def _local(work: Evaluation, names: Sequence[str], subgraphs: Mapping[str, Subgraph], rooms: _Rooms) -> None:
    float_local = work.reference.local(names, room=rooms.local)
    best = dict(float_local)
    pending: dict[str, dict[str, int | None]] = {}
    for name in names:
        layer = work.by_twin[name]
        _judge(work, layer, float_local[name], "float", None)
        layer.float_excess = layer.local.excess if layer.local else None
        part = work.reference.region(name)
        weights = weight_inputs(work.reference.model, part.nodes) if part else {}
        if weights and layer.local_sums is not None:
            pending[name], layer.weighted = weights, True
    for label, rounding in _candidates(work, pending, subgraphs):
        tried = [name for name in pending if name in rounding]
        if not tried:
            continue
        merged = {w: v for name in tried for w, v in rounding[name].items()}
        values = work.reference.local(tried, merged, rooms.stated if label == STATED else None)
        for name in tried:
            layer = work.by_twin[name]
            noise = mean_square(values[name], float_local[name])
            if _judge(work, layer, values[name], label, rounding[name]):
                best[name], layer.weight_noise = values[name], noise
            if (layer.scatter or 0.0) <= EXPLAINS_FLOAT or (layer.weights == STATED and layer.weights_fit):
                del pending[name]
    for name in names:
        layer = work.by_twin[name]
        if name in pending and layer.encoding is not None and not layer.weights_fit:
            layer.follows = follow(layer.encoding, work.codes(layer), best[name])
        _oracle(work, layer, best[name])
        if layer.local is not None and (layer.local.excess or 0.0) <= EXPLAINS and not _apart(layer):
            layer.scheme = None  # only a suspect is looked at again


def _apart(layer: Layer) -> bool:
    """Whether any code lies further from the computed value than rounding explains."""
    return layer.oracle is not None and any(layer.oracle.beyond)


def _candidates(
    work: Evaluation, pending: dict[str, dict[str, int | None]], subgraphs: Mapping[str, Subgraph]
) -> Iterator[tuple[str, dict[str, dict[str, Array]]]]:
    """Rounded weights to try, for the regions still pending: the compile's own scales first, then the schemes."""
    model = work.reference.model
    stated: dict[str, dict[str, Array]] = {}
    for name, weights in pending.items():
        tensor = work.by_twin[name].tensor
        known = subgraphs[tensor.subgraph].weights.get(tensor.name)
        if known is None or len(weights) != 1:
            continue
        ((weight, axis),) = weights.items()
        channels = 1 if axis is None else model.weights[weight].shape[axis]
        if len(known.scales) in (1, channels):
            scales = np.asarray(known.scales, np.float64)
            stated[name] = {weight: to_scales(model.weights[weight], axis, scales, known.bits)}
            stated[name] |= _bias(work, weight, scales, known.bias)
    yield STATED, stated
    for scheme in SCHEMES:
        tried = {name: rounded(model, weights, scheme) for name, weights in pending.items()}
        for name, weights in pending.items():
            if len(weights) == 1:
                ((weight, axis),) = weights.items()
                tried[name] |= _bias(work, weight, scheme_scales(model.weights[weight], axis, scheme))
        yield scheme.name, tried


def _bias(work: Evaluation, weight: str, scales: Array, stated: Sequence[float] = ()) -> dict[str, Array]:
    """The region's bias as the accumulator holds it: in units of weight scale times input scale, where these are known.

    A bias that two layers share is left as it is: their units differ. `stated`: as the compile's tables have it.
    """
    model = work.reference.model
    found = bias_of(model, weight)
    if found is None:
        return {}
    source, bias = found
    layer, value = work.by_twin.get(source), held_bias(model, bias, stated)
    if layer is None or layer.encoding is None or not layer.encoding.integer or layer.tensor.source == "estimate":
        return {bias: value} if stated else {}
    return {bias: round_bias(value, scales * layer.encoding.scale)}


def _judge(work: Evaluation, layer: Layer, value: Array, label: str, scheme: Mapping[str, Array] | None) -> bool:
    """Measure against one local reference; keep it if it is the best so far."""
    if layer.encoding is None or layer.cumulative_sums is None:
        return False
    # What does not fit the code range is counted apart: a layer that computes right must not look wrong.
    value = _float32(value)
    sums = measure(work.codes(layer), value, layer.encoding)
    fits = _fits(layer.encoding, sums)
    if not fits:
        sums = measure(work.codes(layer), _fitting(layer.encoding, value), layer.encoding)
    if sums.reference_bad or sums.mse is None:
        return False
    if layer.local_sums is not None and not _better(layer, label, _scatter(sums), _scatter(layer.local_sums)):
        return False
    rms = math.sqrt(sums.f2 / sums.count)
    layer.floor = noise_floor(layer.encoding, rms)
    if any(source == "estimate" for source in (layer.tensor.source, *_sources(work, layer))):
        layer.floor += (ESTIMATED * rms) ** 2
    layer.clipped_share, layer.clipping = (0.0, 0.0) if fits else _clipping(layer.encoding, value, layer.floor)
    layer.local_sums, layer.local = sums, metrics(sums, layer.encoding, layer.floor)
    layer.weights, layer.scheme = label, scheme
    return True


def _scatter(sums: Sums) -> float:
    """Σ(d − mean)²: which weights are the device's is told by the pattern, not by a shift of the whole tensor."""
    return max(0.0, sums.d2 - sums.d**2 / sums.count) if sums.count > 1 else sums.d2


def _better(layer: Layer, label: str, error: float, before: float) -> bool:
    """Whether weights explain a layer better; the compile's own are believed unless others do so by far."""
    if label == STATED:
        return error <= _STATED * before
    return error < (before / 2 if layer.weights == STATED else before)


def _sources(work: Evaluation, layer: Layer) -> list[str]:
    return [work.by_twin[name].tensor.source for name in layer.reads]


def _fits(encoding: Encoding, sums: Sums) -> bool:
    """Whether the code range holds every value of the reference; nearly always it does."""
    if not encoding.integer:
        return True
    low, high = encoding.value_range
    return float(np.float32(low)) <= sums.least and sums.most <= float(np.float32(high))


def _fitting(encoding: Encoding, value: Array) -> Array:
    low, high = encoding.value_range
    return np.clip(value, np.float32(low), np.float32(high))


def _clipping(encoding: Encoding, value: Array, floor: float) -> tuple[float, float]:
    """The share of values that the code range can't hold, and their mean squared loss over the noise floor."""
    if not encoding.integer:
        return 0.0, 0.0
    low, high = encoding.value_range
    half = encoding.step / 2
    outside = value[(value < low - half) | (value > high + half)].astype(np.float64)
    lost = outside - np.clip(outside, low, high)
    return outside.size / value.size, float(np.dot(lost, lost)) / value.size / floor


def _oracle(work: Evaluation, layer: Layer, value: Array) -> None:
    """Predict the codes from the local reference; and what the report draws."""
    if layer.encoding is None or layer.local_sums is None:
        return
    codes = work.codes(layer)
    if layer.encoding.integer:
        layer.oracle = examine(layer.encoding, codes, value.reshape(codes.shape))
    else:
        layer.oracle = examine_floats(codes, value)
    layer.profiles = profiles(layer.local_sums, layer.floor, planes(codes.shape))
    layer.histogram = histogram(layer.encoding, codes, value)
