"""Blobs in the database: which are here, what needs them, and which may go.

A blob's bytes go in two steps, so that a concurrent upload never loses them. `condemn` takes the rows of blobs that
nothing needs out of the table of held blobs, so that an upload begins anew; `execute` deletes the bytes while it holds
the row of the sentence. An upload calls `reprieve` before it writes: that waits for a running execution, and none
follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, exists, func, not_, or_, select

from tidegauge.clocks import Wall
from tidegauge.collector.database import batches, upsert
from tidegauge.collector.request_tables import run_files, runs
from tidegauge.collector.tables import blobs, bundle_blobs, bundles, condemned, library, reports
from tidegauge.collector.transfer_rows import TransferRows

Key = tuple[str, str]


class BlobRows(TransferRows):
    """Held blobs and their references."""

    def has_blob(self, sha256: str) -> bool:
        with self._reading.begin() as connection:
            return connection.execute(select(blobs.c.size).where(blobs.c.sha256 == sha256)).first() is not None

    def held(self) -> dict[str, int]:
        """Every blob that is held, with its size."""
        with self._reading.begin() as connection:
            return {row.sha256: row.size for row in connection.execute(select(blobs.c.sha256, blobs.c.size))}

    def keep_blob(self, sha256: str, size: int, now: Wall) -> None:
        """A blob is held, durably."""
        with self._engine.begin() as connection:
            upsert(connection, blobs, {"sha256": sha256, "size": size, "stored": now})

    def condemned(self) -> set[str]:
        """Blobs out of use whose bytes may still be here."""
        with self._reading.begin() as connection:
            return set(connection.execute(select(condemned.c.sha256)).scalars())

    def needed_by(self, sha256: str) -> tuple[str, ...]:
        """The bundles (device/bundle) that need a blob, or are lost without it."""
        named = select(bundle_blobs.c.device, bundle_blobs.c.bundle).where(bundle_blobs.c.sha256 == sha256)
        heads = select(bundles.c.device, bundles.c.bundle).where(bundles.c.manifest_sha256 == sha256)
        with self._reading.begin() as connection:
            return tuple(sorted(f"{row[0]}/{row[1]}" for row in connection.execute(named.union(heads))))

    def needed_bytes(self) -> int:
        """Bytes of all blobs that anything needs."""
        with self._reading.begin() as connection:
            query = select(func.coalesce(func.sum(blobs.c.size), 0)).where(needed())
            return int(connection.execute(query).scalar_one())

    def forget_blob(self, sha256: str) -> None:
        """A blob's bytes are gone, or wrong."""
        with self._engine.begin() as connection:
            connection.execute(delete(blobs).where(blobs.c.sha256 == sha256))

    def reprieve(self, sha256: str) -> None:
        """Bytes are about to be written under this hash: no sentence of before deletes them."""
        with self._engine.begin() as connection:
            connection.execute(delete(condemned).where(condemned.c.sha256 == sha256))

    def condemn(self, before: Wall, now: Wall, limit: int = 500) -> int:
        """Give up blobs stored before a time that nothing needs. Returns their number, at most `limit`."""
        with self._engine.begin() as connection:
            unused = and_(blobs.c.stored < before, not_(needed()))
            query = select(blobs.c.sha256).where(unused).order_by(blobs.c.sha256).limit(limit)
            candidates = list(connection.execute(query.with_for_update()).scalars())
            # A second statement, which sees what was committed while the first one waited for its locks.
            gone: list[str] = []
            for some in batches(candidates):
                sure = delete(blobs).where(and_(blobs.c.sha256.in_(some), not_(needed())))
                gone += connection.execute(sure.returning(blobs.c.sha256)).scalars()
            for sha256 in gone:
                upsert(connection, condemned, {"sha256": sha256, "since": now})
        return len(gone)

    def execute(self, destroy: Callable[[str], None]) -> int:
        """Delete the bytes of condemned blobs by `destroy`. Returns their number."""
        with self._reading.begin() as connection:
            names = list(connection.execute(select(condemned.c.sha256)).scalars())
        done = 0
        for sha256 in names:
            with self._engine.begin() as connection:
                row = select(condemned.c.sha256).where(condemned.c.sha256 == sha256)
                if connection.execute(row.with_for_update(skip_locked=True)).first() is None:
                    continue
                destroy(sha256)
                connection.execute(delete(condemned).where(condemned.c.sha256 == sha256))
                done += 1
        return done


def needed() -> ColumnElement[bool]:
    """Whether a blob has a reference: from a bundle, as its manifest, from a report or run, from the library."""
    return or_(
        exists().where(bundle_blobs.c.sha256 == blobs.c.sha256),
        exists().where(bundles.c.manifest_sha256 == blobs.c.sha256),
        exists().where(reports.c.sha256 == blobs.c.sha256),
        exists().where(library.c.sha256 == blobs.c.sha256),
        exists().where(runs.c.source == blobs.c.sha256),
        exists().where(run_files.c.sha256 == blobs.c.sha256),
    )


def hold(connection: Connection, names: Iterable[str]) -> None:
    """Within a transaction that adds references: none of these blobs is condemned before it ends."""
    for some in batches(sorted(set(names))):
        query = select(blobs.c.sha256).where(blobs.c.sha256.in_(some)).order_by(blobs.c.sha256)
        connection.execute(query.with_for_update(read=True)).all()


def lacking(connection: Connection, device: str, bundle: str) -> list[str]:
    """Blobs of a bundle that are wanted and not here."""
    return sorted(row.sha256 for row in connection.execute(_lacking(device, bundle)))


def lacks(connection: Connection, device: str, bundle: str) -> bool:
    """Whether there are any: with each blob that comes, a bundle of many is not counted through."""
    return connection.execute(_lacking(device, bundle).limit(1)).first() is not None


def _lacking(device: str, bundle: str) -> Select[Any]:
    here = exists().where(blobs.c.sha256 == bundle_blobs.c.sha256)
    mine = and_(bundle_blobs.c.device == device, bundle_blobs.c.bundle == bundle)
    return select(bundle_blobs.c.sha256).where(and_(mine, bundle_blobs.c.wanted, ~here))


def waiting_for(sha256: str) -> Any:
    """The bundles (device, bundle) that this blob may complete."""
    same = and_(bundle_blobs.c.device == bundles.c.device, bundle_blobs.c.bundle == bundles.c.bundle)
    unfinished = or_(bundles.c.state.in_(("received", "waiting_blobs", "incomplete")), bundles.c.partial)
    query = select(bundles.c.device, bundles.c.bundle).join(bundle_blobs, same)
    query = query.where(and_(bundle_blobs.c.sha256 == sha256, unfinished))
    return query.order_by(bundles.c.device, bundles.c.bundle)
