"""The demo's child processes: output in a log file, ended in order, the last line shown on a failure."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tidegauge.errors import TidegaugeError

#: More than the agent itself may need: a worker in the middle of its start is asked, told and killed, each step with
#: its own deadline.
STOP_SECONDS = 20.0

log = logging.getLogger(__name__)


class Child:
    """A running program of the demo."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name, self.process, self.log = name, process, log
        self._told = False

    def check(self) -> None:
        """Raise when it has ended by itself: nothing in the demo ends before the demo does."""
        if self.process.returncode is not None:
            raise TidegaugeError(
                f"the {self.name} ended with code {self.process.returncode}: {self.last_line()}",
                f"its whole output is in {self.log}",
            )

    def last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1] if lines else "it printed nothing"

    def tell_to_stop(self) -> None:
        """Send SIGTERM, once, and don't wait."""
        if self.process.returncode is None and not self._told:
            self._told = True
            self.process.send_signal(signal.SIGTERM)

    async def stop(self) -> None:
        if self.process.returncode is not None:
            return
        self.tell_to_stop()
        try:
            await asyncio.wait_for(self.process.wait(), STOP_SECONDS)
        except TimeoutError:
            log.warning("the %s did not stop within %.0f s: killing it; see %s", self.name, STOP_SECONDS, self.log)
            self.process.kill()
            await self.process.wait()


@asynccontextmanager
async def running(
    name: str, command: Sequence[str], logs: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Child]:
    """Start a program, and stop it at the end. In a session of its own: the terminal's Ctrl-C is for the demo."""
    path = logs / f"{name}.log"
    with path.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    child = Child(name, process, path)
    try:
        yield child
    finally:
        await child.stop()


def tidegauge(*arguments: str) -> list[str]:
    """The command line of this same installation."""
    return [sys.executable, "-m", "tidegauge", *arguments]
