"""Two comparisons side by side: what differs in what ran, and layer by layer in what was found. Pure."""

from __future__ import annotations

import msgspec

from tidegauge.collector.compare_process import CoverageShare, NamedCulprit


class _Numbers(msgspec.Struct, frozen=True):
    sqnr_db: float | None = None


class _Layer(msgspec.Struct, frozen=True):
    name: str
    tensor: str | None = None
    status: str = ""
    verdict: str = ""
    excess: float | None = None
    local: _Numbers | None = None
    cumulative: _Numbers | None = None


class _Output(msgspec.Struct, frozen=True):
    name: str
    metrics: _Numbers


class _Subject(msgspec.Struct, frozen=True):
    model: str = ""
    hashes: dict[str, str] = {}
    versions: dict[str, str] = {}
    options: dict[str, str] = {}


class Side(msgspec.Struct, frozen=True):
    """What is read of a `compare.types.Comparison`, without importing all that a comparison needs."""

    sentence: str
    subject: _Subject
    coverage: CoverageShare
    culprits: tuple[NamedCulprit, ...] = ()
    layers: tuple[_Layer, ...] = ()
    outputs: tuple[_Output, ...] = ()


class Differing(msgspec.Struct, frozen=True):
    """Something that ran on the two: `what` it is ("model", "versions", "options", "hashes"), by `name`; "" absent."""

    what: str
    name: str
    one: str
    other: str


class LayerPair(msgspec.Struct, frozen=True):
    """A layer on both sides: verdict, local and cumulative SQNR in dB, excess over the healthy noise; None undefined.

    `changed`: the verdict is another, or the layer is on one side only (then its verdict there is "").
    """

    layer: str
    one_verdict: str
    other_verdict: str
    one_local_db: float | None
    other_local_db: float | None
    one_cumulative_db: float | None
    other_cumulative_db: float | None
    one_excess: float | None
    other_excess: float | None
    changed: bool


class SideBySide(msgspec.Struct, frozen=True):
    """`layers` in the order of the one, then those that only the other has."""

    one_sentence: str
    other_sentence: str
    one_coverage: float
    other_coverage: float
    differing: tuple[Differing, ...]
    outputs: tuple[LayerPair, ...]
    layers: tuple[LayerPair, ...]


def read_side(data: bytes) -> Side:
    """Of a stored comparison's JSON. Raises msgspec.DecodeError."""
    return msgspec.json.decode(data, type=Side)


def side_by_side(one: Side, other: Side) -> SideBySide:
    return SideBySide(
        one_sentence=one.sentence,
        other_sentence=other.sentence,
        one_coverage=one.coverage.share,
        other_coverage=other.coverage.share,
        differing=_differing(one.subject, other.subject),
        outputs=_outputs(one, other),
        layers=_layers(one, other),
    )


def _differing(one: _Subject, other: _Subject) -> tuple[Differing, ...]:
    out = [] if one.model == other.model else [Differing("model", "", one.model, other.model)]
    for what in ("versions", "options", "hashes"):
        mine, its = getattr(one, what), getattr(other, what)
        for name in sorted({*mine, *its}):
            if mine.get(name) != its.get(name):
                out.append(Differing(what, name, mine.get(name, ""), its.get(name, "")))
    return tuple(out)


def _layers(one: Side, other: Side) -> tuple[LayerPair, ...]:
    mine, its = _by_name(one), _by_name(other)
    return tuple(_pair(name, mine.get(name), its.get(name)) for name in [*mine, *(n for n in its if n not in mine)])


def _by_name(side: Side) -> dict[str, _Layer]:
    """By the tensor of the model, which stays the same where a compile names its layers otherwise."""
    return {layer.tensor or layer.name: layer for layer in side.layers}


def _pair(name: str, one: _Layer | None, other: _Layer | None) -> LayerPair:
    verdicts = ("" if one is None else one.verdict, "" if other is None else other.verdict)
    return LayerPair(
        layer=name,
        one_verdict=verdicts[0],
        other_verdict=verdicts[1],
        one_local_db=_db(one.local if one else None),
        other_local_db=_db(other.local if other else None),
        one_cumulative_db=_db(one.cumulative if one else None),
        other_cumulative_db=_db(other.cumulative if other else None),
        one_excess=one.excess if one else None,
        other_excess=other.excess if other else None,
        changed=verdicts[0] != verdicts[1],
    )


def _outputs(one: Side, other: Side) -> tuple[LayerPair, ...]:
    mine = {output.name: _Layer(output.name, cumulative=output.metrics) for output in one.outputs}
    its = {output.name: _Layer(output.name, cumulative=output.metrics) for output in other.outputs}
    return tuple(_pair(name, mine.get(name), its.get(name)) for name in [*mine, *(n for n in its if n not in mine)])


def _db(numbers: _Numbers | None) -> float | None:
    return None if numbers is None else numbers.sqnr_db
