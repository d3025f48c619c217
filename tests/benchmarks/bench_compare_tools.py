"""Times and memory for the benchmark of the comparison."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np


def malloc_trim() -> None:
    """Give freed memory back, so that what a pass needs is not found in what was needed to prepare it."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def open_page(html: Path, turns: int = 5) -> tuple[float, float]:
    """Seconds until Chromium has laid the page out, and until it has a blank one, its own start included: medians of
    turns by turns, after one start that fills its profile and caches."""
    times: dict[Path, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        blank = Path(name) / "blank.html"
        blank.write_text("<!doctype html><title>blank</title>")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
        flags += ["--disable-background-networking", f"--user-data-dir={name}/profile", "--dump-dom"]
        for page in (blank, *(blank, html) * turns):
            begun = time.perf_counter()
            subprocess.run(["chromium", *flags, page.as_uri()], capture_output=True, timeout=120, check=True)
            times.setdefault(page, []).append(time.perf_counter() - begun)
    return statistics.median(times[html]), statistics.median(times[blank][1:])


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float, list[float]]:
    """Slope and start of the least-squares line, and how far each point is from it as a share of its own height."""
    sizes, times = np.array(points, float).T
    slope, start = np.polyfit(sizes, times, 1)
    return float(slope), float(start), ((times - slope * sizes - start) / times).tolist()


def drawn(points: Sequence[tuple[float, float]], slope: float, start: float) -> str:
    """An SVG: seconds over megabytes, the measured sizes as dots on their line."""
    width, height, left, base = 560, 300, 56, 252
    most, longest = 1.1 * max(size for size, _ in points), 1.15 * max(seconds for _, seconds in points)

    def at(size: float, seconds: float) -> tuple[float, float]:
        return left + (width - left - 20) * size / most, base - (base - 16) * seconds / longest

    dots, marks = "", ""
    for size, seconds in points:
        x, y = at(size, seconds)
        dots += (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5"/><text x="{x - 8:.1f}" y="{y - 10:.1f}">{seconds:.1f} s</text>'
        )
        marks += f'<text x="{x:.1f}" y="{base + 20}">{size / 1e6:.0f} MB</text>'
    (x1, y1), (x2, y2) = at(0, start), at(most, start + slope * most)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="13" text-anchor="middle" role="img">'
        "<title>CPU time of the whole comparison over the size of its traces</title>"
        '<rect width="100%" height="100%" fill="#fff"/>'
        f'<path d="M{left} 16V{base}H{width - 20}" fill="none" stroke="#888"/>'
        f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="#0072b2" stroke-width="2"/>'
        f'<g fill="#d55e00">{dots}</g><g fill="#333">{marks}'
        f'<text x="{(left + width) / 2:.0f}" y="{base + 40}">traces of one frame, 250 layers</text>'
        f'<text transform="translate(20 {base / 2:.0f}) rotate(-90)">seconds of CPU</text></g></svg>\n'
    )


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
