"""Comparisons that people ask for, as a durable workflow: a stored answer judged again, or traces that were uploaded.

Like those of bundles they run in a process of its own, with limits, and go on elsewhere when a host dies.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
from dbos import DBOS, DBOSConfiguredInstance
from dbos import error as dbos_errors
from sqlalchemy.exc import SQLAlchemyError

from tidegauge.clocks import wall
from tidegauge.collector.blobs import BlobStore, hash_of
from tidegauge.collector.compare_process import (
    HTML,
    JSON,
    LOG,
    CompareProcess,
    ComparisonCrashed,
    ComparisonFailed,
    Outcome,
)
from tidegauge.collector.library import CompileLibrary
from tidegauge.collector.log_kinds import RUN_FAILED
from tidegauge.collector.registered import NET_SUFFIX
from tidegauge.collector.request_rows import Run
from tidegauge.collector.store import Store, StoredReport
from tidegauge.collector.trace_folder import look_into
from tidegauge.collector.unpacking import unpack_zip
from tidegauge.errors import TidegaugeError

_log = logging.getLogger(__name__)
_MOST_STARTS = 4


class Ran(msgspec.Struct, frozen=True):
    """What the step `compare` hands on."""

    outcome: Outcome
    files: tuple[StoredReport, ...]


@dataclass(frozen=True)
class RunTools:
    """What runs work with. `work`: a folder of this process; `unpacked`: most bytes of what is in a zip file."""

    store: Store
    blobs: BlobStore
    library: CompileLibrary
    process: CompareProcess
    work: Path
    unpacked: int


@DBOS.dbos_class()
class Runs(DBOSConfiguredInstance):
    """The workflow. One instance a process, under the name by which DBOS recovers it."""

    def __init__(self, tools: RunTools) -> None:
        self._with = tools
        tools.work.mkdir(parents=True, exist_ok=True)
        for stray in tools.work.glob("run-*"):
            shutil.rmtree(stray)
        super().__init__(config_name="runs")

    @DBOS.workflow(name="compare-run", max_recovery_attempts=50)
    def run(self, run: str) -> str:
        """Do what was asked for. A failure is the run's own end, with its reason."""
        try:
            ran = self.compare(run)
        except (
            ComparisonFailed,
            dbos_errors.DBOSMaxStepRetriesExceeded,
            TidegaugeError,
            OSError,
            SQLAlchemyError,
        ) as error:
            return self.fail(run, _reason(error))
        return self.index(run, ran)

    @DBOS.step(
        name="compare-run",
        retries_allowed=True,
        max_attempts=2,
        should_retry=lambda error: isinstance(error, ComparisonCrashed | OSError),
    )
    def compare(self, run: str) -> Ran:
        """Run the comparison and keep what it writes."""
        row = self._with.store.run(run)
        attempt = self._with.store.begin_run(run)
        if row is None or attempt == 0:
            raise ComparisonFailed("it was deleted before it began")
        if attempt > _MOST_STARTS:
            raise ComparisonFailed(f"it was begun {attempt - 1} times and never came to an end")
        place = Path(tempfile.mkdtemp(prefix="run-", dir=self._with.work))
        try:
            output = place / "out"
            output.mkdir()
            outcome = self._with.process.execute(self._arguments(row, place), output)
            return Ran(outcome, tuple(self._keep(output / name) for name in (HTML, JSON, LOG)))
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _arguments(self, row: Run, place: Path) -> list[str]:
        """Of `tidegauge compare`, on what was fetched to `place`. Raises TidegaugeError, OSError."""
        limits = [f"--{name.replace('_', '-')}={value!r}" for name, value in sorted(row.parameters.items())]
        if row.kind == "rejudged":
            self._with.blobs.fetch(row.source, place / "stored.json")
            return ["--from", str(place / "stored.json"), *limits]
        self._with.blobs.fetch(row.source, place / "traces.zip")
        inside = place / "in"
        inside.mkdir()
        unpack_zip(place / "traces.zip", inside, self._with.unpacked)
        (place / "traces.zip").unlink()
        found = look_into(inside)
        model = found.model or self._with.library.find_model(row.model)
        if model is None:
            raise TidegaugeError(
                "no model is in the zip file, and none was named", "add the model that was compiled, or choose one"
            )
        nets = {path.name: hash_of(path) for path in inside.rglob(f"*{NET_SUFFIX}") if path.is_file()}
        tempdir = found.tempdir or self._with.library.find_tempdir(nets)
        arguments = [str(found.traces), "--model", str(model)]
        arguments += ["--tempdir", str(tempdir)] if tempdir is not None else []
        arguments += ["--input", str(found.input)] if found.input is not None else []
        return [*arguments, *limits]

    def _keep(self, path: Path) -> StoredReport:
        sha256 = hash_of(path)
        self._with.store.reprieve(sha256)
        size = self._with.blobs.put(sha256, path)
        self._with.store.keep_blob(sha256, size, wall())
        return StoredReport(path.name, sha256, size)

    @DBOS.step(name="index-run")
    def index(self, run: str, ran: Ran) -> str:
        """Put the answer into the database."""
        self._with.store.finish_run(
            run, "done", ran.files, reason="", finished=wall(), **msgspec.structs.asdict(ran.outcome)
        )
        return "done"

    @DBOS.step(name="fail-run")
    def fail(self, run: str, reason: str) -> str:
        """Record why there is no answer."""
        _log.error("run %s failed: %s", run, reason, extra=RUN_FAILED.of(run=run))
        self._with.store.finish_run(run, "failed", reason=reason, finished=wall())
        return "failed"


def _reason(error: Exception) -> str:
    """Why a run failed, of the last try; folders of this process say nothing to who reads it."""
    if isinstance(error, dbos_errors.DBOSMaxStepRetriesExceeded):
        return f"{error.errors[-1]} (tried {error.max_retries} times)"
    return str(error)
