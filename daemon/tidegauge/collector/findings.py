"""The same fault on many boards is one finding: bundles with a culprit, grouped by what has the fault."""

from __future__ import annotations

import hashlib

import msgspec
from sqlalchemy import BigInteger, ColumnElement, and_, cast, func, select

from tidegauge.collector.database import Database
from tidegauge.collector.tables import bundles

#: Boards named with a finding; their number is always told.
MOST_DEVICES = 1000


class Finding(msgspec.Struct, frozen=True):
    """One fault. `artifacts`: SHA-256 of the network file, `sdk` the release, both "" where boards didn't say; `layer`
    and `cause` by the comparison. `devices`: how many boards have it, by `bundles` bundles. Times are Unix seconds by
    the collector's clock. `id` is made of the five that it is grouped by.
    """

    model: str
    artifacts: str
    sdk: str
    layer: str
    cause: str
    devices: int
    bundles: int
    first: float
    last: float

    @property
    def id(self) -> str:
        parts = (self.model, self.artifacts, self.sdk, self.layer, self.cause)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


class FoundOn(msgspec.Struct, frozen=True):
    """A board with a finding: its newest bundle, and how many there are."""

    device: str
    bundle: str
    bundles: int
    last: float


class FindingRows(Database):
    """Findings, from the answers that are there."""

    def findings(self, since: float = 0.0, limit: int = 200) -> list[Finding]:
        """Those with a bundle since a time, the ones on most boards first."""
        groups = (bundles.c.model, bundles.c.artifacts, bundles.c.sdk, bundles.c.culprit, bundles.c.culprit_cause)
        boards = (  # in the order of the index, so that nothing is sorted but what comes out of it
            select(
                *groups,
                func.count().label("bundles"),
                func.min(bundles.c.received).label("first"),
                func.max(bundles.c.received).label("last"),
            )
            .where(bundles.c.culprit != "")
            .group_by(*groups, bundles.c.device)
            .subquery("boards")
        )
        by = [boards.c[column.name] for column in groups]
        number, last = func.count(), func.max(boards.c.last)
        query = (
            select(
                boards.c.model,
                boards.c.artifacts,
                boards.c.sdk,
                boards.c.culprit.label("layer"),
                boards.c.culprit_cause.label("cause"),
                number.label("devices"),
                cast(func.sum(boards.c.bundles), BigInteger).label("bundles"),
                func.min(boards.c.first).label("first"),
                last.label("last"),
            )
            .group_by(*by)
            .having(last >= since)
            .order_by(number.desc(), last.desc())
            .limit(limit)
        )
        return self._rows(query, Finding)

    def found_on(self, finding: Finding) -> list[FoundOn]:
        """The boards of a finding, the latest first; `MOST_DEVICES` at most."""
        newest = (
            select(bundles.c.device, func.max(bundles.c.received).label("last"), func.count().label("bundles"))
            .where(_same(finding))
            .group_by(bundles.c.device)
            .order_by(func.max(bundles.c.received).desc(), bundles.c.device)
            .limit(MOST_DEVICES)
            .subquery()
        )
        join = and_(bundles.c.device == newest.c.device, bundles.c.received == newest.c.last, _same(finding))
        query = (
            select(newest.c.device, func.max(bundles.c.bundle).label("bundle"), newest.c.bundles, newest.c.last)
            .join(bundles, join)
            .group_by(newest.c.device, newest.c.bundles, newest.c.last)
            .order_by(newest.c.last.desc(), newest.c.device)
        )
        return self._rows(query, FoundOn)


def _same(finding: Finding) -> ColumnElement[bool]:
    return and_(
        bundles.c.model == finding.model,
        bundles.c.artifacts == finding.artifacts,
        bundles.c.sdk == finding.sdk,
        bundles.c.culprit == finding.layer,
        bundles.c.culprit_cause == finding.cause,
    )
