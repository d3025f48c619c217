"""Workers that outlived an agent which was killed: found by pid and start time, and ended before new ones are started.

A worker leaves when its agent dies (PR_SET_PDEATHSIG), but one that hangs in the C7x can't; a second session beside it
would hang too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from tidegauge.log_kinds import WORKER_LEFT, WORKER_STUCK

log = logging.getLogger(__name__)

SUFFIX = ".pid"
#: Seconds to end after the parent's death, and after SIGTERM (a traced run that is under way is finished first).
LEAVE_SECONDS = 3.0
POLL_SECONDS = 0.05


def note(record: Path, pid: int) -> None:
    """Remember a process. Its start time tells it from a later one with the same pid."""
    started = start_time(pid)
    if started is None:
        return
    try:
        record.write_text(f"{pid} {started}")
    except OSError as error:
        # Only an agent that is killed on a full disk, beside a worker that hangs, would miss it.
        log.warning("%s can't be written (%s): a later agent won't know of pid %d", record, error.strerror, pid)
        record.unlink(missing_ok=True)


def start_time(pid: int) -> str | None:
    """Clock ticks since boot at which a live process started (proc(5), field 22); None where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def live(folder: Path) -> list[tuple[Path, int]]:
    """Records in `folder` whose process still lives, with its pid. Others are deleted."""
    found = []
    for record in sorted(folder.rglob(f"*{SUFFIX}")):
        pid, _, started = record.read_text().partition(" ")
        if pid.isdecimal() and start_time(int(pid)) == started:
            found.append((record, int(pid)))
        else:
            record.unlink()
    return found


async def end_all(folder: Path, on_stuck: Callable[[str], None]) -> int:
    """End all that are noted in `folder`; returns how many there were.

    Waits for one that SIGKILL doesn't end, after `on_stuck` was told in a sentence.
    """
    orphans = live(folder)
    for _, pid in orphans:
        log.warning(
            "a worker of an earlier agent still runs, pid %d: ending it", pid, extra=WORKER_LEFT.of(worker_pid=pid)
        )
    for number in (signal.SIGTERM, signal.SIGKILL):
        for _, pid in live(folder):
            with contextlib.suppress(ProcessLookupError):  # it ended in this very moment
                os.kill(pid, number)
        waited = 0.0
        while live(folder) and waited < LEAVE_SECONDS:
            await asyncio.sleep(POLL_SECONDS)
            waited += POLL_SECONDS
    if left := live(folder):
        sentence = (
            f"a worker of an earlier agent, pid {left[0][1]}, does not end on SIGKILL: it hangs in a driver (state D);"
            " no new one is started beside it; reboot the board"
        )
        log.error("%s", sentence, extra=WORKER_STUCK.of(worker_pid=left[0][1]))
        on_stuck(sentence)
    while live(folder):  # noqa: ASYNC110 # another process sets no event
        await asyncio.sleep(LEAVE_SECONDS)
    return len(orphans)
