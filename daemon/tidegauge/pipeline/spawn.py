"""Start a worker: one process, one new channel, its C-level output in a log file.

Nothing of a predecessor is reused: a killed process can leave a socket or a lock in any state.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidegauge.errors import TidegaugeError
from tidegauge.pipeline.channel import FD_ENVIRONMENT, AgentChannel


class WorkerNotStarted(TidegaugeError):
    """The system would not start the process."""


async def spawn(
    module: str, accepts: Any, *, environment: Mapping[str, str], log: Path | int
) -> tuple[asyncio.subprocess.Process, AgentChannel[Any]]:
    """Start `python -m module` with `environment` on top of this process's own.

    `accepts`: the union of messages that the worker sends. `log`: a file that is appended to, or a descriptor that
    stays the caller's; it becomes the worker's stdout and stderr, where TI's libraries print all their diagnostics.
    Call it from the main thread: the worker is told to end when the thread that started it does. Raises
    WorkerNotStarted.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with theirs, _opened(log) as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # never import from the folder the agent happens to be in
                "-m",
                module,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                env=worker_environment(os.environ, environment, theirs.fileno()),
            )
    except OSError as error:
        ours.close()
        raise WorkerNotStarted(
            f"the worker {module} can't be started ({error})", "free memory or processes, then restart the agent"
        ) from error
    except BaseException:
        ours.close()
        raise
    return process, AgentChannel(ours, accepts)


def worker_environment(base: Mapping[str, str], additions: Mapping[str, str], fd: int) -> dict[str, str]:
    """Python unbuffered, and a traceback of every thread when native code aborts: the log must hold the last words."""
    return {**base, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **additions, FD_ENVIRONMENT: str(fd)}


@contextmanager
def _opened(log: Path | int) -> Iterator[int]:
    if isinstance(log, int):
        yield log
        return
    try:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise WorkerNotStarted(
            f"the worker's log {log} can't be opened ({error.strerror})", "make its folder writable for the agent"
        ) from error
    try:
        yield fd
    finally:
        os.close(fd)
