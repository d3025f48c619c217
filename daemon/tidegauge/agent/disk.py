"""Writes into the state folder that must not stop the agent: on a full or read-only disk it goes on in memory.

What could not be written is said once, counted on the metrics page, and tried again; a board whose card has died still
runs its camera's pipeline and still raises alarms.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from tidegauge.log_kinds import STATE_UNWRITABLE, STATE_WRITABLE

log = logging.getLogger(__name__)


class Disk:
    """`problem`: why the last write failed, empty while all is well."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problem = ""

    def attempt(self, what: str, write: Callable[[], object]) -> bool:
        """Write; False where the disk refused. `what` could not be kept then, as the log says."""
        try:
            write()
        except OSError as error:
            problem = f"{self.folder} can't be written ({error.strerror})"
            if problem != self.problem:
                log.error(
                    "%s: %s won't outlive a restart. Tried again; make room, or mount it writable",
                    problem,
                    what,
                    extra=STATE_UNWRITABLE.of(folder=str(self.folder)),
                )
            self.problem = problem
            return False
        if self.problem:
            said = STATE_WRITABLE.of(folder=str(self.folder))
            log.warning("%s can be written again", self.folder, extra=said)
            self.problem = ""
        return True
