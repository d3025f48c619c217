"""DBOS with the comparisons of a collector: started, fed, and rescued from processes that have died.

DBOS recovers the workflows of its own executor, when that starts again. What another process has left is found by its
heartbeat, which stands still, and is put back into the queue, from where any living process takes it.
"""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

from dbos import DBOS, SetWorkflowID, WorkflowStatus
from sqlalchemy.engine import URL

from tidegauge.collector.comparisons import Comparisons
from tidegauge.collector.log_kinds import BUNDLE_COMPLETE, COMPARISON_MOVED
from tidegauge.collector.runs import Runs
from tidegauge.collector.store import Store
from tidegauge.files import write_durably

QUEUE = "comparisons"
#: Of what people ask for, which needn't wait behind a fleet's bundles.
RUNS = "runs"
#: Of the order of steps and their arguments. DBOS runs only workflows of its own version, by default a hash of their
#: source code: then each upgrade would strand what is queued.
WORKFLOW_VERSION = "2"
_ALIVE = ("PENDING", "ENQUEUED", "DELAYED")
_log = logging.getLogger(__name__)


class Jobs:
    """DBOS, started and stopped; one a process, since DBOS keeps its state globally.

    `database`: a PostgreSQL URL, None for a SQLite file in `data`. `compares`: whether this process runs comparisons,
    or only asks for them. `version`: of the workflows, for tests of an upgrade.
    """

    def __init__(
        self,
        data: Path,
        comparisons: Comparisons,
        workers: int,
        database: URL | None = None,
        compares: bool = True,
        version: str = WORKFLOW_VERSION,
        runs: Runs | None = None,
    ) -> None:
        self._runs = runs
        self._comparisons, self._workers, self._compares = comparisons, workers, compares
        self.version = version
        self.executor = executor_id(data)
        sqlite = f"sqlite:///{data / 'jobs.sqlite'}"
        self._url = sqlite if database is None else database.render_as_string(hide_password=False)

    def start(self, store: Store) -> None:
        """Resume what a killed collector left, and start what is complete but was never started."""
        DBOS(
            config={
                "name": "tidegauge-collector",
                "system_database_url": self._url,
                "application_version": self.version,
                "executor_id": self.executor,
                "log_level": "WARNING",
            }
        )
        DBOS.listen_queues([QUEUE, RUNS] if self._compares else [])
        DBOS.launch()
        DBOS.register_queue(RUNS, worker_concurrency=self._workers, polling_interval_sec=0.2)
        DBOS.register_queue(QUEUE, worker_concurrency=self._workers, polling_interval_sec=0.2)
        for status in self._pending(self.executor):
            if status.app_version != self.version:
                self._move(status)
        self.settle(store)

    def settle(self, store: Store) -> None:
        """What is complete gets a comparison, and what is being compared has one: repairs what a crash left between.

        May be called at any time, by several processes.
        """
        for device, bundle, generation in store.in_state("complete"):
            self.enqueue(device, bundle, generation)
        for device, bundle, generation in store.in_state("comparing"):
            status = self._status(device, bundle, generation)
            if status is None:
                self.enqueue(device, bundle, generation)
            elif status.status == "CANCELLED":
                self.enqueue(device, bundle, store.again(device, bundle))
            elif status.status not in _ALIVE and status.status != "SUCCESS":
                reason = (
                    f"the comparison was given up ({status.status.lower()}: {status.error or 'no reason recorded'})"
                )
                store.finish(device, bundle, generation, "failed", reason=reason)
        if self._runs is not None:
            self._settle_runs(store)

    def completed(self, device: str, bundle: str) -> None:
        """All of a bundle has come: say so, and start its comparison."""
        _log.info("bundle %s of %s is complete", bundle, device, extra=BUNDLE_COMPLETE.of(device=device, bundle=bundle))
        self.enqueue(device, bundle)

    def enqueue(self, device: str, bundle: str, generation: int = 0) -> None:
        """Start the comparison of a complete bundle, once however often it is asked for."""
        with SetWorkflowID(workflow_id(device, bundle, generation)):
            DBOS.enqueue_workflow(QUEUE, self._comparisons.run, device, bundle, generation)

    def enqueue_run(self, run: str) -> None:
        """Start a run that a person asked for, once however often it is asked for."""
        assert self._runs is not None, "this process was made without runs"
        with SetWorkflowID(f"{RUNS}:{run}"):
            DBOS.enqueue_workflow(RUNS, self._runs.run, run)

    def _settle_runs(self, store: Store) -> None:
        """What was asked for is queued; what has been given up has failed."""
        for run in store.open_runs():
            name = f"{RUNS}:{run}"
            status = DBOS.get_workflow_status(f"{name}@{self.version}") or DBOS.get_workflow_status(name)
            if status is None:
                self.enqueue_run(run)
            elif status.status not in _ALIVE and status.status != "SUCCESS":
                store.finish_run(run, "failed", reason=f"the comparison was given up ({status.status.lower()})")

    def rescue(self, executor: str) -> int:
        """Let a living process go on with what a dead one was doing, from its last step. Returns how many those are."""
        pending = self._pending(executor)
        same = [status.workflow_id for status in pending if status.app_version == self.version]
        if same:
            DBOS.resume_workflows(same, queue_name=QUEUE)
        for status in pending:
            if status.app_version != self.version:
                self._move(status)
        return len(pending)

    def take_over(self, living: set[str]) -> int:
        """Queued comparisons of a version of workflows that no process runs any more (`living`: those that some do)."""
        queued = DBOS.list_workflows(status="ENQUEUED", queue_name=QUEUE, load_input=False, load_output=False)
        stranded = [status for status in queued if status.app_version not in {*living, self.version, None}]
        for status in stranded:
            self._move(status)
        return len(stranded)

    def _pending(self, executor: str) -> list[WorkflowStatus]:
        return DBOS.list_workflows(status="PENDING", executor_id=executor, load_input=False, load_output=False)

    def _move(self, status: WorkflowStatus) -> None:
        """Go on with a workflow of another version under this one. What it had done is kept."""
        done = len(DBOS.list_workflow_steps(status.workflow_id))
        moved = f"{status.workflow_id.partition('@')[0]}@{self.version}"
        DBOS.cancel_workflow(status.workflow_id)
        with SetWorkflowID(moved):
            DBOS.fork_workflow(status.workflow_id, done + 1, application_version=self.version, queue_name=QUEUE)
        said = COMPARISON_MOVED.of(comparison=moved)
        _log.warning(
            "comparison %s of version %s goes on as %s", status.workflow_id, status.app_version, moved, extra=said
        )

    def _status(self, device: str, bundle: str, generation: int) -> WorkflowStatus | None:
        name = workflow_id(device, bundle, generation)
        return DBOS.get_workflow_status(f"{name}@{self.version}") or DBOS.get_workflow_status(name)

    @staticmethod
    def stop() -> None:
        DBOS.destroy()


def workflow_id(device: str, bundle: str, generation: int = 0) -> str:
    return f"{device}/{bundle}/{generation}" if generation else f"{device}/{bundle}"


def executor_id(data: Path) -> str:
    """This process's name to DBOS and to the broker, kept in its data folder."""
    path = data / "executor_id"
    if not path.exists():
        write_durably(path, f"collector-{uuid.uuid4().hex}\n".encode())
    return path.read_text().strip()
