"""What the tap costs an application for each frame: frames that nobody has asked for, and frames that are copied."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from tidegauge.evaluation.figures import Figure, Report
from tidegauge.tap import Tap
from tidegauge.tap.application import Application
from tidegauge.tap.worker import listen

#: The input and the output of a common network: float32, 1 × 3 × 224 × 224, 588 KiB each.
SHAPE = (1, 3, 224, 224)
#: Microseconds that a frame which nobody asked for may take.
GOAL = 50.0
PATIENCE = 60.0


def _batches(tap: Tap, frames: int, batches: int) -> list[float]:
    """Microseconds a frame, of each batch."""
    tensor = np.zeros(SHAPE, np.float32)
    found = []
    for _ in range(batches):
        began = time.perf_counter()
        for _ in range(frames):
            tap.frame([tensor], [tensor], 0.01)
        found.append(1e6 * (time.perf_counter() - began) / frames)
    return found


def _copied(tap: Tap, application: Application, rounds: int) -> list[float]:
    """Microseconds of each frame that was asked for, with what the next one takes as well."""
    tensor = np.zeros(SHAPE, np.float32)
    found: list[float] = []
    for _ in range(rounds):
        taker = threading.Thread(target=application.take, args=(PATIENCE,))
        taker.start()
        while taker.is_alive():
            began = time.perf_counter()
            tap.frame([tensor], [tensor], 0.01)
            seconds = time.perf_counter() - began
            if application.counted()[0] and seconds > 0:
                found.append(1e6 * seconds)
        taker.join()
    return sorted(found)[-rounds:]


def evaluate(quick: bool, progress: Callable[[str], None]) -> Report:
    """The figures; `quick` with a tenth of the frames."""
    frames, batches, rounds = (2_000, 5, 20) if quick else (20_000, 15, 100)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tap"
        tap = Tap(str(path), "bench")
        tap.opened([("input", SHAPE, "float32")], [("output", SHAPE, "float32")])
        progress("no agent")
        alone = _batches(tap, frames, batches)
        with listen(path) as listener:
            tap.disconnect()
            tap.opened([("input", SHAPE, "float32")], [("output", SHAPE, "float32")])
            listener.settimeout(PATIENCE)
            application = Application(listener.accept()[0])
            while application.shared is None:
                application.receive()
            progress("frames that nobody asked for")
            idle = _batches(tap, frames, batches)
            progress("frames that are copied")
            copied = _copied(tap, application, rounds)
            application.close()
        tap.disconnect()
    group = "the tap's cost for a frame, in Python"
    for name, values in (("not asked for, no agent", alone), ("not asked for, agent attached", idle)):
        figures.append(Figure(group, f"{name}: median", median(values), "µs", GOAL, "<="))
        figures.append(Figure(group, f"{name}: slowest batch", max(values), "µs", GOAL, "<=", f"{frames} frames each"))
    figures.append(Figure(group, "copied (588 KiB in, 588 KiB out): median", median(copied), "µs"))
    return Report(0, quick, figures, [])
