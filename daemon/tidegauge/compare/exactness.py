"""How far a healthy layer's codes may lie from the computed values: from healthy runs, else from this run's own layers.

Nobody outside TI knows how each kernel rounds. But a device shows it: where nearly all layers of a run agree with the
computed values to within a few hundredths of a code, a layer that is further off than the others is no healthy kernel,
however small its difference. Where the layers of a kind do not agree, theirs is another arithmetic, and only the wide
default limits hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from tidegauge.compare.oracle import TIERS

#: Share of codes that may lie beyond a tier in arithmetic that follows the computed values: a rare tie.
_RARE = 1e-4
#: At 16 bits codes are as fine as float32's own rounding of large sums: shares of codes that may lie beyond a tier.
_SUMS = {16: {0.002: 4e-3, 0.005: 2e-3, 0.01: 5e-4, 0.02: 1e-4, 0.1: 1e-5}}
#: Arithmetic follows the computed values where no more than a rare code is this far off. Past it by another arithmetic,
#: codes are wrong only near the middle of two: seldom by the second tier, in no more than this part of the differences.
_FOLLOWS, _NEAR, _CHOOSY = TIERS.index(0.05), TIERS.index(0.25), 0.2
#: A run's arithmetic is exact where so many layers, and this share of all that compute, follow it.
_LEAST, _SHARE = 4, 2 / 3
#: So many layers of a kind are peers enough; of fewer, all layers that follow are. Shares may be so many times theirs,
#: and reach so many times further.
_PEERS, _TIMES, _FURTHER = 3, 4.0, 5.0
#: Healthy runs of the same board show most of how far its codes lie off.
_LITTLE = 2.5
#: An event with this chance a run may happen; a kernel that approximates is off by less than this more than rounding.
_THREE, _UNLIKELY, _HALF = 3.0, 0.1, 0.5
#: Fewer codes than this say nothing about a kernel.
_TELLING = 64
#: Healthy shares vary with the input: by this factor, and by so many deviations of a Poisson count; where one is
#: possible at all, by one code, and by up to three where they are to be expected.
_MARGIN, _DEVIATIONS, _FEW, _SOME = 1.5, 6.0, 3.0, 40.0

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
    """A layer's codes: shares beyond `TIERS`, their number, bits of a code (32: float), operators."""

    name: str
    beyond: tuple[float, ...]
    count: int
    bits: int
    operators: tuple[str, ...]

    @property
    def kind(self) -> str:
        return kind_of(self.operators)


@cache
def kind_of(operators: tuple[str, ...]) -> str:
    """What a layer computes, for comparing kernels: its first operator that is not fused into another."""
    for operator in operators:
        if operator not in MOVES and operator not in _FUSED:
            return _KINDS.get(operator, operator)
    return "move"


def follows(subject: Subject) -> bool:
    """Whether the codes are those of the computed values, to within a few hundredths of a code."""
    return subject.beyond[_FOLLOWS] * subject.count < math.floor(_RARE * subject.count) + 0.5


def approximates(subject: Subject) -> bool:
    """Whether the codes are those of another arithmetic: wrong only where a value lies near the middle of two codes.

    A fault is not so choosy: it moves values wherever they lie.
    """
    return not follows(subject) and subject.beyond[_NEAR] <= _CHOOSY * subject.beyond[0]


def exact(subjects: Sequence[Subject]) -> dict[str, tuple[float, ...]]:
    """For layers (by name) that must follow the computed values since the others of this run do: what shares of codes
    beyond `TIERS` those others have.

    All that only move codes; and where the run's arithmetic is exact, those of every kind of which no majority of the
    other layers approximates.
    """
    telling = [s for s in subjects if s.kind != "move" and s.count >= _TELLING]
    right = [s for s in telling if follows(s)]
    other = [s for s in telling if approximates(s)]
    found = {s.name: (0.0,) * len(TIERS) for s in subjects if s.kind == "move"}
    if len(right) < _LEAST or len(right) < _SHARE * (len(right) + len(other)):
        return found
    for subject in subjects:
        same = [s for s in right if s.bits == subject.bits and s.name != subject.name]
        peers = [s for s in same if s.kind == subject.kind]
        against = sum(s.kind == subject.kind and s.name != subject.name for s in other)
        if len(peers) >= against and subject.kind != "move":
            found[subject.name] = _shares(peers if len(peers) >= _PEERS else same, subject.bits)
    return found


def _shares(peers: Sequence[Subject], bits: int) -> tuple[float, ...]:
    """What these layers leave beyond each tier, the worst quarter aside (one of them may be wrong), but no less than
    sums in float32 do."""
    least = _SUMS.get(bits, {})
    floor = [max((share for tier, share in least.items() if tier >= at), default=0.0) for at in TIERS]
    if not peers:
        return tuple(floor)
    place = -(-3 * len(peers) // 4) - 1
    usual = [sorted(column)[place] for column in zip(*(peer.beyond for peer in peers), strict=True)]
    far = _further(usual, _FURTHER)
    return tuple(min(1.0, max(_TIMES / _MARGIN * share, low)) for share, low in zip(far, floor, strict=True))


def _further(shares: Sequence[float], times: float) -> tuple[float, ...]:
    """The shares where every distance is so many times longer."""
    return tuple(max(s for s, near in zip(shares, TIERS, strict=True) if near * times >= tier) for tier in TIERS)


def unlike(subject: Subject, healthy: Sequence[float], unseen: float = 0.0) -> float:
    """The share of codes further off than healthy runs explain, at the tier where that is most; 0 where none is.

    `healthy`: largest healthy shares beyond `TIERS`. `unseen`: so many codes more may lie less than half a code past
    rounding, which the healthy runs were too few to show.
    """
    worst = 0.0
    for tier, share, usual in zip(TIERS, subject.beyond, healthy, strict=True):
        mean = _MARGIN * usual * subject.count
        few = min(_FEW, 1 + _SOME * mean) if mean else 0.0
        allowed = mean + _DEVIATIONS * math.sqrt(mean) + few + math.floor(_RARE * subject.count)
        allowed += unseen if tier < _HALF else 0.0
        if share * subject.count > allowed:
            worst = max(worst, share - allowed / subject.count)
    return worst


def unseen(runs: int) -> float:
    """Codes of a layer that may be off once although no healthy run showed it: by the rule of three an event that so
    many runs did not show may still have a chance of 3 / runs in the next one."""
    return 1.0 if _THREE / runs > _UNLIKELY else 0.0


def usual(
    subject: Subject, healthy: Mapping[str, tuple[float, ...]], kinds: Mapping[str, tuple[float, ...]]
) -> tuple[float, ...] | None:
    """Healthy shares for a layer: its own, or its kind's where that is more, since few codes show few cases; and what
    was seen at one tier may come a little further off."""
    own, kind = healthy.get(subject.name), kinds.get(subject.kind)
    if own is None:
        return None
    seen = own if kind is None else tuple(max(pair) for pair in zip(own, kind, strict=True))
    return _further(seen, _LITTLE)


def by_kind(subjects: Sequence[Subject], healthy: Mapping[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
    """The largest healthy shares of each kind of layer, from those with codes enough for a share."""
    found: dict[str, tuple[float, ...]] = {}
    for subject in subjects:
        shares = healthy.get(subject.name)
        if shares is not None and subject.count >= _TELLING:
            before = found.get(subject.kind, (0.0,) * len(TIERS))
            found[subject.kind] = tuple(max(pair) for pair in zip(before, shares, strict=True))
    return found
