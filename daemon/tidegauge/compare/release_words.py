"""A release comparison in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tidegauge.compare.release_load import Side
from tidegauge.compare.release_types import Alone, Blamed, Change, LayerPair, OutputMove, ProtoReuse


def notes(before: Side, after: Side, same_input: bool | None) -> list[str]:
    """What a reader must know besides."""
    found = [*before.notes, *after.notes]
    if same_input is False:
        found.append("The two runs were fed different inputs, so what moved is no work of the release alone.")
    if not (before.tensors and after.tensors):
        sides = " and ".join(s.label for s in (before, after) if not s.tensors)
        found.append(f"There are no traces in {sides}: compiles are compared, values are not.")
    return found


_WORDS: dict[Change, str] = {
    "number": "renumbered",
    "name": "renamed",
    "fusing": "fused otherwise",
    "kind": "of another kind",
    "shape": "of another shape",
    "type": "of another type",
    "scale": "rescaled",
    "zero_point": "with another zero point",
}


def sentence(
    layers: Sequence[LayerPair],
    alone: Sequence[Alone],
    outputs: Sequence[OutputMove],
    proto: ProtoReuse,
    blamed: Sequence[Blamed],
    same_input: bool | None,
    coverage: float,
    minimum: float,
) -> str:
    """The whole answer in one sentence."""
    parts = []
    if coverage < minimum:
        parts.append(f"only {coverage:.0%} of the layers could be matched, too few for a verdict")
    fresh = [each for each in blamed if each.since == "after"]
    if fresh:
        parts.append(
            f"layer {fresh[0].layer} became wrong by itself" + (f" and {len(fresh) - 1} more" * (len(fresh) > 1))
        )
    moved = [o for o in outputs if o.difference is not None and o.difference.moved]
    for output in moved[:2]:
        sqnr = output.difference.sqnr_db if output.difference is not None else None
        level = f" (SQNR {sqnr:.1f} dB against before)" if sqnr is not None else ""
        begins = f", beginning at {_list(output.begins)}" if output.begins else ", little by little over the layers"
        parts.append(f"output {output.name} moved{level}{begins}")
    if not moved and any(o.difference is not None for o in outputs):
        exact = all(o.difference.exact for o in outputs if o.difference is not None)
        parts.append("the output is the same bit by bit" if exact else "the output stayed within its rounding")
    counts = Counter(change for layer in layers for change in layer.changes)
    told = ", ".join(f"{counts[c]} {w}" for c, w in _WORDS.items() if counts[c])
    lonely = [a for a in alone if not a.reason.startswith("fused")]
    told += (", " if told and lonely else "") + (f"{len(lonely)} without a twin" if lonely else "")
    parts.append(f"of {len(layers)} layers {told}" if told else f"all {len(layers)} layers are as before")
    if same_input is False:
        parts.append("but the two runs were fed different inputs")
    parts.append(proto.sentence)
    return _capital("; ".join(parts)) + "."


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
