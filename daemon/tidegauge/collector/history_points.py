"""Hours of a board's history, merged into as few points as a picture needs. Pure.

Sums merge exactly. What can't be summed says what it is of: `evidence` at the end, and its highest share of its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from tidegauge.spool.records import HistoryRecord, Sums


class EvidencePoint(msgspec.Struct, frozen=True):
    """Of one detector: logarithm and limit at the end, and the highest share of the limit that it reached."""

    last: float
    limit: float
    peak: float | None


class HistoryPoint(msgspec.Struct, frozen=True):
    """`hours` records between `began` and `ended` (Unix seconds of the board's clock). `boots`: boot ids in them;
    `sessions`: runs of the agent. `model`, `artifacts`, `program`, `phase` at the end; the rest as in the records.
    """

    began: float
    ended: float
    hours: int
    boots: tuple[str, ...]
    sessions: tuple[int, ...]
    model: str
    artifacts: str
    program: str
    phase: str
    counts: dict[str, int]
    loss: Sums
    nmse: Sums
    temperature: Sums
    light: dict[str, int]
    evidence: dict[str, EvidencePoint]
    alarms: tuple[str, ...]


def merged(records: Iterable[HistoryRecord], since: float, until: float, points: int) -> list[HistoryPoint]:
    """At most `points`, each of the records that ended in an equal part of `since`…`until`, in time's order.

    `records` in the order of their end; one at a time is held. A part without a record gives no point.
    """
    width = (until - since) / points
    out: list[HistoryPoint] = []
    place = -1
    for record in records:
        part = min(points - 1, max(0, int((record.ended.wall - since) / width))) if width > 0 else 0
        if out and part == place:
            out[-1] = _join(out[-1], record)
        else:
            out.append(_point(record))
        place = part
    return out


def merge_sums(one: Sums, other: Sums) -> Sums:
    """Of both. Buckets of other edges can't be added: then there are none."""
    if not one.count and not one.undefined:
        return other
    if not other.count and not other.undefined:
        return one
    same = one.edges == other.edges and len(one.buckets) == len(other.buckets)
    return Sums(
        count=one.count + other.count,
        sum=one.sum + other.sum,
        squares=one.squares + other.squares,
        least=_pick(min, one.least, other.least),
        most=_pick(max, one.most, other.most),
        buckets=tuple(a + b for a, b in zip(one.buckets, other.buckets, strict=True)) if same else (),
        edges=one.edges if same else (),
        undefined=one.undefined + other.undefined,
    )


def _point(record: HistoryRecord) -> HistoryPoint:
    return HistoryPoint(
        began=record.began.wall,
        ended=record.ended.wall,
        hours=1,
        boots=(record.ended.boot_id,),
        sessions=(record.session,),
        model=record.model,
        artifacts=record.artifacts,
        program=record.program,
        phase=record.phase,
        counts=dict(record.counts),
        loss=record.loss,
        nmse=record.nmse,
        temperature=record.temperature,
        light=dict(record.light),
        evidence={
            name: EvidencePoint(last, limit, _share(last, limit)) for name, (last, limit) in record.evidence.items()
        },
        alarms=record.alarms,
    )


def _join(point: HistoryPoint, record: HistoryRecord) -> HistoryPoint:
    new = _point(record)
    return HistoryPoint(
        began=min(point.began, new.began),
        ended=new.ended,
        hours=point.hours + 1,
        boots=_with(point.boots, new.boots),
        sessions=_with(point.sessions, new.sessions),
        model=new.model,
        artifacts=new.artifacts,
        program=new.program,
        phase=new.phase,
        counts=_added(point.counts, new.counts),
        loss=merge_sums(point.loss, new.loss),
        nmse=merge_sums(point.nmse, new.nmse),
        temperature=merge_sums(point.temperature, new.temperature),
        light=_added(point.light, new.light),
        evidence={
            **point.evidence,
            **{name: _later(point.evidence.get(name), it) for name, it in new.evidence.items()},
        },
        alarms=_with(point.alarms, new.alarms),
    )


def _later(before: EvidencePoint | None, now: EvidencePoint) -> EvidencePoint:
    peak = now.peak if before is None else _pick(max, before.peak, now.peak)
    return EvidencePoint(now.last, now.limit, peak)


def _share(value: float, limit: float) -> float | None:
    return value / limit if limit > 0 else None


def _pick(which: Callable[[float, float], float], one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return which(one, other)


def _added(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _with(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*one, *(each for each in other if each not in one))
