"""Times and memory for the benchmark of the comparison."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path


def malloc_trim() -> None:
    """Give freed memory back, so that what a pass needs is not found in what was needed to prepare it."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def open_page(html: Path) -> float | None:
    """Seconds until Chromium has laid the page out; None without Chromium."""
    times = []
    with tempfile.TemporaryDirectory() as name:
        blank = Path(name) / "blank.html"
        blank.write_text("<!doctype html><title>blank</title>")
        for page in (blank, html):
            flags = [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
            ]
            command = ["chromium", *flags, f"--user-data-dir={name}/{page.stem}", "--dump-dom", page.as_uri()]
            begun = time.perf_counter()
            try:
                subprocess.run(command, capture_output=True, timeout=120, check=True)
            except FileNotFoundError:
                return None
            times.append(time.perf_counter() - begun)
    return max(0.0, times[1] - times[0])


def interleaved(repeat: int, *works: Callable[[], None]) -> list[float]:
    """The best time of each, taken in turns so that a busy moment meets them all; the first round warms up."""
    best = [float("inf")] * len(works)
    for turn in range(repeat + 1):
        for number, work in enumerate(works):
            begun = time.perf_counter()
            work()
            if turn:
                best[number] = min(best[number], time.perf_counter() - begun)
    return best


def peak_anonymous(work: Callable[[], None]) -> float:
    """The most anonymous memory (file pages do not count) that the process has while `work` runs, in bytes."""
    peak, done = [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        work()
    finally:
        done.set()
        thread.join()
    return peak[0]


def anonymous() -> float:
    """Anonymous memory of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
