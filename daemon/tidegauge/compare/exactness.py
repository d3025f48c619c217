"""How far a healthy layer's codes may lie from the computed values: from healthy runs, else from this run's own layers.

Nobody outside TI knows how each kernel rounds. But a device shows it: where nearly all layers of a run agree with the
computed values to the last code, a layer that does not is no healthy kernel, however small its difference. Where the
layers of a kind do not agree, theirs is another arithmetic, and only the wide default limits hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegauge.compare.oracle import TIERS

#: Share of codes that may lie beyond a tier in arithmetic that follows the computed values: a rare tie.
_RARE = 2e-4
#: At 16 bits codes are as fine as float32's own rounding of large sums: this share beyond the first tier, as a mean.
_SUMS = 1e-3
#: A run's arithmetic is exact where so many layers, and this share of all that compute, follow it.
_LEAST, _SHARE = 4, 2 / 3
#: An arithmetic of its own is seldom off by this tier more than rounding: in no more than this part of its differences.
_NEAR, _CHOOSY = TIERS.index(0.25), 0.2
#: Fewer codes than this say nothing about a kernel.
_TELLING = 64
#: Healthy shares vary with the input: by this factor, and by so many deviations of a Poisson count.
_MARGIN, _DEVIATIONS, _FEW = 1.5, 6.0, 3.0
_WIDE = 16

_KINDS = {
    "Conv": "convolution",
    "ConvTranspose": "convolution",
    "Gemm": "matrix",
    "MatMul": "matrix",
    "Add": "sum",
    "Sub": "sum",
    "Sum": "sum",
    "Mul": "product",
    "Div": "product",
    "AveragePool": "pooling",
    "GlobalAveragePool": "pooling",
    "ReduceMean": "pooling",
    "Resize": "resize",
}
#: Operators that move or choose values: exact in every arithmetic.
MOVES = frozenset(
    {"Identity", "Cast", "Flatten", "Reshape", "Transpose", "Slice", "Split", "Squeeze", "Unsqueeze", "MaxPool"}
)
_FUSED = frozenset({"Relu", "Clip", "LeakyRelu", "BatchNormalization"})


@dataclass(frozen=True)
class Subject:
    """A layer's codes: shares beyond `TIERS`, their number, bits of a code (8, 16; 32: float), operators."""

    name: str
    beyond: tuple[float, ...]
    count: int
    bits: int
    operators: tuple[str, ...]

    @property
    def kind(self) -> str:
        """What the layer computes, for comparing kernels: its first operator that is not fused into another."""
        for operator in self.operators:
            if operator not in MOVES and operator not in _FUSED:
                return _KINDS.get(operator, operator)
        return "move"


def follows(subject: Subject) -> bool:
    """Whether the codes are those of the computed values but for rounding in the computation itself."""
    rare = math.floor(_RARE * subject.count)
    mean = _SUMS * subject.count
    first = math.floor(mean + _DEVIATIONS * math.sqrt(mean)) + 1 if subject.bits == _WIDE else rare
    counts = [share * subject.count for share in subject.beyond]
    return counts[0] < first + 0.5 and all(count < rare + 0.5 for count in counts[1:])


def approximates(subject: Subject) -> bool:
    """Whether the codes are those of another arithmetic: wrong only where a value lies near the middle of two codes.

    A fault is not so choosy: it moves values wherever they lie.
    """
    return not follows(subject) and subject.beyond[_NEAR] <= _CHOOSY * subject.beyond[0]


def exact(subjects: Sequence[Subject]) -> frozenset[str]:
    """The layers (by name) that must follow the computed values, since the others of this run do.

    All that only move codes; and where the run's arithmetic is exact, those of every kind of which no majority of the
    other layers approximates.
    """
    telling = [s for s in subjects if s.kind != "move" and s.count >= _TELLING]
    right = {s.name for s in telling if follows(s)}
    other = {s.name for s in telling if approximates(s)}
    found = {s.name for s in subjects if s.kind == "move"}
    if len(right) < _LEAST or len(right) < _SHARE * (len(right) + len(other)):
        return frozenset(found)
    for subject in subjects:
        peers = {s.name for s in telling if s.kind == subject.kind} - {subject.name}
        if len(peers & right) >= len(peers & other):
            found.add(subject.name)
    return frozenset(found)


def unlike(subject: Subject, healthy: Sequence[float]) -> float:
    """The share of codes further off than healthy runs explain, at the tier where that is most; 0 where none is.

    `healthy`: largest healthy shares beyond `TIERS`.
    """
    worst = 0.0
    for share, usual in zip(subject.beyond, healthy, strict=True):
        mean = _MARGIN * usual * subject.count
        allowed = mean + _DEVIATIONS * math.sqrt(mean) + (_FEW if mean else 0.0) + math.floor(_RARE * subject.count)
        if share * subject.count > allowed:
            worst = max(worst, share - allowed / subject.count)
    return worst


def usual(
    subject: Subject, healthy: Mapping[str, tuple[float, ...]], kinds: Mapping[str, tuple[float, ...]]
) -> tuple[float, ...] | None:
    """Healthy shares for a layer: its own, or its kind's where that is more, since few codes show few cases."""
    own, kind = healthy.get(subject.name), kinds.get(subject.kind)
    if own is None or kind is None:
        return own
    return tuple(max(pair) for pair in zip(own, kind, strict=True))


def by_kind(subjects: Sequence[Subject], healthy: Mapping[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
    """The largest healthy shares of each kind of layer, from those with codes enough for a share."""
    found: dict[str, tuple[float, ...]] = {}
    for subject in subjects:
        shares = healthy.get(subject.name)
        if shares is not None and subject.count >= _TELLING:
            before = found.get(subject.kind, (0.0,) * len(TIERS))
            found[subject.kind] = tuple(max(pair) for pair in zip(before, shares, strict=True))
    return found
