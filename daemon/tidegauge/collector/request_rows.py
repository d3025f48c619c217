"""What people have asked for, in the database: runs, uploads and commands, and what became of each."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, Table, and_, delete, insert, select, update

from tidegauge.clocks import Wall
from tidegauge.collector.blob_rows import hold
from tidegauge.collector.bundle_rows import StoredReport
from tidegauge.collector.database import Database, batches
from tidegauge.collector.request_tables import commands, run_files, runs, uploads

RunKind = Literal["rejudged", "traces"]
RunState = Literal["queued", "running", "done", "failed"]
UploadKind = Literal["bundle", "traces", "model", "compile"]
UploadState = Literal["receiving", "checking", "done", "failed"]
CommandState = Literal["sent", "waiting", "running", "done", "refused", "failed"]
#: For which uploads and commands are told.
_KEPT_SECONDS = 90 * 86400.0
_OVER = ("done", "refused", "failed")


class Run(msgspec.Struct, frozen=True):
    """A comparison that `who` asked for, at `asked`. `device` and `bundle`: of what was judged again, else "".

    `source`: SHA-256 of the blob that it is made from, `model` that of a registered model, "" for the one inside.
    `exit_code`, `sentence`, `culprit`, `culprit_cause`, `coverage` as of a bundle. `pinned`: no retention deletes it.
    Unix seconds.
    """

    run: str
    kind: RunKind
    name: str
    device: str
    bundle: str
    who: str
    asked: float
    parameters: dict[str, float]
    source: str
    model: str
    state: RunState = "queued"
    reason: str = ""
    attempts: int = 0
    exit_code: int | None = None
    sentence: str = ""
    culprit: str = ""
    culprit_cause: str = ""
    coverage: float | None = None
    seconds: float | None = None
    finished: float = 0.0
    pinned: bool = False


class Upload(msgspec.Struct, frozen=True):
    """A file that `who` has sent; `size` bytes of it are here. `result`: what it became, such as {"run": …}."""

    upload: str
    kind: UploadKind
    name: str
    size: int
    who: str
    executor: str
    started: float
    updated: float
    state: UploadState = "receiving"
    problem: str = ""
    result: dict[str, str] = {}


class SentCommand(msgspec.Struct, frozen=True):
    """A command that was signed here for `who`. "sent": to the broker; "waiting": for the device to be there.

    `digest`: SHA-256 of what was signed. `verified`: whether the answer is signed by the key known as the device's.
    """

    command: str
    device: str
    digest: str
    who: str
    action: dict[str, Any]
    issued: float
    expires: float
    state: CommandState
    reason: str = ""
    sentence: str = ""
    cure: str = ""
    step: str = ""
    verified: bool = False
    updated: float = 0.0


def new_id() -> str:
    return uuid.uuid4().hex


class RequestRows(Database):
    """Runs, uploads, commands."""

    def add_run(self, run: Run) -> None:
        self._insert(runs, run, (run.source,))

    def run(self, run: str) -> Run | None:
        return next(iter(self._rows(select(runs).where(runs.c.run == run), Run)), None)

    def runs(self, limit: int = 200, offset: int = 0, device: str = "", bundle: str = "") -> list[Run]:
        """Newest first; of one bundle where it is given."""
        query = select(runs).order_by(runs.c.asked.desc(), runs.c.run).limit(limit).offset(offset)
        if device:
            query = query.where(runs.c.device == device)
        if bundle:
            query = query.where(runs.c.bundle == bundle)
        return self._rows(query, Run)

    def open_runs(self) -> list[str]:
        """Those that have not come to an end."""
        with self._reading.begin() as connection:
            query = select(runs.c.run).where(runs.c.state.in_(("queued", "running"))).order_by(runs.c.asked)
            return list(connection.execute(query).scalars())

    def begin_run(self, run: str) -> int:
        """It begins; returns how often it has. 0 where it was deleted."""
        with self._engine.begin() as connection:
            change = update(runs).where(runs.c.run == run).values(state="running", attempts=runs.c.attempts + 1)
            return int(connection.execute(change.returning(runs.c.attempts)).scalar() or 0)

    def finish_run(self, run: str, state: RunState, files: Collection[StoredReport] = (), **values: object) -> None:
        """Its end; one that was deleted meanwhile stays so."""
        with self._engine.begin() as connection:
            change = update(runs).where(runs.c.run == run).values(state=state, **values)
            if not connection.execute(change).rowcount:
                return
            connection.execute(delete(run_files).where(run_files.c.run == run))
            for file in files:
                connection.execute(insert(run_files).values({"run": run, **msgspec.to_builtins(file)}))
            hold(connection, [file.sha256 for file in files])

    def run_file(self, run: str, name: str) -> StoredReport | None:
        where = and_(run_files.c.run == run, run_files.c.name == name)
        return next(
            iter(self._rows(select(run_files.c.name, run_files.c.sha256, run_files.c.size).where(where), StoredReport)),
            None,
        )

    def delete_run(self, run: str) -> bool:
        """Forget a run and what it wrote. Whether there was one."""
        with self._engine.begin() as connection:
            connection.execute(delete(run_files).where(run_files.c.run == run))
            return connection.execute(delete(runs).where(runs.c.run == run)).rowcount > 0

    def pin_run(self, run: str, pinned: bool) -> Run | None:
        """Keep a run whatever retention says, or no longer. None where there is no such run."""
        with self._engine.begin() as connection:
            connection.execute(update(runs).where(runs.c.run == run).values(pinned=pinned))
        return self.run(run)

    def old_runs(self, before: Wall) -> list[Run]:
        """Those that have ended, were asked for before a time and are not pinned, oldest first."""
        return self._rows(select(runs).where(_old(before)).order_by(runs.c.asked, runs.c.run), Run)

    def forget_runs(self, before: Wall, limit: int) -> int:
        """Forget runs that have ended, were asked for before a time and are not pinned; `limit` at most. How many."""
        some = select(runs.c.run).where(_old(before)).limit(limit)
        with self._engine.begin() as connection:
            gone = delete(runs).where(and_(_old(before), runs.c.run.in_(some))).returning(runs.c.run)
            names = list(connection.execute(gone).scalars())
            for piece in batches(names):
                connection.execute(delete(run_files).where(run_files.c.run.in_(piece)))
        return len(names)

    def add_upload(self, upload: Upload) -> None:
        """Note an upload; those of long ago are forgotten by this."""
        with self._engine.begin() as connection:
            connection.execute(delete(uploads).where(uploads.c.started < upload.started - _KEPT_SECONDS))
        self._insert(uploads, upload)

    def set_upload(self, upload: str, now: Wall, **values: object) -> None:
        with self._engine.begin() as connection:
            connection.execute(update(uploads).where(uploads.c.upload == upload).values(updated=now, **values))

    def upload(self, upload: str) -> Upload | None:
        return next(iter(self._rows(select(uploads).where(uploads.c.upload == upload), Upload)), None)

    def uploads(self, limit: int = 200) -> list[Upload]:
        """Newest first."""
        return self._rows(select(uploads).order_by(uploads.c.started.desc(), uploads.c.upload).limit(limit), Upload)

    def end_uploads(self, executor: str, now: Wall, problem: str) -> int:
        """What this process was taking in when it ended has failed. Returns how many."""
        mine = and_(uploads.c.executor == executor, uploads.c.state.in_(("receiving", "checking")))
        with self._engine.begin() as connection:
            change = update(uploads).where(mine).values(state="failed", problem=problem, updated=now)
            return connection.execute(change).rowcount

    def add_command(self, command: SentCommand) -> None:
        """Note a command; those of long ago are forgotten by this, and stay in the audit log."""
        with self._engine.begin() as connection:
            connection.execute(delete(commands).where(commands.c.expires < command.issued - _KEPT_SECONDS))
        self._insert(commands, command)

    def sent_command(self, command: str) -> SentCommand | None:
        return next(iter(self._rows(select(commands).where(commands.c.command == command), SentCommand)), None)

    def sent_commands(self, device: str = "", limit: int = 200) -> list[SentCommand]:
        """Newest first; of one device where it is given."""
        query = select(commands).order_by(commands.c.issued.desc(), commands.c.command).limit(limit)
        return self._rows(query.where(commands.c.device == device) if device else query, SentCommand)

    def note_answer(self, device: str, digest: str, verified: bool, now: Wall, **values: object) -> bool:
        """A device has answered a command that was signed here. An answer that is not surely the device's changes no
        one that is; what has ended stays so. Whether anything changed.
        """
        mine = and_(commands.c.device == device, commands.c.digest == digest, commands.c.state.not_in(_OVER))
        if not verified:
            mine = and_(mine, commands.c.verified.is_(False))
        with self._engine.begin() as connection:
            change = update(commands).where(mine).values(verified=verified, updated=now, **values)
            return connection.execute(change).rowcount > 0

    def _insert(self, table: Table, row: msgspec.Struct, held: Collection[str] = ()) -> None:
        with self._engine.begin() as connection:
            connection.execute(insert(table).values(msgspec.structs.asdict(row)))
            hold(connection, held)


def _old(before: Wall) -> ColumnElement[bool]:
    return and_(runs.c.state.in_(("done", "failed")), runs.c.asked < before, ~runs.c.pinned)
