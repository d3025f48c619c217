"""The collector's database: a SQLite file, or a PostgreSQL that several processes share. The same statements for both.

Every method of the row classes is one transaction. On SQLite a writer takes the lock when it begins; on PostgreSQL
(READ COMMITTED) rows are locked where two processes could decide on the same thing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, Engine, Select, Table, create_engine, event, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from tidegauge.clocks import Wall, wall
from tidegauge.collector import migrations
from tidegauge.collector.log_kinds import DATABASE_MIGRATED
from tidegauge.errors import TidegaugeError, Unreached

_log = logging.getLogger(__name__)

Row = TypeVar("Row")

#: What PostgreSQL says to a client that may come again (postmaster.c, backend_startup.c).
_NOT_NOW = ("starting up", "shutting down", "recovery mode", "not accepting connections", "too many", "reserved for")


class Database:
    """A connected database of the present schema. Synchronous and thread-safe; the event loop calls it in threads.

    `target`: the path of a SQLite file, or a URL "postgresql://…". Raises TidegaugeError where it can't be opened, is
    none, or is of a newer version; Unreached where its server is not there, or not ready.
    """

    def __init__(self, target: Path | str | URL) -> None:
        self._engine = _engine(target)
        self._reading = self._engine.execution_options(reading=True)
        #: For what a power cut may take back, since a board then says it again: no commit of it waits for the disk.
        self._passing = self._engine.execution_options(passing=True)
        where = str(target) if isinstance(target, Path) else make_url(target).render_as_string()
        try:
            with self._engine.begin() as connection:
                before, after = migrations.upgrade(connection, where)
        except DBAPIError as error:
            self._engine.dispose()
            cure = "check the key `data`" if isinstance(target, Path) else "check `database.url` and that it runs"
            kind = Unreached if not isinstance(target, Path) and _unanswered(error) else TidegaugeError
            raise kind(f"the database {where} can't be opened ({short(error)})", cure) from error
        except TidegaugeError:
            self._engine.dispose()
            raise
        if before not in ("", after):
            said = DATABASE_MIGRATED.of(before=before, after=after)
            _log.warning("the database %s was brought from schema %s to %s", where, before, after, extra=said)

    def close(self) -> None:
        self._engine.dispose()

    @property
    def shared(self) -> bool:
        """Whether other processes may work on it."""
        return self._engine.dialect.name == "postgresql"

    def _rows(self, query: Select[Any], kind: type[Row]) -> list[Row]:
        with self._reading.begin() as connection:
            return [msgspec.convert(row, kind, from_attributes=True) for row in connection.execute(query)]


def postgresql_url(url: str, password_file: str = "") -> URL:
    """The URL with its driver, and its password from the first line of a file. Raises TidegaugeError."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise TidegaugeError("the key `database.url` is no URL", "write postgresql://user@host/database") from error
    if password_file:
        try:
            password = Path(password_file).read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise TidegaugeError(
                f"{password_file} (key `database.password_file`) can't be read ({error})",
                "check its path, owner and mode",
            ) from error
        parsed = parsed.set(password=password)
    return parsed.set(drivername="postgresql+psycopg")


def _engine(target: Path | str | URL) -> Engine:
    if isinstance(target, Path):
        engine = create_engine(f"sqlite:///{target}", connect_args={"timeout": 10.0})
        event.listen(engine, "connect", _configure)
        event.listen(engine, "begin", _begin)
        return engine
    # A connection that the server has closed meanwhile is noticed before a statement is lost on it.
    return create_engine(make_url(target).set(drivername="postgresql+psycopg"), pool_pre_ping=True, pool_size=8)


def _configure(connection: Any, record: object) -> None:
    connection.isolation_level = None  # transactions are begun by `_begin`, not by the driver's guess
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    """A writer takes the lock at once: two transactions that begin as readers and turn writers would fail, "locked".

    A commit in mode NORMAL is not synced by itself; the next one in mode FULL syncs it too (sqlite.org/wal.html).
    """
    options = connection.get_execution_options()
    if options.get("reading", False):
        connection.exec_driver_sql("BEGIN")
        return
    mode = "NORMAL" if options.get("passing", False) else "FULL"
    if connection.info.get("synchronous", "FULL") != mode:
        connection.exec_driver_sql(f"PRAGMA synchronous={mode}")
        connection.info["synchronous"] = mode
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def upsert(
    connection: Connection,
    table: Table,
    row: dict[str, Any],
    only: tuple[str, ...] | None = None,
    where: ColumnElement[bool] | None = None,
) -> bool:
    """Insert a row, or update the one with its key: all of its columns, or `only` those named (none leaves it as is).

    `where`: of the row that is there, else it stays. Returns whether anything was written.
    """
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    keys = [column.name for column in table.primary_key]
    statement = insert(table).values(row)
    values = {name: value for name, value in row.items() if name not in keys and (only is None or name in only)}
    if values:
        statement = statement.on_conflict_do_update(index_elements=keys, set_=values, where=where)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    return connection.execute(statement.returning(table.c[keys[0]])).first() is not None


def now_of(connection: Connection) -> Wall:
    """Unix seconds by the clock that all processes of this database share."""
    if connection.dialect.name == "postgresql":
        return Wall(float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one()))
    return wall()


def columns(table: Table, *without: str) -> list[Any]:
    return [column for column in table.columns if column.name not in without]


def batches(items: Iterable[Any], size: int = 500) -> Iterator[list[Any]]:
    """Lists of at most `size`: a statement takes a bounded number of parameters."""
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _unanswered(error: DBAPIError) -> bool:
    """Whether the server was not there, or has sent the client away for now; not so where it refused for good."""
    said = str(error.orig)
    return isinstance(error, OperationalError) and ("FATAL" not in said or any(word in said for word in _NOT_NOW))


def short(error: DBAPIError) -> str:
    """What the database said, in one line."""
    return " ".join(str(error.orig).split())[:300]
