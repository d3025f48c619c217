"""What the collector knows, in a database: SQLite by default, the same statements on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Engine, Select, Table, and_, create_engine, event, exists, func, inspect, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import OperationalError

from tidegauge.bundles.manifest import Manifest, blobs_of
from tidegauge.clocks import Wall
from tidegauge.collector import tables
from tidegauge.collector.device_metrics import ActiveAlarm
from tidegauge.collector.tables import (
    Bundle,
    BundleState,
    Device,
    Totals,
    Transfer,
    TransferState,
    alarms,
    blobs,
    bundle_blobs,
    bundles,
    devices,
    transfers,
)
from tidegauge.errors import TidegaugeError
from tidegauge.link.wire import AlarmChange, Status

Row = TypeVar("Row")
Ranges = tuple[tuple[int, int], ...]


class BundleConflict(TidegaugeError):
    """A device has used one bundle id for two manifests."""


class Store:
    """Synchronous and thread-safe; the event loop calls it in a thread. Each method is one transaction."""

    def __init__(self, path: Path) -> None:
        self._engine = _open(path)
        self._reading = self._engine.execution_options(reading=True)

    def close(self) -> None:
        self._engine.dispose()

    # --- devices ---------------------------------------------------------------------------------------------

    def set_status(self, device: str, status: Status, now: Wall) -> bool:
        """Record a status. False where it belongs to an older session than the one known: a late will, ignored."""
        row = {"device": device, **msgspec.to_builtins(status), "last_seen": now}
        with self._engine.begin() as connection:
            known = connection.execute(select(devices.c.session).where(devices.c.device == device)).scalar()
            if known is not None and known > status.session:
                return False
            # A will knows nothing of phase and model, and is not a sign of life: keep what the device said last.
            _upsert(connection, devices, row, only=("session", "state") if status.state == "lost" else ())
        return True

    def seen(self, device: str, now: Wall) -> None:
        """A device has sent something. One that has not told its status yet has the state "unknown"."""
        row = {"device": device, **msgspec.to_builtins(Status("online", 0)), "state": "unknown", "last_seen": now}
        with self._engine.begin() as connection:
            _upsert(connection, devices, row, only=("last_seen",))

    def set_alarm(self, device: str, alarm: AlarmChange, now: Wall) -> None:
        row = {
            "device": device,
            "alarm": alarm.id,
            "active": alarm.active,
            "detector": alarm.detector,
            "verdict": alarm.verdict,
            "symptoms": list(alarm.symptoms),
            "message": alarm.message,
            "wall": alarm.wall,
            "received": now,
        }
        with self._engine.begin() as connection:
            _upsert(connection, alarms, row)

    def devices(self) -> list[Device]:
        active = (
            select(func.count())
            .select_from(alarms)
            .where(and_(alarms.c.device == devices.c.device, alarms.c.active))
            .scalar_subquery()
        )
        return self._rows(select(devices, active.label("alarms")).order_by(devices.c.device), Device)

    def active_alarms(self) -> list[ActiveAlarm]:
        """Alarms that were raised and not cleared, of all devices."""
        columns = (alarms.c.device, alarms.c.detector, alarms.c.verdict, alarms.c.received)
        return self._rows(select(*columns).where(alarms.c.active), ActiveAlarm)

    # --- transfers -------------------------------------------------------------------------------------------

    def transfer(self, device: str, file_id: str) -> tuple[Transfer, dict[str, Any]] | None:
        """A transfer and the init message it began with."""
        where = and_(transfers.c.device == device, transfers.c.file_id == file_id)
        with self._reading.begin() as connection:
            row = connection.execute(select(transfers).where(where)).first()
        return None if row is None else (msgspec.convert(row, Transfer, from_attributes=True), row.init)

    def set_transfer(self, device: str, file_id: str, init: dict[str, Any], size: int, now: Wall) -> None:
        """A transfer begins (again)."""
        row = {
            "device": device,
            "file_id": file_id,
            "name": init.get("name", ""),
            "size": size,
            "coverage": [],
            "state": "receiving",
            "reason": "",
            "init": init,
            "started": now,
            "updated": now,
        }
        with self._engine.begin() as connection:
            _upsert(connection, transfers, row)

    def set_coverage(self, device: str, file_id: str, coverage: Ranges, now: Wall) -> None:
        self._update_transfer(device, file_id, coverage=[list(pair) for pair in coverage], updated=now)

    def end_transfer(self, device: str, file_id: str, state: TransferState, reason: str, now: Wall) -> None:
        self._update_transfer(device, file_id, state=state, reason=reason, updated=now)

    def _update_transfer(self, device: str, file_id: str, **values: object) -> None:
        where = and_(transfers.c.device == device, transfers.c.file_id == file_id)
        with self._engine.begin() as connection:
            connection.execute(transfers.update().where(where).values(**values))

    def open_transfers(self, device: str | None = None) -> list[Transfer]:
        """Transfers that have begun and not ended, of one device or of all."""
        query = select(*_columns(transfers, "init")).where(transfers.c.state == "receiving")
        return self._rows(query if device is None else query.where(transfers.c.device == device), Transfer)

    def refused(self, limit: int = 20) -> list[Transfer]:
        """The last files that were turned away, newest first."""
        query = select(*_columns(transfers, "init")).where(transfers.c.state == "refused")
        return self._rows(query.order_by(transfers.c.updated.desc()).limit(limit), Transfer)

    # --- blobs -----------------------------------------------------------------------------------------------

    def add_blob(self, sha256: str, size: int, now: Wall) -> list[tuple[str, str]]:
        """A blob is held, durably. Returns the bundles (device, bundle) that it has made complete."""
        with self._engine.begin() as connection:
            _upsert(connection, blobs, {"sha256": sha256, "size": size, "stored": now})
            waiting = (
                select(bundles.c.device, bundles.c.bundle)
                .join(bundle_blobs, _same_bundle())
                .where(and_(bundle_blobs.c.sha256 == sha256, bundles.c.state == "waiting_blobs"))
            )
            done = [(row.device, row.bundle) for row in connection.execute(waiting)]
            done = [key for key in done if not _lacking(connection, *key)]
            for device, bundle in done:
                _set_bundle(connection, device, bundle, state="complete", reason="")
        return done

    def has_blob(self, sha256: str) -> bool:
        with self._reading.begin() as connection:
            return connection.execute(select(blobs.c.size).where(blobs.c.sha256 == sha256)).first() is not None

    def forget_blob(self, sha256: str) -> None:
        """A blob's file is gone."""
        with self._engine.begin() as connection:
            connection.execute(blobs.delete().where(blobs.c.sha256 == sha256))

    # --- bundles ---------------------------------------------------------------------------------------------

    def add_bundle(self, manifest: Manifest, manifest_sha256: str, now: Wall) -> bool:
        """Take a bundle in by its manifest. Returns whether it is complete, and not yet compared.

        Raises BundleConflict where this device has sent another manifest under the same bundle id.
        """
        device, bundle = manifest.device, manifest.bundle_id
        with self._engine.begin() as connection:
            known = connection.execute(_one_bundle(device, bundle)).mappings().first()
            if known is not None and known["manifest_sha256"] != manifest_sha256:
                raise BundleConflict(
                    f"device {device} has sent bundle {bundle} before, with another manifest",
                    "a bundle id must not be used twice",
                )
            if known is None:
                connection.execute(bundles.insert().values(_bundle_row(manifest, manifest_sha256, now)))
                rows = [
                    {"device": device, "bundle": bundle, "sha256": blob.sha256, "size": blob.stored}
                    for blob in blobs_of(manifest).values()
                ]
                if rows:
                    connection.execute(bundle_blobs.insert(), rows)
            elif known["state"] not in ("received", "waiting_blobs"):
                return bool(known["state"] == "complete")
            lacking = len(_lacking(connection, device, bundle))
            state: BundleState = "waiting_blobs" if lacking else "complete"
            _set_bundle(connection, device, bundle, state=state, reason="")
        return not lacking

    def wanted(self, device: str, bundle: str) -> tuple[str, ...]:
        """The blobs of a bundle that are not here yet. Policy: all of them."""
        with self._reading.begin() as connection:
            return tuple(_lacking(connection, device, bundle))

    def bundle_of_manifest(self, device: str, manifest_sha256: str) -> Bundle | None:
        where = and_(bundles.c.device == device, bundles.c.manifest_sha256 == manifest_sha256)
        return next(iter(self._rows(_bundle_query().where(where), Bundle)), None)

    def set_bundle(self, device: str, bundle: str, state: BundleState, **values: object) -> None:
        """Move a bundle on; `values` are further columns of its row."""
        with self._engine.begin() as connection:
            _set_bundle(connection, device, bundle, state=state, **values)

    def bundle(self, device: str, bundle: str) -> Bundle | None:
        return next(iter(self._rows(_one_bundle(device, bundle), Bundle)), None)

    def bundles(self, limit: int = 200, state: BundleState | None = None) -> list[Bundle]:
        """Newest first."""
        query = _bundle_query().order_by(bundles.c.received.desc(), bundles.c.bundle).limit(limit)
        return self._rows(query if state is None else query.where(bundles.c.state == state), Bundle)

    def totals(self) -> Totals:
        with self._reading.begin() as connection:
            by_state = {
                table.name: {str(row[0]): int(row[1]) for row in connection.execute(_counts(table))}
                for table in (bundles, transfers)
            }
            count, size = connection.execute(select(func.count(), func.coalesce(func.sum(blobs.c.size), 0))).one()
        return Totals(bundles=by_state["bundles"], transfers=by_state["transfers"], blobs=count, blob_bytes=size)

    def _rows(self, query: Select[Any], kind: type[Row]) -> list[Row]:
        with self._reading.begin() as connection:
            return [msgspec.convert(row, kind, from_attributes=True) for row in connection.execute(query)]


def _open(path: Path) -> Engine:
    """Open or create the database. Raises TidegaugeError where it is not one, or is of a newer version."""
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 10.0})
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)
    try:
        with engine.begin() as connection:
            if inspect(connection).has_table("schema_version"):
                found = connection.execute(select(tables.schema_version.c.version)).scalar_one()
            else:
                tables.metadata.create_all(connection)
                connection.execute(tables.schema_version.insert().values(version=tables.SCHEMA))
                found = tables.SCHEMA
    except OperationalError as error:
        raise TidegaugeError(f"the database {path} can't be opened ({error.orig})", "check the key `data`") from error
    if found != tables.SCHEMA:
        raise TidegaugeError(
            f"the database {path} has schema {found}, this program knows schema {tables.SCHEMA}",
            "run the version of Tidegauge that wrote it, or give another folder as `data`",
        )
    return engine


def _configure(connection: Any, record: object) -> None:
    connection.isolation_level = None  # transactions are begun by `_begin`, not by the driver's guess
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    """A writer takes the lock at once: two transactions that begin as readers and turn writers would fail, "locked"."""
    reading = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _upsert(connection: Connection, table: Table, row: dict[str, Any], only: tuple[str, ...] = ()) -> None:
    """Insert a row, or update the one with its key (only some of its columns, where they are named)."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    keys = [column.name for column in table.primary_key]
    statement = insert(table).values(row)
    values = {name: value for name, value in row.items() if name not in keys and (not only or name in only)}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=values))


def _columns(table: Table, *without: str) -> Iterable[Any]:
    return [column for column in table.columns if column.name not in without]


def _same_bundle() -> Any:
    return and_(bundle_blobs.c.device == bundles.c.device, bundle_blobs.c.bundle == bundles.c.bundle)


def _one_bundle(device: str, bundle: str) -> Select[Any]:
    return _bundle_query().where(and_(bundles.c.device == device, bundles.c.bundle == bundle))


def _bundle_query() -> Select[Any]:
    named = select(func.count()).select_from(bundle_blobs).where(_same_bundle())
    held = named.where(exists().where(blobs.c.sha256 == bundle_blobs.c.sha256))
    return select(bundles, named.scalar_subquery().label("blobs"), held.scalar_subquery().label("blobs_held"))


def _lacking(connection: Connection, device: str, bundle: str) -> list[str]:
    here = exists().where(blobs.c.sha256 == bundle_blobs.c.sha256)
    query = select(bundle_blobs.c.sha256).where(
        and_(bundle_blobs.c.device == device, bundle_blobs.c.bundle == bundle, ~here)
    )
    return sorted(connection.execute(query).scalars())


def _set_bundle(connection: Connection, device: str, bundle: str, **values: object) -> None:
    where = and_(bundles.c.device == device, bundles.c.bundle == bundle)
    connection.execute(bundles.update().where(where).values(**values))


def _counts(table: Table) -> Select[Any]:
    return select(table.c.state, func.count()).group_by(table.c.state)


def _bundle_row(manifest: Manifest, manifest_sha256: str, now: Wall) -> dict[str, Any]:
    return {
        "device": manifest.device,
        "bundle": manifest.bundle_id,
        "manifest_sha256": manifest_sha256,
        "received": now,
        "created": manifest.created.wall,
        "virtual": manifest.virtual,
        "model": manifest.profile.name,
        "detector": manifest.cause.detector,
        "verdict": manifest.cause.verdict,
        "symptoms": list(manifest.cause.symptoms),
        "message": manifest.cause.message,
        "loss": manifest.loss,
        "state": "received",
        "reason": "",
        "sentence": "",
        "culprit": "",
        "culprit_cause": "",
        "report": False,
    }
