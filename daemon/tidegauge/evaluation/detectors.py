"""All figures of the detectors, full or quick."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tidegauge.errors import TidegaugeError
from tidegauge.evaluation import delay, healthy, peers
from tidegauge.evaluation.figures import Figure, Report
from tidegauge.evaluation.streams import makers


class Part(NamedTuple):
    """A part that needs nothing of another: `run(*arguments)`."""

    name: str
    run: Callable[..., list[Figure]]
    arguments: tuple[object, ...]


def parts(quick: bool, seed: int) -> list[Part]:
    """Quick: a small part of the streams, the same code."""
    size = healthy.Size(100, 50, 8, 12, 1440, (1 / 100, 1 / 200), 1 / 300, 5) if quick else healthy.Size()
    beside = peers.Size(4, 1500, 1440, 6, 4000) if quick else peers.Size()
    kinds = makers(healthy.M0)
    even = [kind for kind in kinds if kind != healthy.FEW_SCENES]
    return [
        Part("delays", delay.evaluate, (1000 if quick else 10_000, seed)),
        *(Part(f"run lengths: {kind}", healthy.run_length_figures, (kind, size, seed)) for kind in even),
        *(Part(f"boards: {kind}", healthy.board_figures, (kind, size, seed)) for kind in kinds),
        *(Part(f"years: {kind}", healthy.year_figures, (kind, size, seed)) for kind in healthy.STICKY),
        Part("block lengths", healthy.block_lengths, (20 if quick else 200, seed)),
        *(Part(f"side by side: {kind}", peers.false_alarms, (kind, beside, seed)) for kind in peers.HEALTHY),
        *(Part(f"side by side, changed: {kind}", peers.delays, (kind, beside, seed)) for kind in peers.CHANGING),
    ]


def evaluate(
    quick: bool,
    seed: int,
    jobs: int = 0,
    progress: Callable[[str], None] = lambda text: None,
    only: str = "",
) -> Report:
    """`jobs`: processes, 0 for one a core. `progress` is told which part is done. Figures do not depend on `jobs`.

    `only`: parts whose names hold this text. Raises TidegaugeError where there is none.
    """
    chosen = [part for part in parts(quick, seed) if only in part.name]
    if not chosen:
        names = ", ".join(part.name for part in parts(quick, seed))
        raise TidegaugeError(f"no part of the evaluation has {only!r} in its name", f"parts are: {names}")
    report = Report(seed, quick, [], peers.not_run())
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs or os.cpu_count() or 1, mp_context=context) as pool:
        running = [(part, pool.submit(part.run, *part.arguments)) for part in chosen]
        for part, future in running:
            report.figures += future.result()
            progress(f"{part.name}: done")
    return report
