"""What pages and API ask of the fleet: devices, alarms, bundles and history, some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, Select, and_, exists, func, or_, select

from tidegauge.collector.bundle_rows import bundle_query
from tidegauge.collector.database import Database
from tidegauge.collector.device_rows import device_query
from tidegauge.collector.record_rows import StoredRecord
from tidegauge.collector.tables import Bundle, BundleState, Device, alarms, bundles, devices, records
from tidegauge.spool.records import HistoryRecord

#: "drift": evidence as a share of its limit; "evidence": the e-value by which boards stand out from the fleet.
DeviceOrder = Literal["name", "last_seen", "state", "model", "version", "alarms", "drift", "loss", "evidence"]
#: Rows that are read from the database at once.
_PIECE = 500


class Alarm(msgspec.Struct, frozen=True):
    """An alarm that was raised; `active` until it is cleared. `wall` on the board's clock, `received` on ours."""

    device: str
    alarm: str
    active: bool
    detector: str
    verdict: str
    symptoms: tuple[str, ...]
    message: str
    wall: float
    received: float


class DeviceFilter(msgspec.Struct, frozen=True):
    """Which devices; "" and None match all. `search`: part of the name or model, whatever the case."""

    search: str = ""
    state: str = ""
    model: str = ""
    version: str = ""
    alarmed: bool | None = None


class BundleFilter(msgspec.Struct, frozen=True):
    """Which bundles; "" and None match all."""

    device: str = ""
    state: BundleState | Literal[""] = ""
    verdict: str = ""
    model: str = ""
    exit_code: int | None = None


class FleetRows(Database):
    """Reading only."""

    def find_devices(
        self,
        which: DeviceFilter,
        order: DeviceOrder = "name",
        descending: bool = False,
        limit: int = 200,
        offset: int = 0,
    ) -> list[Device]:
        """In an order; what a device has not told comes last, whichever way it is sorted."""
        query = device_query().where(_devices(which))
        key: ColumnElement[Any] = query.selected_columns.alarms if order == "alarms" else _ORDERS[order]
        key = (key.desc() if descending else key.asc()).nulls_last()
        return self._rows(query.order_by(key, devices.c.device).limit(limit).offset(offset), Device)

    def count_devices(self, which: DeviceFilter) -> int:
        return self._count(select(func.count()).select_from(devices).where(_devices(which)))

    def device(self, name: str) -> Device | None:
        return next(iter(self._rows(device_query().where(devices.c.device == name), Device)), None)

    def alarms(self, device: str = "", active: bool | None = None, limit: int = 200, offset: int = 0) -> list[Alarm]:
        """Newest first."""
        query = select(alarms).order_by(alarms.c.received.desc(), alarms.c.device, alarms.c.alarm)
        if device:
            query = query.where(alarms.c.device == device)
        if active is not None:
            query = query.where(alarms.c.active.is_(active))
        return self._rows(query.limit(limit).offset(offset), Alarm)

    def find_bundles(self, which: BundleFilter, limit: int = 200, offset: int = 0) -> list[Bundle]:
        """Newest first."""
        query = bundle_query().where(_bundles(which)).order_by(bundles.c.received.desc(), bundles.c.bundle)
        return self._rows(query.limit(limit).offset(offset), Bundle)

    def count_bundles(self, which: BundleFilter) -> int:
        return self._count(select(func.count()).select_from(bundles).where(_bundles(which)))

    def hours(self, device: str, since: float, until: float) -> Iterator[HistoryRecord]:
        """History of a board by its own clock, in the order of its end, a few rows at a time."""
        where = and_(records.c.device == device, records.c.kind == "history")
        where = and_(where, records.c.at >= since, records.c.at < until)
        query = select(records).where(where).order_by(records.c.at, records.c.record)
        with self._reading.begin() as connection:
            rows = connection.execution_options(yield_per=_PIECE).execute(query)
            for row in rows:
                stored = msgspec.convert(row, StoredRecord, from_attributes=True)
                record = stored.decoded()
                if isinstance(record, HistoryRecord):
                    yield record

    def _count(self, query: Select[Any]) -> int:
        with self._reading.begin() as connection:
            return int(connection.execute(query).scalar_one())


_ORDERS: dict[str, ColumnElement[Any]] = {
    "name": devices.c.device,
    "last_seen": devices.c.last_seen,
    "state": devices.c.state,
    "model": devices.c.model,
    "version": devices.c.version,
    "drift": devices.c.drift,
    "loss": devices.c.loss,
    "evidence": devices.c.log_e,
}


def _devices(which: DeviceFilter) -> ColumnElement[bool]:
    parts: list[ColumnElement[bool]] = [devices.c.device.isnot(None)]
    if which.search:
        parts.append(
            or_(*(column.icontains(which.search, autoescape=True) for column in (devices.c.device, devices.c.model)))
        )
    for column, value in (
        (devices.c.state, which.state),
        (devices.c.model, which.model),
        (devices.c.version, which.version),
    ):
        if value:
            parts.append(column == value)
    if which.alarmed is not None:
        raised = or_(devices.c.alarm != "", exists().where(and_(alarms.c.device == devices.c.device, alarms.c.active)))
        parts.append(raised if which.alarmed else ~raised)
    return and_(*parts)


def _bundles(which: BundleFilter) -> ColumnElement[bool]:
    parts: list[ColumnElement[bool]] = [bundles.c.device.isnot(None)]
    for column, value in (
        (bundles.c.device, which.device),
        (bundles.c.state, which.state),
        (bundles.c.verdict, which.verdict),
        (bundles.c.model, which.model),
    ):
        if value:
            parts.append(column == value)
    if which.exit_code is not None:
        parts.append(bundles.c.exit_code == which.exit_code)
    return and_(*parts)
