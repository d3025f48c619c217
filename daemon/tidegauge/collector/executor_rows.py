"""Which processes of this collector live, in the database: heartbeats by the clock that all of them share."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from sqlalchemy import and_, delete, select

from tidegauge.collector.database import Database, now_of, upsert
from tidegauge.collector.tables import executors


class Executor(msgspec.Struct, frozen=True):
    """A process that runs comparisons. `version`: of its workflows. Times are Unix seconds of the database's clock."""

    executor: str
    host: str
    version: str
    started: float
    beat: float


class ExecutorRows(Database):
    """Heartbeats."""

    def beat(self, executor: str, host: str, version: str) -> None:
        """This process lives."""
        with self._engine.begin() as connection:
            now = now_of(connection)
            row = {"executor": executor, "host": host, "version": version, "started": now, "beat": now}
            upsert(connection, executors, row, only=("host", "version", "beat"))

    def leave(self, executor: str) -> None:
        """This process ends in order: nothing of it is to be rescued that it will not take up itself."""
        with self._engine.begin() as connection:
            connection.execute(delete(executors).where(executors.c.executor == executor))

    def executors(self) -> list[Executor]:
        """All that have not been buried, the dead too."""
        return self._rows(select(executors).order_by(executors.c.executor), Executor)

    def living(self, dead_after: float) -> list[Executor]:
        """Those whose heart has beaten within so many seconds."""
        with self._reading.begin() as connection:
            now = now_of(connection)
        return [each for each in self.executors() if each.beat >= now - dead_after]

    def bury(self, dead_after: float, rescue: Callable[[str], int]) -> dict[str, int]:
        """For each process that is dead: `rescue` what it was doing, then forget it. Returns the numbers rescued.

        The row is locked meanwhile: of several living processes one does it, and where that one dies too, the next.
        """
        with self._reading.begin() as connection:
            now = now_of(connection)
            dead = list(
                connection.execute(select(executors.c.executor).where(executors.c.beat < now - dead_after)).scalars()
            )
        done: dict[str, int] = {}
        for name in dead:
            with self._engine.begin() as connection:
                still = and_(executors.c.executor == name, executors.c.beat < now_of(connection) - dead_after)
                if connection.execute(select(executors).where(still).with_for_update(skip_locked=True)).first() is None:
                    continue
                done[name] = rescue(name)
                connection.execute(delete(executors).where(executors.c.executor == name))
        return done
