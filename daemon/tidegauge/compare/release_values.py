"""How well two device tensors, one of each of two runs, agree: evidence for pairing layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from tidegauge.compare.evidence import Values
from tidegauge.compare.lineage import device_key
from tidegauge.compare.pairing import Score
from tidegauge.compare.traces import DeviceTensor

Array = NDArray[Any]


def trace_values(before: Sequence[DeviceTensor], after: Sequence[DeviceTensor]) -> Score:
    """How well two device tensors, one of each run, agree up to a straight line."""
    sides = [{device_key(t.subgraph, t.data_id): t for t in tensors} for tensors in (before, after)]

    def codes(names: Sequence[str]) -> dict[str, Array]:
        there = {n: sides[1][n] for n in names if n in sides[1]}
        return {n: t.codes() for n, t in there.items() if t.status == "ok" and t.read is not None and t.dtype}

    values = Values(codes)

    def score(one: str, other: str) -> float | None:
        tensor = sides[0].get(one)
        return values.score(tensor, other) if tensor is not None else None

    return score
