"""Which share of a layer's codes neither rounding nor the arithmetic of healthy layers explains."""

from __future__ import annotations

import numpy as np

from tidegauge.compare.baseline import Baseline
from tidegauge.compare.exactness import MOVES, Subject, by_kind, exact, unlike, unseen, usual
from tidegauge.compare.layers import STATED, Evaluation, Layer
from tidegauge.compare.oracle import TIERS
from tidegauge.compare.weights import weight_inputs
from tidegauge.tidl.tensor_table import codes_of


def tolerate(work: Evaluation, baseline: Baseline | None) -> None:
    """Set `unexplained` of every layer: against healthy runs where a baseline knows the layer, else against the rest
    of this run."""
    subjects = {id(layer): subject for layer in work.layers if (subject := _subject(work, layer)) is not None}
    healthy = baseline.beyond if baseline is not None else {}
    kinds = by_kind(list(subjects.values()), healthy)
    strict = exact(list(subjects.values()))
    for layer in work.layers:
        subject = subjects.get(id(layer))
        if subject is None:
            continue
        shares = usual(subject, healthy, kinds)
        if baseline is not None and shares is not None:
            layer.unexplained = unlike(subject, shares, unseen(baseline.runs))
        elif (strictly := strict.get(subject.name)) is not None:
            layer.unexplained = unlike(subject, strictly)


def predictable(work: Evaluation, layer: Layer) -> bool:
    """Whether scales and weights are known well enough to predict every code."""
    if layer.local is None:
        return False
    if "estimate" in (layer.tensor.source, *(work.by_twin[name].tensor.source for name in layer.reads)):
        return False
    if layer.match.how == "input" or (part := work.reference.region(layer.twin)) is None:
        return True
    weighted = bool(weight_inputs(work.reference.model, part.nodes))
    return not weighted or layer.weights == STATED or layer.weights_fit


def _subject(work: Evaluation, layer: Layer) -> Subject | None:
    if layer.oracle is None or layer.encoding is None or layer.hidden or not predictable(work, layer):
        return None
    bits = np.dtype(layer.encoding.dtype).itemsize * 8
    operators = layer.operators
    if set(operators) <= MOVES and not _same_codes(work, layer):
        operators = (*operators, "Requantise")
    beyond = _nearer(layer.oracle.beyond, _moved(work, layer))
    return Subject(layer.tensor.name, beyond, layer.tensor.count, bits, operators)


def _moved(work: Evaluation, layer: Layer) -> float:
    """How far off codes may be, in codes, since the scales of a layer and of what it reads are printed rounded."""
    doubts = [layer.tensor.doubt, *(work.by_twin[name].tensor.doubt for name in layer.reads)]
    return sum(doubts) * codes_of(layer.tensor.dtype)


def _nearer(beyond: tuple[float, ...], moved: float) -> tuple[float, ...]:
    """Shares beyond `TIERS` where every code may be nearer to the computed value by `moved`."""
    if moved <= 0.1 * TIERS[0]:
        return beyond
    return tuple(
        next((share for share, far in zip(beyond, TIERS, strict=True) if far >= tier + moved), 0.0) for tier in TIERS
    )


def _same_codes(work: Evaluation, layer: Layer) -> bool:
    """Whether a layer has the encoding of all that it reads: then codes are only moved."""
    return bool(layer.reads) and all(work.by_twin[name].encoding == layer.encoding for name in layer.reads)
