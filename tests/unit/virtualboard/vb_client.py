"""A process of its own that opens a session on a virtual board, runs, and may die of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

from tidegauge.virtualboard import onnxruntime_tidl as ort
from tidegauge.virtualboard.state import VARIABLE

PROVIDERS = ["TIDLExecutionProvider", "CPUExecutionProvider"]


def open_session(model: Path, folder: Path, level: int = 0) -> Any:
    options = {"artifacts_folder": str(folder), "debug_level": str(level)}
    return ort.InferenceSession(str(model), providers=PROVIDERS, provider_options=[options, {}])


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
