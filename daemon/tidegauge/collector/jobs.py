"""The comparison of a bundle as a durable workflow: assemble → compare → index. A killed collector goes on from there.

Steps are idempotent: one that was interrupted runs again from its start, and one that was only slow may run twice.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from dbos import DBOS, DBOSConfiguredInstance, SetWorkflowID
from dbos import error as dbos_errors
from sqlalchemy.exc import SQLAlchemyError

from tidegauge.bundles.reader import read_manifest
from tidegauge.collector.assemble import assemble
from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.compare_process import CompareProcess, ComparisonCrashed, ComparisonFailed, Outcome
from tidegauge.collector.library import CompileLibrary
from tidegauge.collector.store import Store
from tidegauge.errors import TidegaugeError
from tidegauge.files import sync_folder, write_durably

QUEUE = "comparisons"
#: Of the order of steps. DBOS resumes only workflows of its own version, by default a hash of their source code.
WORKFLOW_VERSION = "1"
_log = logging.getLogger(__name__)

#: What ends a comparison as failed. Anything else is a fault of this program.
_ENDS = (ComparisonFailed, dbos_errors.DBOSMaxStepRetriesExceeded, TidegaugeError, OSError, SQLAlchemyError)

#: Called with the result ("fine", "culprit", "coverage", "failed") and the seconds that the comparison took.
Report = Callable[[str, float], None]


@DBOS.dbos_class()
class Comparisons(DBOSConfiguredInstance):
    """The workflow and what it works with. One instance a process, under the name by which DBOS recovers it."""

    def __init__(
        self,
        data: Path,
        store: Store,
        blobs: BlobStore,
        library: CompileLibrary,
        process: CompareProcess,
        manifest_limit: int,
        report: Report,
    ) -> None:
        self._work, self._reports = data / "work", data / "reports"
        self._store, self._blobs, self._library, self._process = store, blobs, library, process
        self._manifest_limit, self._report = manifest_limit, report
        for folder in (self._work, self._reports):
            folder.mkdir(exist_ok=True)
        for stray in (*self._reports.glob("*/.new-*"), *self._work.glob("export-*")):
            shutil.rmtree(stray)
        super().__init__(config_name="collector")

    def report_folder(self, device: str, bundle: str) -> Path:
        """Where comparison.json, report.html and compare.log of a compared bundle are."""
        return self._reports / device / bundle

    @DBOS.workflow(name="compare-bundle", max_recovery_attempts=5)
    def run(self, device: str, bundle: str) -> str:
        """Compare one bundle. A failure is the bundle's own end, with its reason; it blocks no other."""
        try:
            self.assemble(device, bundle)
            outcome = self.compare(device, bundle)
        except (
            ComparisonFailed,
            dbos_errors.DBOSMaxStepRetriesExceeded,
            TidegaugeError,
            OSError,
            SQLAlchemyError,
        ) as error:
            return self.fail(device, bundle, _reason(error))
        return self.index(device, bundle, outcome)

    @DBOS.step(name="assemble", retries_allowed=True, max_attempts=3, should_retry=lambda error: _may_pass(error))
    def assemble(self, device: str, bundle: str) -> None:
        """Lay the bundle out as a folder: manifest.json and blobs/sha256/<hex>, as links into the blob store."""
        row = self._store.bundle(device, bundle)
        if row is None:
            raise ComparisonFailed(f"bundle {bundle} of {device} is not in the database")
        assemble(self._blobs, row.manifest_sha256, self._manifest_limit, self._work / device / bundle)

    @DBOS.step(name="compare", retries_allowed=True, max_attempts=2, should_retry=lambda error: _may_pass(error))
    def compare(self, device: str, bundle: str) -> Outcome:
        """Run the comparison; its reports take their place all at once, or not at all."""
        self._store.set_bundle(device, bundle, "comparing", reason="")
        place = self.report_folder(device, bundle)
        place.parent.mkdir(exist_ok=True)
        folder = self._work / device / bundle
        tempdir = self._library.find_tempdir(read_manifest(folder).inventory.artifacts)
        output = Path(tempfile.mkdtemp(prefix=".new-", dir=place.parent))
        started = time.monotonic()
        try:
            outcome = self._process.run(folder, tempdir, output)
            _replace(output, place)
        finally:
            shutil.rmtree(output, ignore_errors=True)
        self._report(("fine", "culprit", "", "coverage")[outcome.exit_code], time.monotonic() - started)
        return outcome

    @DBOS.step(name="index")
    def index(self, device: str, bundle: str, outcome: Outcome) -> str:
        """Put the answer into the database, from where pages and metrics show it."""
        shutil.rmtree(self._work / device / bundle, ignore_errors=True)
        self._store.set_bundle(
            device,
            bundle,
            "compared",
            reason="",
            exit_code=outcome.exit_code,
            sentence=outcome.sentence,
            culprit=outcome.culprit,
            culprit_cause=outcome.culprit_cause,
            coverage=outcome.coverage,
            seconds=outcome.seconds,
            report=True,
        )
        return "compared"

    @DBOS.step(name="fail")
    def fail(self, device: str, bundle: str, reason: str) -> str:
        _log.error("bundle %s of %s can't be compared: %s", bundle, device, reason)
        shutil.rmtree(self._work / device / bundle, ignore_errors=True)
        self._report("failed", 0.0)
        self._store.set_bundle(device, bundle, "failed", reason=reason)
        return "failed"


class Jobs:
    """DBOS, started and stopped; one a process, since DBOS keeps its state globally."""

    def __init__(self, data: Path, comparisons: Comparisons, workers: int) -> None:
        self._data, self._comparisons, self._workers = data, comparisons, workers

    def start(self, store: Store) -> None:
        """Resume what a killed collector left, and start what is complete but was never started."""
        DBOS(
            config={
                "name": "tidegauge-collector",
                "system_database_url": f"sqlite:///{self._data / 'jobs.sqlite'}",
                "application_version": WORKFLOW_VERSION,
                "executor_id": executor_id(self._data),
                "log_level": "WARNING",
            }
        )
        DBOS.launch()
        DBOS.register_queue(QUEUE, worker_concurrency=self._workers, polling_interval_sec=0.2)
        self._settle(store)

    def _settle(self, store: Store) -> None:
        for bundle in store.bundles(limit=1_000_000, state="complete"):
            self.enqueue(bundle.device, bundle.bundle)
        for bundle in store.bundles(limit=1_000_000, state="comparing"):
            status = DBOS.get_workflow_status(workflow_id(bundle.device, bundle.bundle))
            if status is None:
                self.enqueue(bundle.device, bundle.bundle)
            elif status.status not in ("PENDING", "ENQUEUED", "DELAYED"):
                reason = (
                    f"the comparison was given up ({status.status.lower()}: {status.error or 'no reason recorded'})"
                )
                store.set_bundle(bundle.device, bundle.bundle, "failed", reason=reason)

    def enqueue(self, device: str, bundle: str) -> None:
        """Start the comparison of a complete bundle, once however often it is asked for."""
        with SetWorkflowID(workflow_id(device, bundle)):
            DBOS.enqueue_workflow(QUEUE, self._comparisons.run, device, bundle)

    @staticmethod
    def stop() -> None:
        DBOS.destroy()


def workflow_id(device: str, bundle: str) -> str:
    return f"{device}/{bundle}"


def executor_id(data: Path) -> str:
    """This collector's name to DBOS, kept in the data folder: it recovers the workflows of its own name only."""
    path = data / "executor_id"
    if not path.exists():
        write_durably(path, f"collector-{uuid.uuid4().hex}\n".encode())
    return path.read_text().strip()


def _may_pass(error: BaseException) -> bool:
    """Whether trying again may help."""
    return isinstance(error, ComparisonCrashed | OSError)


def _reason(error: Exception) -> str:
    """Why a comparison failed, of the last try."""
    if isinstance(error, dbos_errors.DBOSMaxStepRetriesExceeded):
        return f"{error.errors[-1]} (tried {error.max_retries} times)"
    return str(error)


def _replace(new: Path, place: Path) -> None:
    """Put the folder `new` where `place` is or will be."""
    for file in new.iterdir():
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    sync_folder(new)
    if place.exists():
        shutil.rmtree(place)
    new.rename(place)
    sync_folder(place.parent)
