"""Which float tensor a device tensor is: by whole names, through TIDL's aliases; never by substring or order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tidegauge.compare.model import NET_FORMAT, ORIGINAL, Model, add_aliases
from tidegauge.compare.types import Matched


@dataclass(frozen=True)
class Match:
    """A device tensor's twin: `tensor` in the model with aliases, or None and the `reason` why there is none."""

    tensor: str | None
    how: Matched
    reason: str = ""


def sanitise(name: str) -> str:
    """A tensor name as it stands in file names: TI's tools write `_` for `/` and touch nothing else."""
    return name.replace("/", "_")


def match(model: Model, names: Sequence[str]) -> list[Match]:
    """A match for each device tensor name, in order; adds TIDL's aliases to the model.

    Two device tensors of one name, or a sanitised name that fits two float tensors, stay unmatched: a wrong pair is
    worse than none.
    """
    possible = {tensor + NET_FORMAT: tensor for tensor in model.inputs}
    possible |= {tensor + ORIGINAL: tensor for tensor in model.outputs}
    device = set(names) | {sanitise(name) for name in names}
    aliases = add_aliases(model, [alias for alias in possible if alias in device or sanitise(alias) in device])
    known = set(model.tensors)
    by_file_name: dict[str, list[str]] = {}
    for tensor in known:
        by_file_name.setdefault(sanitise(tensor), []).append(tensor)
    matches = [_one(name, known, by_file_name, aliases) for name in names]
    times = Counter(found.tensor for found in matches if found.tensor is not None)
    return [
        Match(None, "none", f"{times[found.tensor]} device tensors claim the name {found.tensor}")
        if found.tensor is not None and times[found.tensor] > 1
        else found
        for found in matches
    ]


def _one(name: str, known: set[str], by_file_name: dict[str, list[str]], aliases: dict[str, str]) -> Match:
    if not name:
        return Match(None, "none", "neither layer_info nor netLog names this data id")
    if name in known:
        return Match(name, _how(name, aliases, "name"))
    twins = by_file_name.get(sanitise(name), [])
    if len(twins) == 1:
        return Match(twins[0], _how(twins[0], aliases, "sanitised"))
    if twins:
        return Match(None, "none", f"the name fits {len(twins)} tensors of the model: {', '.join(sorted(twins))}")
    return Match(None, "none", "the model has no tensor of this name; the compiler added or renamed it")


def _how(tensor: str, aliases: dict[str, str], otherwise: Matched) -> Matched:
    if tensor not in aliases:
        return otherwise
    return "input" if tensor.endswith(NET_FORMAT) else "original"
