"""A thread that tells the others that this process lives, and takes over from those that don't; and does the chores."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dbos import error as dbos_errors
from sqlalchemy.exc import SQLAlchemyError

from tidegauge.clocks import monotonic
from tidegauge.collector.config import WorkersConfig
from tidegauge.collector.jobs import Jobs
from tidegauge.collector.log_kinds import CHORE_FAILED, PROCESS_DIED
from tidegauge.collector.store import Store
from tidegauge.errors import TidegaugeError

_log = logging.getLogger(__name__)
#: What a chore may fail with and be tried again.
_PASSING = (SQLAlchemyError, dbos_errors.DBOSException, OSError, TidegaugeError)


@dataclass(frozen=True)
class Chore:
    """Something done every so many `seconds`, by every process: it must bear being done by several at once."""

    name: str
    seconds: float
    do: Callable[[], object]


class Watch:
    """`start` and `stop`. While it runs, the process is alive to the others."""

    def __init__(
        self, store: Store, jobs: Jobs, config: WorkersConfig, host: str, compares: bool, chores: Sequence[Chore] = ()
    ) -> None:
        self._store, self._jobs, self._config, self._host = store, jobs, config, host
        beat = [Chore("heartbeat", config.heartbeat, self._beat)]
        sweep = [Chore("sweep", config.heartbeat, self._sweep)] if compares else []
        # Chores may take long; the heart beats beside them.
        self._threads = [
            threading.Thread(target=self._run, args=(each,), name=each[0].name, daemon=True)
            for each in (beat, sweep, list(chores))
            if each
        ]
        self._stop = threading.Event()

    def start(self) -> None:
        self._beat()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the threads; the process is not missed by the others."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(5.0)

    def _run(self, chores: Sequence[Chore]) -> None:
        due = {chore.name: monotonic() + chore.seconds for chore in chores}
        while not self._stop.wait(max(0.01, min(due.values()) - monotonic())):
            for chore in chores:
                if monotonic() >= due[chore.name] and not self._stop.is_set():
                    self._do(chore)
                    due[chore.name] = monotonic() + chore.seconds

    def _do(self, chore: Chore) -> None:
        try:
            chore.do()
        except _PASSING as error:
            said = CHORE_FAILED.of(chore=chore.name)
            _log.error("%s failed and is tried again: %s", chore.name, " ".join(str(error).split())[:500], extra=said)

    def _beat(self) -> None:
        self._store.beat(self._jobs.executor, self._host, self._jobs.version)

    def _sweep(self) -> None:
        for executor, count in self._store.bury(self._config.dead_after, self._jobs.rescue).items():
            said = PROCESS_DIED.of(process=executor, comparisons=count)
            _log.warning("the process %s has died; %d comparisons of it go on elsewhere", executor, count, extra=said)
        living = {each.version for each in self._store.living(self._config.dead_after)}
        self._jobs.take_over(living)
