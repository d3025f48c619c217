"""What only the pages ask of the database: counts and choices."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import BigInteger, Select, and_, case, cast, func, literal, or_, select

from tidegauge.collector.database import Database
from tidegauge.collector.tables import alarms, bundles, devices, records

#: Names offered in a filter; more than these are found by searching.
CHOICES = 200


class FleetCounts(msgspec.Struct, frozen=True):
    """Devices in all, by state, and those with an alarm."""

    devices: int
    online: int
    lost: int
    stopped: int
    alarmed: int


class FleetChoices(msgspec.Struct, frozen=True):
    """Models and versions that devices have told, in order."""

    models: tuple[str, ...]
    versions: tuple[str, ...]


class ModelSet(msgspec.Struct, frozen=True):
    """One model with one network file on one SDK release.

    By bundles: `boards` that sent some of it, `culprits` and `fine` of them whose comparison found a culprit, or none,
    `refused` boards that sent one since their acceptance had failed. By the boards' own newest words: how many are
    `accepted`, `failed` or `accepting`. `first`, `last`: of its bundles, Unix seconds by the collector's clock; 0 where
    there is none.
    """

    model: str
    artifacts: str
    sdk: str
    boards: int
    bundles: int
    culprits: int
    fine: int
    refused: int
    first: float
    last: float
    accepted: int
    failed: int
    accepting: int

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes it a set."""
        return self.model, self.artifacts, self.sdk

    @property
    def told(self) -> int:
        """Boards that say they run it."""
        return self.accepted + self.failed + self.accepting


class Running(msgspec.Struct, frozen=True):
    """Boards whose newest status names a model, by phase."""

    model: str
    phase: str
    boards: int


class PageRows(Database):
    """Reading only."""

    def fleet_counts(self) -> FleetCounts:
        raised = select(alarms.c.device).where(alarms.c.active)
        alarmed = or_(devices.c.alarm != "", devices.c.device.in_(raised))
        states = ("online", "lost", "stopped")
        columns: list[Any] = [
            func.count().label("devices"),
            *(func.count(case((devices.c.state == state, 1))).label(state) for state in states),
            func.count(case((alarmed, 1))).label("alarmed"),
        ]
        query: Select[Any] = select(*columns).select_from(devices)
        return self._rows(query, FleetCounts)[0]

    def fleet_choices(self) -> FleetChoices:
        return FleetChoices(self._distinct(devices.c.model), self._distinct(devices.c.version))

    def model_sets(self, limit: int = 200) -> list[ModelSet]:
        """Those with the newest bundles first, then those that most boards run."""
        found = {each.key: each for each in self._told_sets(limit)}
        for each in self._sent_sets(limit):
            told = found.get(each.key)
            if told is not None:
                each = msgspec.structs.replace(
                    each, accepted=told.accepted, failed=told.failed, accepting=told.accepting
                )
            found[each.key] = each
        return sorted(found.values(), key=lambda each: (-each.last, -each.told, each.key))[:limit]

    def _told_sets(self, limit: int) -> list[ModelSet]:
        """By what boards tell of themselves: a healthy one sends no bundle."""
        groups = (devices.c.model, devices.c.artifacts, devices.c.sdk)
        told = {"accepted": "accepted", "failed": "failed", "accepting": "running"}
        query: Select[Any] = (
            select(
                *groups,
                *(func.count(case((devices.c.acceptance == word, 1))).label(name) for name, word in told.items()),
                *(
                    literal(0).label(name)
                    for name in ("boards", "bundles", "culprits", "fine", "refused", "first", "last")
                ),
            )
            .where(devices.c.acceptance != "")
            .group_by(*groups)
            .order_by(func.count().desc(), *groups)
            .limit(limit)
        )
        return self._rows(query, ModelSet)

    def _sent_sets(self, limit: int) -> list[ModelSet]:
        groups = (bundles.c.model, bundles.c.artifacts, bundles.c.sdk)
        fine = and_(bundles.c.state == "compared", bundles.c.exit_code == 0)
        counted = {
            "bundles": func.count(),
            "culprits": func.count(case((bundles.c.culprit != "", 1))),
            "fine": func.count(case((fine, 1))),
        }
        boards = (  # by board first: a count of distinct boards would sort all bundles
            select(
                *groups,
                *(each.label(name) for name, each in counted.items()),
                func.max(case((bundles.c.detector == "acceptance", 1), else_=0)).label("refused"),
                func.min(bundles.c.received).label("first"),
                func.max(bundles.c.received).label("last"),
            )
            .group_by(*groups, bundles.c.device)
            .subquery("boards")
        )
        by = [boards.c[column.name] for column in groups]
        last = func.max(boards.c.last)
        query: Select[Any] = (
            select(
                *by,
                func.count().label("boards"),
                *(cast(func.sum(boards.c[name]), BigInteger).label(name) for name in (*counted, "refused")),
                func.min(boards.c.first).label("first"),
                last.label("last"),
                *(literal(0).label(name) for name in ("accepted", "failed", "accepting")),
            )
            .group_by(*by)
            .order_by(last.desc(), *by)
            .limit(limit)
        )
        return self._rows(query, ModelSet)

    def running(self) -> list[Running]:
        """How many boards run each model, and how far they are."""
        groups = (devices.c.model, devices.c.phase)
        query = select(*groups, func.count().label("boards")).group_by(*groups).order_by(*groups).limit(10 * CHOICES)
        return self._rows(query, Running)

    def newest_record(self, device: str) -> str:
        """Id of the newest hour of history, "" where there is none: it changes when another one has come."""
        where = and_(records.c.device == device, records.c.kind == "history")
        query = select(records.c.record).where(where).order_by(records.c.at.desc(), records.c.record.desc()).limit(1)
        with self._reading.begin() as connection:
            return str(connection.execute(query).scalar() or "")

    def _distinct(self, column: Any) -> tuple[str, ...]:
        query = select(column).where(column != "").distinct().order_by(column).limit(CHOICES)
        with self._reading.begin() as connection:
            return tuple(connection.execute(query).scalars())
