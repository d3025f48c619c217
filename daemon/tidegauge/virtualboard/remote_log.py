"""The C7x's log and the process that prints it, which on a real board is `vx_app_arm_remote_log.out`.

That process also serves the C7x's file operations: without it a dump hangs for ever. Lines: `[%-6s] %6d.%06u s: text`
(app_log of TI's app_utils, SDK 11.1), seconds since boot.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path
from typing import BinaryIO

from tidegauge.errors import TidegaugeError

LOG_FILE = "remote_log.txt"
PID_FILE = "remote_log.pid"
CORE = "C7x_1"
_MAX_LOG_BYTES = 16 << 20
_POLL_SECONDS = 0.01  # as the real reader


def line(text: str, seconds: float) -> str:
    """One line of the C7x at `seconds` since boot."""
    whole, micro = divmod(round(seconds * 1_000_000), 1_000_000)
    return f"[{CORE:<6}] {whole:6d}.{micro:06d} s: {text}\n"


def append(folder: Path, *texts: str) -> None:
    """Write lines of the C7x in one piece. A log that has grown over 16 MiB begins anew."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    data = "".join(line(text, now) for text in texts).encode()
    path = folder / LOG_FILE
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    handle = os.open(path, flags, 0o644)
    try:
        if os.fstat(handle).st_size > _MAX_LOG_BYTES:
            os.ftruncate(handle, 0)
        os.write(handle, data)
    finally:
        os.close(handle)


def server_pid(folder: Path) -> int | None:
    """The pid of the living remote-log process of this board, or None."""
    try:
        handle = os.open(folder / PID_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None  # nobody holds it: whatever pid is written there belongs to a dead process
    except BlockingIOError:
        text = os.read(handle, 32).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(handle)


def generation(folder: Path) -> int:
    """Changes whenever a server starts or ends: files that one has opened mean nothing to the next."""
    try:
        return (folder / PID_FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def serve(folder: Path, out: BinaryIO, stop: threading.Event, ready: threading.Event | None = None) -> None:
    """Print new lines of the log to `out` until `stop` is set; `ready` is set once the C7x is served.

    Raises `TidegaugeError` if a server runs already.
    """
    handle = os.open(folder / PID_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _claim(handle, folder)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        if ready is not None:
            ready.set()
        _follow(folder / LOG_FILE, out, stop)
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _claim(handle: int, folder: Path) -> None:
    deadline = time.monotonic() + 1.0  # a reader's question holds the lock for an instant
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise TidegaugeError(
                    f"a remote-log server runs already for {folder} (pid {server_pid(folder)})",
                    "use that one: two readers steal lines from each other",
                ) from error
            time.sleep(_POLL_SECONDS)


def _follow(path: Path, out: BinaryIO, stop: threading.Event) -> None:
    offset = path.stat().st_size if path.exists() else 0
    while not stop.wait(_POLL_SECONDS):
        size = path.stat().st_size if path.exists() else 0
        if size < offset:
            offset = 0
        if size == offset:
            continue
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(size - offset)
        offset += len(data)
        out.write(data)
        out.flush()
