"""The comparison of a bundle as a durable workflow: assemble → compare → index. A killed collector goes on from there.

Steps are idempotent: one that was interrupted runs again from its start, one that was only slow may run twice, and the
next step may run on another host.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from dbos import DBOS, DBOSConfiguredInstance
from dbos import error as dbos_errors
from sqlalchemy.exc import SQLAlchemyError

from tidegauge.bundles.reader import read_manifest
from tidegauge.clocks import wall
from tidegauge.collector.assemble import assemble
from tidegauge.collector.blobs import BlobStore, hash_of
from tidegauge.collector.compare_process import (
    HTML,
    JSON,
    LOG,
    CompareProcess,
    ComparisonCrashed,
    ComparisonFailed,
    Interrupted,
    Outcome,
)
from tidegauge.collector.library import CompileLibrary
from tidegauge.collector.log_kinds import BUNDLE_COMPARED, COMPARISON_FAILED
from tidegauge.collector.store import Store, StoredReport
from tidegauge.collector.tables import Bundle, BundleState
from tidegauge.errors import TidegaugeError

_log = logging.getLogger(__name__)

#: Called with the result ("fine", "culprit", "coverage", "failed") and the seconds that the comparison took.
Report = Callable[[str, float], None]


class Compared(msgspec.Struct, frozen=True):
    """What the step `compare` hands on: the answer, the files that say it, and how many blobs it did without."""

    outcome: Outcome
    files: tuple[StoredReport, ...] = ()
    lacking: int = 0


@dataclass(frozen=True)
class Workshop:
    """What comparisons work with. `data`: a folder of this process. `attempts`: of one comparison, by all processes."""

    data: Path
    store: Store
    blobs: BlobStore
    library: CompileLibrary
    process: CompareProcess
    manifest_limit: int
    report: Report
    attempts: int = 4

    @property
    def work(self) -> Path:
        return self.data / "work"


@DBOS.dbos_class()
class Comparisons(DBOSConfiguredInstance):
    """The workflow. One instance a process, under the name by which DBOS recovers it."""

    def __init__(self, workshop: Workshop) -> None:
        self._with = workshop
        workshop.work.mkdir(exist_ok=True)
        for stray in (*workshop.work.glob("output-*"), *workshop.work.glob("export-*")):
            shutil.rmtree(stray)
        super().__init__(config_name="collector")

    @DBOS.workflow(name="compare-bundle", max_recovery_attempts=50)
    def run(self, device: str, bundle: str, generation: int = 0) -> str:
        """Compare one bundle. A failure is the bundle's own end, with its reason; it blocks no other."""
        try:
            self.assemble(device, bundle)
            compared = self.compare(device, bundle)
        except (
            ComparisonFailed,
            dbos_errors.DBOSMaxStepRetriesExceeded,
            TidegaugeError,
            OSError,
            SQLAlchemyError,
        ) as error:
            return self.fail(device, bundle, _reason(error), generation)
        return self.index(device, bundle, compared, generation)

    @DBOS.step(name="assemble", retries_allowed=True, max_attempts=3, should_retry=lambda error: _may_pass(error))
    def assemble(self, device: str, bundle: str) -> None:
        """Lay the bundle out as a folder: manifest.json and blobs/sha256/<hex>, as links into the blob store."""
        self._lay_out(device, bundle)

    def _lay_out(self, device: str, bundle: str) -> int:
        """The bundle's folder on this host; returns how many blobs it does without."""
        row = self._with.store.bundle(device, bundle)
        if row is None:
            raise ComparisonFailed(f"bundle {bundle} of {device} is not in the database")
        partial = row.partial or row.blobs_wanted < row.blobs
        lacking = assemble(self._with.blobs, row.manifest_sha256, self._with.manifest_limit, self._folder(row), partial)
        return len(lacking)

    def _folder(self, row: Bundle) -> Path:
        return self._with.work / row.device / row.bundle

    @DBOS.step(name="compare", retries_allowed=True, max_attempts=2, should_retry=lambda error: _may_pass(error))
    def compare(self, device: str, bundle: str) -> Compared:
        """Run the comparison and keep what it writes."""
        store = self._with.store
        attempt = store.begin(device, bundle)
        if attempt > self._with.attempts:
            raise ComparisonFailed(f"its comparison was begun {attempt - 1} times and never came to an end")
        lacking = self._lay_out(device, bundle)
        output = Path(tempfile.mkdtemp(prefix="output-", dir=self._with.work))
        started = time.monotonic()
        try:
            outcome = self._run(self._with.work / device / bundle, output)
            files = tuple(self._keep(output / name) for name in (HTML, JSON, LOG))
        except Interrupted:
            store.take_back(device, bundle)
            raise
        finally:
            shutil.rmtree(output, ignore_errors=True)
        self._with.report(("fine", "culprit", "", "coverage")[outcome.exit_code], time.monotonic() - started)
        return Compared(outcome, files, lacking)

    def _run(self, folder: Path, output: Path) -> Outcome:
        manifest = read_manifest(folder)
        library = self._with.library
        tempdir = library.find_tempdir(manifest.inventory.artifacts)
        model = None if manifest.model is not None else library.find_model(manifest.inventory.model)
        return self._with.process.run(folder, tempdir, output, model)

    def _keep(self, path: Path) -> StoredReport:
        """A file that the comparison wrote, as a blob: any process can show it."""
        sha256 = hash_of(path)
        self._with.store.reprieve(sha256)
        size = self._with.blobs.put(sha256, path)
        self._with.store.keep_blob(sha256, size, wall())
        return StoredReport(path.name, sha256, size)

    @DBOS.step(name="index")
    def index(self, device: str, bundle: str, compared: Compared, generation: int) -> str:
        """Put the answer into the database, from where pages and metrics show it."""
        self._clear(device, bundle)
        outcome, store = compared.outcome, self._with.store
        store.set_reports(device, bundle, compared.files)
        store.finish(
            device,
            bundle,
            generation,
            "compared",
            reason=f"compared without {compared.lacking} of its blobs, which are not here" if compared.lacking else "",
            exit_code=outcome.exit_code,
            sentence=outcome.sentence,
            culprit=outcome.culprit,
            culprit_cause=outcome.culprit_cause,
            coverage=outcome.coverage,
            seconds=outcome.seconds,
            report=True,
        )
        _log.info(
            "bundle %s of %s: %s",
            bundle,
            device,
            outcome.sentence,
            extra=BUNDLE_COMPARED.of(
                device=device,
                bundle=bundle,
                exit_code=outcome.exit_code,
                culprit=outcome.culprit,
                cause=outcome.culprit_cause,
                seconds=round(outcome.seconds, 3),
            ),
        )
        return "compared"

    @DBOS.step(name="fail")
    def fail(self, device: str, bundle: str, reason: str, generation: int) -> str:
        """Record why there is no answer: what is not here, or what is here and can't be used."""
        said = COMPARISON_FAILED.of(device=device, bundle=bundle)
        _log.error("bundle %s of %s can't be compared: %s", bundle, device, reason, extra=said)
        self._clear(device, bundle)
        self._with.report("failed", 0.0)
        row = self._with.store.bundle(device, bundle)
        lacking = row is not None and row.blobs_held < row.blobs
        if row is not None and lacking:
            reason = f"{row.blobs - row.blobs_held} of {row.blobs} blobs are not here, and without them {reason}"
        state: BundleState = "incomplete" if lacking else "failed"
        self._with.store.finish(device, bundle, generation, state, reason=reason)
        return state

    def _clear(self, device: str, bundle: str) -> None:
        shutil.rmtree(self._with.work / device / bundle, ignore_errors=True)


def adopt_reports(data: Path, store: Store, blobs: BlobStore) -> int:
    """Reports that an earlier version has left as files in `data`/reports become blobs. Returns their number."""
    count = 0
    for folder in sorted((data / "reports").glob("*/[!.]*")):
        row = store.bundle(folder.parent.name, folder.name)
        files = [folder / name for name in (HTML, JSON, LOG) if (folder / name).is_file()]
        if row is not None and row.report and files:
            kept = []
            for path in files:
                sha256 = hash_of(path)
                store.reprieve(sha256)
                store.keep_blob(sha256, blobs.put(sha256, path), wall())
                kept.append(StoredReport(path.name, sha256, path.stat().st_size))
            store.set_reports(row.device, row.bundle, kept)
            count += 1
        shutil.rmtree(folder)
    return count


def _may_pass(error: BaseException) -> bool:
    """Whether trying again may help."""
    return isinstance(error, ComparisonCrashed | OSError)


def _reason(error: Exception) -> str:
    """Why a comparison failed, of the last try."""
    if isinstance(error, dbos_errors.DBOSMaxStepRetriesExceeded):
        return f"{error.errors[-1]} (tried {error.max_retries} times)"
    return str(error)
