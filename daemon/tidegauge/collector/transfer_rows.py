"""Transfers in the database: one row a file of a device, whichever ingester a message reaches."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, exists, func, literal, or_, select, update

from tidegauge.clocks import Wall
from tidegauge.collector.coverage import Coverage
from tidegauge.collector.database import Database, batches, columns, now_of, upsert
from tidegauge.collector.tables import Transfer, TransferState, blobs, executors, pulled, transfers
from tidegauge.link import ranges
from tidegauge.link.ranges import Ranges

#: Seconds after which a file that a living ingester began to check may be checked by another: the first is stuck.
VERIFYING_SECONDS = 300.0
_DAY = 86400.0
_UNCLAIMED: dict[str, Any] = {"verifying": 0.0, "verifier": ""}


class Claimant(msgspec.Struct, frozen=True):
    """A process that checks files: its name among the `executors`, and the seconds without a heartbeat after which it
    takes another for dead.
    """

    executor: str
    dead_after: float


class Claim(msgspec.Struct, frozen=True):
    """Whether the check of a file is the caller's; else the seconds that another process has had it, 0 where it has
    just ended.
    """

    mine: bool
    seconds: float = 0.0


class TransferRows(Database):
    """Which bytes of which file are here."""

    def transfer(self, device: str, file_id: str) -> tuple[Transfer, dict[str, Any]] | None:
        """A transfer and the init message it began with."""
        with self._reading.begin() as connection:
            return _transfer(connection, device, file_id)

    def known(self, device: str, file_id: str) -> tuple[tuple[Transfer, dict[str, Any]] | None, bool]:
        """The same, and whether the file's bytes are held, whoever sent them."""
        with self._reading.begin() as connection:
            held = connection.execute(select(blobs.c.size).where(blobs.c.sha256 == file_id)).first() is not None
            return _transfer(connection, device, file_id), held

    def set_transfer(self, device: str, file_id: str, init: dict[str, Any], size: int, now: Wall) -> None:
        """A transfer begins (again). Of one that is open the bytes stay, and the board's last `init` holds."""
        row = {
            "device": device,
            "file_id": file_id,
            "name": init.get("name", ""),
            "size": size,
            "coverage": (),
            "state": "receiving",
            "reason": "",
            "init": init,
            "started": now,
            "updated": now,
            "fin": 0.0,
            **_UNCLAIMED,
        }
        with self._passing.begin() as connection:
            if upsert(connection, transfers, row, where=transfers.c.state != "receiving"):
                return
            same = and_(_key(device, file_id), transfers.c.state == "receiving", transfers.c.size == size)
            connection.execute(update(transfers).where(same).values(init=init))

    def empty_transfer(self, device: str, file_id: str, now: Wall) -> None:
        """Nothing of an open transfer is here any more."""
        self._update(device, file_id, coverage=(), updated=now, fin=0.0, **_UNCLAIMED)

    def add_coverage(self, device: str, file_id: str, written: Ranges, now: Wall) -> Ranges:
        """Bytes are written, durably. Returns all that are, by whichever ingester; empty where nothing is open."""
        where = and_(_key(device, file_id), transfers.c.state == "receiving")
        with self._passing.begin() as connection:
            if connection.dialect.name == "postgresql":
                both = transfers.c.coverage.op("+")(literal(written, Coverage))
                change = update(transfers).where(where).values(coverage=both, updated=now)
                return tuple(connection.execute(change.returning(transfers.c.coverage)).scalar() or ())
            known = connection.execute(select(transfers.c.coverage).where(where)).scalar()
            if known is None:
                return ()
            grown = ranges.union(known, written)
            connection.execute(update(transfers).where(where).values(coverage=grown, updated=now))
        return grown

    def set_fin(self, device: str, file_id: str, now: Wall) -> Ranges:
        """The device has said that it is done. Returns the coverage."""
        where = and_(_key(device, file_id), transfers.c.state == "receiving")
        with self._engine.begin() as connection:
            change = update(transfers).where(where).values(fin=now, updated=now).returning(transfers.c.coverage)
            return tuple(connection.execute(change).scalar() or ())

    def claim_check(self, device: str, file_id: str, by: Claimant) -> Claim:
        """Whether it is on the caller to check the whole file: of several processes that could, one.

        A claim is free that nobody has; that the caller has had, which asks again only when its check has come to no
        end; and that a process has whose heart has stopped, or that is stuck.
        """
        where = and_(_key(device, file_id), transfers.c.state == "receiving")
        with self._engine.begin() as connection:
            now = now_of(connection)
            mine = update(transfers).where(and_(where, _free(by, now))).values(verifying=now, verifier=by.executor)
            if connection.execute(mine).rowcount:
                return Claim(True)
            since = connection.execute(select(transfers.c.verifying).where(where)).scalar()
        return Claim(False, 0.0 if since is None else max(0.0, now - since))

    def has_check(self, device: str, file_id: str, by: Claimant) -> bool:
        """Whether the check is the caller's still: another process may have taken it for dead, and gone on."""
        where = and_(_key(device, file_id), transfers.c.state == "receiving", transfers.c.verifier == by.executor)
        with self._reading.begin() as connection:
            return connection.execute(select(transfers.c.verifying).where(where)).first() is not None

    def give_back_check(self, device: str, file_id: str, by: Claimant) -> None:
        """The caller's check has come to no end: whoever is asked next may begin it."""
        where = and_(_key(device, file_id), transfers.c.state == "receiving", transfers.c.verifier == by.executor)
        with self._engine.begin() as connection:
            connection.execute(update(transfers).where(where).values(**_UNCLAIMED))

    def end_transfer(self, device: str, file_id: str, state: TransferState, reason: str, now: Wall) -> None:
        self._update(device, file_id, state=state, reason=reason, updated=now, **_UNCLAIMED)

    def _update(self, device: str, file_id: str, **values: object) -> None:
        with self._engine.begin() as connection:
            connection.execute(update(transfers).where(_key(device, file_id)).values(**values))

    def open_transfers(self, idle_since: Wall | None = None) -> list[Transfer]:
        """Transfers that have begun and not ended; those without a byte since a time."""
        query = select(*columns(transfers, "init")).where(transfers.c.state == "receiving")
        if idle_since is not None:
            query = query.where(transfers.c.updated < idle_since)
        return self._rows(query, Transfer)

    def open_beside(self, device: str, file_id: str) -> tuple[int, int]:
        """Number and bytes of the transfers of a device that have begun and not ended, but for that of one file."""
        mine = and_(transfers.c.device == device, transfers.c.state == "receiving", transfers.c.file_id != file_id)
        query = select(func.count(), func.coalesce(func.sum(transfers.c.size), 0)).where(mine)
        with self._reading.begin() as connection:
            number, size = connection.execute(query).one()
        return int(number), int(size)

    def sent_by_another(self, device: str, names: Collection[str], since: Wall) -> set[str]:
        """Which of these files another device is sending at the moment, with a byte since a time."""
        busy = and_(transfers.c.state == "receiving", transfers.c.device != device, transfers.c.updated >= since)
        found: set[str] = set()
        with self._reading.begin() as connection:
            for some in batches(sorted(names)):
                query = select(transfers.c.file_id).where(and_(busy, transfers.c.file_id.in_(some)))
                found.update(connection.execute(query).scalars())
        return found

    def refused(self, limit: int = 20) -> list[Transfer]:
        """The last files that were turned away, newest first."""
        query = select(*columns(transfers, "init")).where(transfers.c.state == "refused")
        return self._rows(query.order_by(transfers.c.updated.desc()).limit(limit), Transfer)

    # --- the day's budget ------------------------------------------------------------------------------------

    def add_pulled(self, device: str, size: int, now: Wall) -> None:
        """Bytes of a blob have been taken from a device."""
        with self._engine.begin() as connection:
            charge(connection, device, size, now)

    def pulled(self, device: str, now: Wall) -> int:
        """Bytes taken from a device on this day (UTC)."""
        where = and_(pulled.c.device == device, pulled.c.day == int(now // _DAY))
        with self._reading.begin() as connection:
            return int(connection.execute(select(func.coalesce(func.sum(pulled.c.size), 0)).where(where)).scalar_one())


def charge(connection: Connection, device: str, size: int, now: Wall) -> None:
    """Within a transaction: bytes of a blob have been taken from a device. The first of a day end older accounts."""
    day = int(now // _DAY)
    today = and_(pulled.c.device == device, pulled.c.day == day)
    more = update(pulled).where(today).values(size=pulled.c.size + size)
    if connection.execute(more).rowcount:
        return
    upsert(connection, pulled, {"device": device, "day": day, "size": 0}, only=())
    connection.execute(more)
    connection.execute(pulled.delete().where(and_(pulled.c.device == device, pulled.c.day < day - 1)))


def _transfer(connection: Connection, device: str, file_id: str) -> tuple[Transfer, dict[str, Any]] | None:
    row = connection.execute(select(transfers).where(_key(device, file_id))).first()
    return None if row is None else (msgspec.convert(row, Transfer, from_attributes=True), row.init)


def end_stored(connection: Connection, device: str, file_id: str, now: Wall) -> None:
    """Within a transaction: a file is kept, so its transfer has ended."""
    values = {"state": "stored", "reason": "", "updated": now, **_UNCLAIMED}
    connection.execute(update(transfers).where(_key(device, file_id)).values(**values))


def _free(by: Claimant, now: Wall) -> ColumnElement[bool]:
    """Whether the check of a transfer may be taken. One without a name, of an older version, is free by time alone."""
    beats = and_(executors.c.executor == transfers.c.verifier, executors.c.beat >= now - by.dead_after)
    gone = or_(transfers.c.verifier == by.executor, ~exists().where(beats))
    return or_(transfers.c.verifying < now - VERIFYING_SECONDS, and_(transfers.c.verifier != "", gone))


def _key(device: str, file_id: str) -> Any:
    return and_(transfers.c.device == device, transfers.c.file_id == file_id)
