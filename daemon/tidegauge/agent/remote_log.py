"""The C7x's remote-log server as a child of the agent: started once before any session, heard through a pty.

The server does the C7x's file operations, so that a traced session without it, with two of them, or with one that was
restarted in mid-dump hangs the core (app_fileio_server.c, SDK 11.1). Hence: one at a time, never a new one during a
capture, and none beside one that something else has started. A pty, since the C library of a program that writes into a
pipe holds its lines back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pty
import termios
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tidegauge import board
from tidegauge.agent import orphans
from tidegauge.agent.backoff import Backoff
from tidegauge.agent.config import RemoteLogConfig
from tidegauge.clocks import monotonic
from tidegauge.log_kinds import REMOTE_LOG_DOWN, REMOTE_LOG_UP
from tidegauge.metrics import REMOTE_LOG_FAULTS, AgentMetrics
from tidegauge.tidl import remote_log
from tidegauge.tidl.log_causes import LONGEST

log = logging.getLogger(__name__)

NAME = "remote_log"
FILE = "remote_log.txt"
#: Beyond the first the file begins anew; during a capture, which reads on from where it began, only beyond the last.
KEPT_BYTES, MOST_BYTES = 4 << 20, 64 << 20
RING_LINES = 500
READ_BYTES = 1 << 16
STOP_SECONDS, POLL_SECONDS = 3.0, 0.2


class RemoteLogServer:
    """`supervised()` around everything that opens sessions. `busy`: whether a capture is under way."""

    def __init__(
        self,
        config: RemoteLogConfig,
        text: str,
        busy: Callable[[], bool],
        on_stuck: Callable[[str], None],
        metrics: AgentMetrics,
        logs: Path,
    ) -> None:
        """`text`: by which the server's command line is known (key `capture.remote_log`)."""
        self._config, self._text, self._busy, self._on_stuck = config, text, busy, on_stuck
        self._metrics, self._record = metrics, logs / f"{NAME}{orphans.SUFFIX}"
        self._path = logs / FILE
        self._backoff = Backoff(config.restart_first, config.restart_most)
        self._rest = b""
        self.lines: deque[str] = deque(maxlen=RING_LINES)
        self.generation, self.pid, self.problem = 0, None, ""
        self._process: asyncio.subprocess.Process | None = None

    pid: int | None

    @property
    def configured(self) -> bool:
        return bool(self._config.command)

    @asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """The server runs inside, as far as it can; it ends after everything inside has."""
        if not self.configured:
            yield
            return
        await self._start()
        await asyncio.sleep(self._config.settle)
        keeping = asyncio.create_task(self._keep(), name="remote log")
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await self._end()

    async def _keep(self) -> None:
        """Wait for its end, then for the pause and for the end of a capture; start another."""
        while True:
            if self._process is not None:
                code = await self._process.wait()
                self._ended(code)
            await asyncio.sleep(self._backoff.delay(monotonic()))
            while self._busy():  # noqa: ASYNC110 # a new server in mid-dump doesn't know the open files
                await asyncio.sleep(POLL_SECONDS)
            await self._start()

    def _ended(self, code: int) -> None:
        how = f"signal {-code}" if code < 0 else f"code {code}"
        said = f"; it last said: {self.lines[-1]}" if self.lines else ""
        self.problem = f"the remote-log server ended with {how}{said}"
        log.warning("%s", self.problem, extra=REMOTE_LOG_DOWN.of())
        self._metrics.worker_restarts.labels(NAME, "exited").inc()
        self._record.unlink(missing_ok=True)
        self._process, self.pid = None, None

    async def _start(self) -> None:
        others = await asyncio.to_thread(board.processes_matching, self._text)
        if others:
            self.problem = f"another remote-log server runs: pids {others}; a second one would take lines from it"
            log.warning("%s", self.problem, extra=REMOTE_LOG_DOWN.of())
            return
        main, theirs = pty.openpty()
        _raw(theirs)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._config.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
            )
        except OSError as error:
            os.close(main)
            self.problem = f"{self._config.command[0]} can't be started ({error}): correct key `remote_log.command`"
            log.error("%s", self.problem, extra=REMOTE_LOG_DOWN.of())
            return
        finally:
            os.close(theirs)
        self.generation += 1
        self.pid, self.problem = self._process.pid, ""
        self._backoff.started(monotonic())
        orphans.note(self._record, self._process.pid)
        said = REMOTE_LOG_UP.of(worker_pid=self._process.pid)
        log.info("remote-log server started, pid %d", self._process.pid, extra=said)
        os.set_blocking(main, False)
        asyncio.get_running_loop().add_reader(main, self._readable, main)

    # --- what it says ---

    def _readable(self, fd: int) -> None:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # EIO: the last writer has gone
            data = b""
        if data:
            self._take(data)
            return
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)

    def _take(self, data: bytes) -> None:
        self._append(data)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-LONGEST:]
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r")
            self.lines.append(text)
            fault = remote_log.cause(remote_log.parse(text).text)
            if fault is not None:
                word = fault.word if fault in REMOTE_LOG_FAULTS else "other"
                self._metrics.remote_log_faults.labels(word).inc()

    def _append(self, data: bytes) -> None:
        with self._path.open("ab") as file:
            if file.tell() > (MOST_BYTES if self._busy() else KEPT_BYTES):
                file.truncate(0)
            file.write(data)

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        for send in (process.terminate, process.kill):
            with contextlib.suppress(ProcessLookupError):  # it ended in this very moment
                send()
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
            except TimeoutError:
                continue  # it did not listen: the next signal is stronger
            break
        else:
            self._on_stuck(f"the remote-log server, pid {process.pid}, does not end on SIGKILL: reboot the board")
        self._record.unlink(missing_ok=True)


def _raw(fd: int) -> None:
    """Bytes as they are: no carriage return before each line feed."""
    attributes = termios.tcgetattr(fd)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(fd, termios.TCSANOW, attributes)
