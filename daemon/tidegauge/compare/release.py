"""Two compiles of one model, or two boards: which layers changed, where the output moved, and whether the earlier
release's quantisation proto may be read by the later one."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tidegauge import __version__
from tidegauge.compare.lineage import device_key
from tidegauge.compare.pairing import Paired, Pairing, names_of, pair_compiles
from tidegauge.compare.release_load import Side
from tidegauge.compare.release_proto import may_reuse
from tidegauge.compare.release_types import (
    Alone,
    Blamed,
    Change,
    Difference,
    LayerPair,
    OutputMove,
    ReleaseComparison,
)
from tidegauge.compare.release_values import trace_values
from tidegauge.compare.release_words import notes, sentence
from tidegauge.compare.statistics import Encoding, measure, metrics, noise_floor
from tidegauge.compare.traces import DeviceTensor
from tidegauge.compare.types import Comparison

Array = NDArray[Any]

#: Mean squared difference over both roundings' own: more is no rounding.
MOVED = 10.0
#: A difference begins where it is this many times that of all that the layer reads.
JUMP = 5.0


def compare_releases(
    before: Side,
    after: Side,
    *,
    min_coverage: float = 0.8,
    threshold: float = MOVED,
    judged: tuple[Comparison, Comparison] | None = None,
) -> ReleaseComparison:
    """`threshold`: the mean squared difference over that of both roundings above which a tensor has moved.
    `judged`: both runs against the float model, where a model and an input were given."""
    began = time.monotonic()
    score = trace_values(before.tensors, after.tensors) if before.tensors and after.tensors else None
    pairing = pair_compiles(before.subgraphs, after.subgraphs, score)
    layers = _layers(before, after, pairing, threshold)
    alone = _alone(before, after, pairing)
    outputs = _outputs(after, layers)
    proto = may_reuse(before, after)
    blamed = _blamed(*judged) if judged is not None else ()
    same_input = _same_input(before, after)
    total = sum(1 for s in after.subgraphs.values() for i in s.expected)
    expected = {(s.name, i) for s in after.subgraphs.values() for i in s.expected}
    found = sum((p.subgraph, p.after_id) in expected for p in layers) + sum(
        (_sub(key), _id(key)) in expected for key in pairing.fused_after
    )
    coverage = found / total if total else 0.0
    moved = any(o.difference is not None and o.difference.moved for o in outputs)
    worse = any(each.since == "after" for each in blamed)
    code: Literal[0, 1, 3] = 3 if coverage < min_coverage else 1 if moved or worse else 0
    return ReleaseComparison(
        tool=__version__,
        before=before.label,
        after=after.label,
        exit_code=code,
        sentence=sentence(layers, alone, outputs, proto, blamed, same_input, coverage, min_coverage),
        coverage=coverage,
        minimum=min_coverage,
        layers=tuple(layers),
        alone=tuple(alone),
        outputs=tuple(outputs),
        proto=proto,
        blamed=blamed,
        same_input=same_input,
        notes=tuple(notes(before, after, same_input)),
        seconds=round(time.monotonic() - began, 3),
    )


# --- what changed in the compile -----------------------------------------------------------------------------------


def _layers(before: Side, after: Side, pairing: Pairing, threshold: float) -> list[LayerPair]:
    tensors = [{device_key(t.subgraph, t.data_id): t for t in side.tensors} for side in (before, after)]
    names = names_of(before.subgraphs), names_of(after.subgraphs)
    kinds = [_kinds(side) for side in (before, after)]
    swallowed = _swallowed(pairing)
    twins = {pair.after: pair for pair in pairing.pairs}
    steps = _steps(before), _steps(after)
    differences = {key: _difference(tensors, pair, steps, threshold) for key, pair in twins.items()}
    edges = _edges(after)
    found = []
    for key in _order(after):
        if key not in twins:
            continue
        pair = twins[key]
        infos = before.subgraphs[_sub(pair.before)].info(_id(pair.before)), after.subgraphs[_sub(key)].info(_id(key))
        difference, reason = differences[key]
        if difference is not None and difference.moved:
            read = _known_inputs(key, edges, differences)
            begins = all(_far_less(differences[source][0], difference) for source in read)
            difference = Difference(
                difference.exact, difference.sqnr_db, difference.max_difference, difference.excess, True, begins
            )
        changes, detail = _changes(
            pair, infos, (names[0].get(pair.before, ""), names[1].get(key, "")), kinds, swallowed
        )
        found.append(
            LayerPair(
                before_id=_id(pair.before),
                after_id=_id(key),
                subgraph=_sub(key),
                before_name=names[0].get(pair.before, ""),
                after_name=names[1].get(key, ""),
                matched=pair.how,
                kind=kinds[1].get(key, ""),
                changes=changes,
                detail=detail,
                before_scale=infos[0].scale if infos[0] is not None else None,
                after_scale=infos[1].scale if infos[1] is not None else None,
                difference=difference,
                reason=reason,
            )
        )
    return found


def _far_less(one: Difference | None, other: Difference) -> bool:
    """Whether a tensor moved by far less than another that reads it: rounding alone adds up slowly, layer by layer."""
    if one is None or other.excess is None:
        return one is None or one.excess is not None
    return one.excess is not None and one.excess * JUMP < other.excess


def _sub(key: str) -> str:
    return key.rpartition(":")[0]


def _id(key: str) -> int:
    return int(key.rpartition(":")[2])


def _kinds(side: Side) -> dict[str, str]:
    return {device_key(s.name, i): kind for s in side.subgraphs.values() for i, kind in s.kinds.items()}


def _order(side: Side) -> list[str]:
    """Keys in order of execution."""
    found = [device_key(s.name, i) for s in side.subgraphs.values() for i in (s.order or sorted(s.names))]
    return list(dict.fromkeys(found))


def _edges(side: Side) -> dict[str, tuple[str, ...]]:
    return {
        device_key(s.name, i): tuple(device_key(s.name, source) for source in inputs)
        for s in side.subgraphs.values()
        for i, inputs in (s.edges or {}).items()
    }


def _known_inputs(key: str, edges: Mapping[str, tuple[str, ...]], known: Mapping[str, object]) -> set[str]:
    """What a layer reads, through layers that can't be compared, back to those that can."""
    waiting, seen, found = list(edges.get(key, ())), set[str](), set[str]()
    while waiting:
        now = waiting.pop()
        if now in seen:
            continue
        seen.add(now)
        entry = known.get(now)
        if isinstance(entry, tuple) and entry[0] is not None:
            found.add(now)
        else:
            waiting += edges.get(now, ())
    return found


def _swallowed(pairing: Pairing) -> dict[str, tuple[list[str], list[str]]]:
    """By the later compile's layer: which layers it computes too that were apart before, and which are apart now."""
    back = {pair.before: pair.after for pair in pairing.pairs}
    found: dict[str, tuple[list[str], list[str]]] = {}
    for key, into in pairing.fused_before.items():
        found.setdefault(into, ([], []))[0].append(key)
    for key, into in pairing.fused_after.items():
        if into in back:
            found.setdefault(back[into], ([], []))[1].append(key)
    return found


def _changes(
    pair: Paired,
    infos: tuple[Any, Any],
    names: tuple[str, str],
    kinds: Sequence[Mapping[str, str]],
    swallowed: Mapping[str, tuple[list[str], list[str]]],
) -> tuple[tuple[Change, ...], str]:
    found: list[Change] = []
    words = []
    if pair.before != pair.after:
        found.append("number")
        words.append(f"data id {_id(pair.before)} → {_id(pair.after)}")
    if names[0] != names[1]:
        found.append("name")
        words.append(f"{names[0]} → {names[1]}")
    if pair.after in swallowed:
        found.append("fusing")
        gone, fresh = swallowed[pair.after]
        words += [f"now computes data id {_id(k)} of before too" for k in gone]
        words += [f"no longer computes data id {_id(k)}, which is a layer of its own" for k in fresh]
    one, other = kinds[0].get(pair.before, ""), kinds[1].get(pair.after, "")
    if one and other and one != other and "fusing" not in found:
        found.append("kind")
        words.append(f"{one} → {other}")
    before, after = infos
    if before is not None and after is not None:
        pairs: tuple[tuple[Change, Any, Any], ...] = (
            ("shape", before.dims, after.dims),
            ("type", before.dtype, after.dtype),
            ("scale", before.scale, after.scale),
            ("zero_point", before.zero_point, after.zero_point),
        )
        for what, first, second in pairs:
            if first is None or second is None or _equal(first, second):
                continue
            found.append(what)
            words.append(f"{what.replace('_', ' ')} {_word(first)} → {_word(second)}")
    return tuple(found), "; ".join(words)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6)
    return bool(one == other)


def _word(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(list(value) if isinstance(value, tuple) else value)


def _alone(before: Side, after: Side, pairing: Pairing) -> list[Alone]:
    sides: tuple[tuple[Literal["before", "after"], Side, set[str], dict[str, str], Side], ...] = (
        ("before", before, {p.before for p in pairing.pairs}, pairing.fused_before, after),
        ("after", after, {p.after for p in pairing.pairs}, pairing.fused_after, before),
    )
    found = []
    for side, here, known, fused, there in sides:
        names, theirs, kinds = names_of(here.subgraphs), names_of(there.subgraphs), _kinds(here)
        for key in _order(here):
            if key in known or _id(key) not in here.subgraphs[_sub(key)].expected:
                continue
            other = "after" if side == "before" else "before"
            reason = (
                f"fused into {theirs.get(fused[key], fused[key])} {other}"
                if key in fused
                else f"no layer {other} has its name or its place in the graph"
            )
            found.append(Alone(side, _id(key), names.get(key, ""), kinds.get(key, ""), reason))
    return found


# --- what changed in the values -------------------------------------------------------------------------------------


def _steps(side: Side) -> dict[str, float]:
    """The step of the codes that a float tensor was converted from, by its key: finer than that it can't be right."""
    found = {}
    for subgraph in side.subgraphs.values():
        for layer in subgraph.layers:
            source = subgraph.info(layer.inputs[0]) if len(layer.inputs) == 1 else None
            if layer.kind != "TIDL_DataConvertLayer" or source is None or source.scale is None:
                continue
            if source.dtype not in (None, "float32"):
                found.update({device_key(subgraph.name, i): 1.0 / source.scale for i in layer.outputs})
    return found


def _difference(
    tensors: Sequence[Mapping[str, DeviceTensor]],
    pair: Paired,
    steps: tuple[Mapping[str, float], Mapping[str, float]],
    threshold: float,
) -> tuple[Difference | None, str]:
    one, other = tensors[0].get(pair.before), tensors[1].get(pair.after)
    for tensor, side in ((one, "before"), (other, "after")):
        if tensor is None or tensor.read is None:
            return None, f"there is no trace of it from {side}"
        if tensor.status != "ok":
            return None, f"its trace from {side} is {tensor.status.replace('_', ' ')}: {tensor.reason}"
        if tensor.dtype is None or tensor.scale is None or tensor.zero_point is None:
            return None, f"no table of {side} tells its scale and type"
    if one is None or other is None:
        return None, "there is no trace of it"
    if one.count != other.count:
        return None, f"it has {one.count} elements before and {other.count} after"
    return _measured(one, other, (steps[0].get(pair.before, 0.0), steps[1].get(pair.after, 0.0)), threshold)


def _measured(
    one: DeviceTensor, other: DeviceTensor, steps: tuple[float, float], threshold: float
) -> tuple[Difference | None, str]:
    encodings = [Encoding(t.dtype or "float32", t.scale or 1.0, t.zero_point or 0) for t in (one, other)]
    codes = one.codes(), other.codes()
    if encodings[0] == encodings[1] and np.array_equal(codes[0], codes[1]):
        return Difference(True, None, 0.0, 0.0, False, False), ""
    shape = other.dims
    sums = measure(codes[1].reshape(shape), encodings[0].values(codes[0]).reshape(shape), encodings[1], profiles=False)
    if sums.device_bad or sums.reference_bad:
        side = "after" if sums.device_bad else "before"
        return Difference(False, None, None, None, True, False), f"values of {side} are not finite"
    rms = math.sqrt(sums.f2 / sums.count) if sums.count else 0.0
    floor = sum(
        noise_floor(e, rms) + (0.0 if e.integer else step**2 / 12) for e, step in zip(encodings, steps, strict=True)
    )
    found = metrics(sums, encodings[1], floor)
    excess = found.excess if floor > 0 else (0.0 if not found.mse else None)
    return Difference(False, found.sqnr_db, found.max_error, excess, excess is None or excess > threshold, False), ""


def _outputs(after: Side, layers: Sequence[LayerPair]) -> list[OutputMove]:
    by_id = {(p.subgraph, p.after_id): p for p in layers}
    begins = tuple(p.after_name or str(p.after_id) for p in layers if p.difference is not None and p.difference.begins)
    found = []
    for subgraph in after.subgraphs.values():
        sinks = [layer for layer in subgraph.layers if not layer.outputs]
        for data_id in dict.fromkeys(i for layer in sinks for i in layer.inputs):
            pair, name = by_id.get((subgraph.name, data_id)), subgraph.names.get(data_id, str(data_id))
            if pair is None:
                found.append(OutputMove(name, None, "the earlier compile has no such output", ()))
            else:
                moved = pair.difference is not None and pair.difference.moved
                found.append(OutputMove(name, pair.difference, pair.reason, begins if moved else ()))
    return found


def _same_input(before: Side, after: Side) -> bool | None:
    """Whether both runs were fed the same: from the traces of what the network reads first; None where none tells."""
    if before.inputs and after.inputs:
        return before.inputs == after.inputs
    sides = [_entries(side) for side in (before, after)]
    if not sides[0] or len(sides[0]) != len(sides[1]):
        return None
    return all(_same_values(one, other) for one, other in zip(*sides, strict=True))


def _same_values(one: DeviceTensor, other: DeviceTensor) -> bool:
    """Equal to within both roundings, as far as both code ranges reach."""
    if one.count != other.count:
        return False
    encodings = [Encoding(t.dtype or "float32", t.scale or 1.0, t.zero_point or 0) for t in (one, other)]
    values = [encoding.values(t.codes()) for encoding, t in zip(encodings, (one, other), strict=True)]
    low = max(encoding.value_range[0] for encoding in encodings)
    high = min(encoding.value_range[1] for encoding in encodings)
    difference = np.abs(np.clip(values[0], low, high) - np.clip(values[1], low, high))
    return bool(difference.max(initial=0.0) <= sum(encoding.step for encoding in encodings) / 2 + 1e-5)


def _entries(side: Side) -> list[DeviceTensor]:
    usable = {(t.subgraph, t.data_id): t for t in side.tensors if t.status == "ok" and t.read is not None and t.scale}
    found = []
    for subgraph in side.subgraphs.values():
        inputs = {i for layer in subgraph.layers if not layer.inputs for i in layer.outputs}
        readers = [layer for layer in subgraph.layers if layer.inputs and all(i in inputs for i in layer.inputs)]
        converts = [i for layer in readers if layer.kind == "TIDL_DataConvertLayer" for i in layer.outputs]
        found += [usable[(subgraph.name, i)] for i in converts if (subgraph.name, i) in usable]
    return found


def _blamed(before: Comparison, after: Comparison) -> tuple[Blamed, ...]:
    """Culprits of both runs, matched by the float tensor."""
    sides = [
        {(c.layer if (t := r.layers[c.index].tensor) is None else t): c for c in r.culprits} for r in (before, after)
    ]
    found = [
        Blamed(c.layer, c.cause, c.sentence, "before" if tensor in sides[0] else "after")
        for tensor, c in sides[1].items()
    ]
    found += [Blamed(c.layer, c.cause, c.sentence, "cured") for tensor, c in sides[0].items() if tensor not in sides[1]]
    return tuple(found)
