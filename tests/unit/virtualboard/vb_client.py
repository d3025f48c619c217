"""A process of its own that opens a session on a virtual board, runs, and may die of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tidegauge.tidl import remote_log as log_lines
from tidegauge.tidl.remote_log import LogCause
from tidegauge.virtualboard import onnxruntime_tidl as ort
from tidegauge.virtualboard import remote_log
from tidegauge.virtualboard.state import VARIABLE

PROVIDERS = ["TIDLExecutionProvider", "CPUExecutionProvider"]


def open_session(model: Path, folder: Path, level: int = 0) -> Any:
    options = {"artifacts_folder": str(folder), "debug_level": str(level)}
    return ort.InferenceSession(str(model), providers=PROVIDERS, provider_options=[options, {}])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def causes(board: Path) -> list[LogCause | None]:
    """What the lines of the board's remote log mean."""
    path = board / remote_log.LOG_FILE
    return [log_lines.cause(line) for line in path.read_text().splitlines()] if path.exists() else []


def client(board: str, said: str, model: str, folder: str, level: int, runs: int, leave: Any) -> None:
    """In a process of its own: open a session, run, say what was reached, and stay until told to leave."""
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.environ[VARIABLE] = board
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
    os.write(1, b"begin\n")
    session = open_session(Path(model), Path(folder), level)
    os.write(1, b"created\n")
    for number in range(runs):
        session.run(None, {"input": np.zeros((1, 3, 24, 32), np.float32)})
        os.write(1, f"ran {number}\n".encode())
    leave.wait(60)
