"""Records of boards in the database: hours of history, and what was given up unsent; and how old ones go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from sqlalchemy import and_, delete, exists, select, tuple_

from tidegauge.clocks import Wall
from tidegauge.collector.database import Database, upsert
from tidegauge.collector.tables import alarms, bundles, records
from tidegauge.spool.records import HistoryRecord, Record, Tombstone

Kind = Literal["history", "tombstone"]


class StoredRecord(msgspec.Struct, frozen=True):
    """`at`: the board's wall clock at its end, which may be wrong; `received`: the collector's. `content`: the record
    as it came (`spool.records`).
    """

    device: str
    record: str
    kind: Kind
    at: float
    received: float
    content: dict[str, Any]

    def decoded(self) -> Record:
        """As it was written on the board."""
        decoded: Record = msgspec.convert(self.content, Record)
        return decoded


class RecordRows(Database):
    """A record that comes again replaces itself: none is ever there twice."""

    def add_records(self, device: str, found: Iterable[Record], now: Wall) -> None:
        """All or none."""
        with self._engine.begin() as connection:
            for record in found:
                upsert(connection, records, _row(device, record, now))

    def history(self, device: str, limit: int = 10_000) -> list[StoredRecord]:
        """Hours, in the order in which the board saw them as far as its clock tells; of one run always."""
        where = and_(records.c.device == device, records.c.kind == "history")
        return self._rows(
            select(records).where(where).order_by(records.c.at, records.c.record).limit(limit), StoredRecord
        )

    def forget_records(self, before: Wall, limit: int) -> int:
        """Delete records that came before a time, `limit` at most. Returns their number."""
        old = select(records.c.device, records.c.kind, records.c.record).where(records.c.received < before).limit(limit)
        key = tuple_(records.c.device, records.c.kind, records.c.record)
        with self._engine.begin() as connection:
            return connection.execute(delete(records).where(key.in_(old))).rowcount

    def forget_alarms(self, before: Wall, limit: int) -> int:
        """Delete alarms that are over and came before a time, `limit` at most. Returns their number."""
        where = and_(~alarms.c.active, alarms.c.received < before)
        old = select(alarms.c.device, alarms.c.alarm).where(where).limit(limit)
        with self._engine.begin() as connection:
            return connection.execute(delete(alarms).where(tuple_(alarms.c.device, alarms.c.alarm).in_(old))).rowcount

    def given_up(self, device: str, limit: int = 1000) -> list[StoredRecord]:
        """What the board could not keep until it was sent, newest first; a bundle that came all the same is none."""
        arrived = exists().where(and_(bundles.c.device == records.c.device, bundles.c.bundle == records.c.record))
        where = and_(records.c.device == device, records.c.kind == "tombstone", ~arrived)
        query = select(records).where(where).order_by(records.c.at.desc(), records.c.record).limit(limit)
        return self._rows(query, StoredRecord)


def _row(device: str, record: Record, now: Wall) -> dict[str, Any]:
    kind: Kind = "history" if isinstance(record, HistoryRecord) else "tombstone"
    at = record.dropped.wall if isinstance(record, Tombstone) else record.ended.wall
    content = msgspec.to_builtins(record)
    return {"device": device, "record": record.id, "kind": kind, "at": at, "received": now, "content": content}
