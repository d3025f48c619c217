"""A device's past on one time axis: curves of its history, and marks of what happened. Pure.

All times are Unix seconds of the board's own clock, which may be wrong: what it recorded together stays together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from tidegauge.collector.fleet_rows import Alarm
from tidegauge.collector.history_points import HistoryPoint
from tidegauge.collector.tables import Bundle
from tidegauge.spool.records import Sums

MarkKind = Literal["alarm", "capture", "restart", "reboot", "version", "artifacts"]


class Curve(msgspec.Struct, frozen=True):
    """Means of parts of the time, with the least and the largest value in each; None where nothing was measured."""

    at: list[float]
    mean: list[float | None]
    least: list[float | None]
    most: list[float | None]


class EvidenceCurve(msgspec.Struct, frozen=True):
    """Of one detector: highest share of its limit in each part of the time, 1: alarm; the logarithms at its end."""

    detector: str
    at: list[float]
    share: list[float | None]
    evidence: list[float]
    limit: list[float]


class Mark(msgspec.Struct, frozen=True):
    """Something that happened. `path`: of the page that tells more, without the base; "" for none."""

    kind: MarkKind
    at: float
    text: str
    path: str = ""


class Timeline(msgspec.Struct, frozen=True):
    """`since`…`until`: the time that was asked for."""

    since: float
    until: float
    loss: Curve
    temperature: Curve
    evidence: list[EvidenceCurve]
    marks: list[Mark]


def timeline(
    points: Sequence[HistoryPoint], alarms: Iterable[Alarm], bundles: Iterable[Bundle], since: float, until: float
) -> Timeline:
    """`points` in time's order; of alarms and bundles, those within the time."""
    marks = [*_changes(points), *_alarms(alarms), *_captures(bundles)]
    return Timeline(
        since=since,
        until=until,
        loss=_curve(points, [point.loss for point in points]),
        temperature=_curve(points, [point.temperature for point in points]),
        evidence=_evidence(points),
        marks=sorted((mark for mark in marks if since <= mark.at < until), key=lambda mark: (mark.at, mark.kind)),
    )


def mean(sums: Sums) -> float | None:
    return sums.sum / sums.count if sums.count else None


def _curve(points: Sequence[HistoryPoint], sums: Sequence[Sums]) -> Curve:
    return Curve(
        at=[point.ended for point in points],
        mean=[mean(each) for each in sums],
        least=[each.least for each in sums],
        most=[each.most for each in sums],
    )


def _evidence(points: Sequence[HistoryPoint]) -> list[EvidenceCurve]:
    curves = []
    for name in sorted({name for point in points for name in point.evidence}):
        found = [(point.ended, point.evidence[name]) for point in points if name in point.evidence]
        curves.append(
            EvidenceCurve(
                detector=name,
                at=[at for at, _ in found],
                share=[each.peak for _, each in found],
                evidence=[each.last for _, each in found],
                limit=[each.limit for _, each in found],
            )
        )
    return curves


def _changes(points: Sequence[HistoryPoint]) -> Iterable[Mark]:
    """What a point has that the one before had not: another boot, run of the agent, program, or artifacts."""
    for point in points:
        if len(point.boots) > 1:
            yield Mark("reboot", point.began, f"{len(point.boots) - 1} × rebooted until the next point")
    for before, now in pairwise(points):
        if now.boots[0] != before.boots[-1]:
            yield Mark("reboot", now.began, "rebooted")
        elif now.sessions[0] != before.sessions[-1]:
            yield Mark("restart", now.began, "agent started again")
        if now.program != before.program:
            yield Mark("version", now.began, f"Tidegauge {before.program or '?'} → {now.program or '?'}")
        if (now.model, now.artifacts) != (before.model, before.artifacts):
            old, new = (f"{each.model} {each.artifacts or '?'}" for each in (before, now))
            yield Mark("artifacts", now.began, f"{old} → {new}")


def _alarms(alarms: Iterable[Alarm]) -> Iterable[Mark]:
    for alarm in alarms:
        state = "latched" if alarm.active else "cleared"
        yield Mark("alarm", alarm.wall, f"{alarm.detector}: {alarm.message} ({alarm.verdict}, {state})")


def _captures(bundles: Iterable[Bundle]) -> Iterable[Mark]:
    for bundle in bundles:
        found = f"{bundle.culprit} {bundle.culprit_cause}".strip() or bundle.state
        yield Mark("capture", bundle.created, f"capture: {found}", f"/bundles/{bundle.device}/{bundle.bundle}")
