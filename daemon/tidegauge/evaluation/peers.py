"""Side by side on the same streams: the product's front end, a normal-score CUSUM, and River's detectors."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np

from tidegauge.detectors.acceptance import AcceptanceRules
from tidegauge.detectors.betting import BettingDetector
from tidegauge.detectors.blocks import BlockMean
from tidegauge.evaluation.cusum import NormalScoreCusum
from tidegauge.evaluation.figures import Figure, NotRun
from tidegauge.evaluation.healthy import M0, accept
from tidegauge.evaluation.streams import Bernoulli, Beta, Floats, Maker, Sticky, makers

#: A fleet: devices, statistics of each, samples of each a day.
DEVICES, STATISTICS, A_DAY = 200, 5, 1440
#: One false alarm a stream-year, for that fleet.
GOAL_A_DAY = DEVICES * STATISTICS / 365.25
RIVER = ("PageHinkley", "ADWIN", "KSWIN")
HEALTHY = ("Bernoulli", "beta", "AR(0.5)", "AR(0.9)", "sticky scenes, 0 or 1")
CHANGING = ("Bernoulli", "beta", "sticky scenes, 0 or 1")
CHANGES = (0.5, 0.2)


class Size(msgspec.Struct, frozen=True):
    """`streams` of `samples` each, after an acceptance of `acceptance` samples. `delays`: streams for each delay."""

    streams: int = 8
    samples: int = 5000
    acceptance: int = 1440
    delays: int = 16
    longest: int = 6000


class Peer(Protocol):
    def update(self, loss: float) -> bool: ...


Start = Callable[[Floats], Peer]


class _Ours:
    """As accepted, at one false alarm a year of one sample a minute."""

    def __init__(self, acceptance: Floats) -> None:
        # Nothing is too bad to be accepted here: a stream left out would make the rest look better. Nor does it wait
        # for more scenes: all have seen the same samples.
        found = accept(acceptance, AcceptanceRules(samples=acceptance.size, max_loss=1.0, independent=0))
        if found is None:
            raise ValueError("acceptance gave no outcome")
        self._blocks = BlockMean(found.block)
        self._detector = BettingDetector("loss", found.m0, found.alpha)

    def update(self, loss: float) -> bool:
        mean = self._blocks.add(loss)
        return mean is not None and self._detector.update(mean) is not None


class _River:
    """At its defaults; it saw the samples of acceptance, as it would have in the field."""

    def __init__(self, name: str, acceptance: Floats) -> None:
        kind = getattr(importlib.import_module("river.drift"), name)
        self._detector = kind(seed=1) if name == "KSWIN" else kind()
        for loss in acceptance:
            self._detector.update(float(loss))

    def update(self, loss: float) -> bool:
        self._detector.update(loss)
        return bool(self._detector.drift_detected)


def river_installed() -> bool:
    try:
        importlib.import_module("river.drift")
    except ModuleNotFoundError:
        return False
    return True


def peers() -> dict[str, Start]:
    """The detectors that can be run here, by name."""
    found: dict[str, Start] = {
        "Tidegauge, blocks as accepted": _Ours,
        "normal-score CUSUM, k 0.5, h 11.3": lambda acceptance: NormalScoreCusum(acceptance.tolist()),
    }
    if river_installed():
        for name in RIVER:
            # mypy infers no type for a lambda whose default binds a loop's variable.
            found[f"River {name}, defaults"] = lambda acceptance, name=name: _River(name, acceptance)  # type: ignore[misc]
    return found


def not_run() -> list[NotRun]:
    if river_installed():
        return []
    return [NotRun("side by side", f"River {name}", "not installed (pip install river)") for name in RIVER]


def false_alarms(kind: str, size: Size, seed: int) -> list[Figure]:
    """False alarms a day of the fleet, of each detector on the same healthy streams of one of the kinds `HEALTHY`."""
    make = makers(M0)[kind][1]
    rng = np.random.default_rng((seed, 200, HEALTHY.index(kind)))
    data = make(size.streams, rng).take(size.acceptance + size.samples).T
    group = f"false alarms a day, {DEVICES} devices × {STATISTICS} statistics, {kind}"
    figures = []
    for name, start in peers().items():
        alarms = seen = 0
        for stream in data:
            first = _first_alarm(start(stream[: size.acceptance]), stream[size.acceptance :])
            alarms += first is not None
            seen += size.samples if first is None else first
        rate = alarms / seen * DEVICES * STATISTICS * A_DAY
        note = f"{alarms} first alarms in {seen} samples"
        if alarms == 0:
            note += f": below {3 / seen * DEVICES * STATISTICS * A_DAY:.0f} with 95 % confidence"
        figures.append(Figure(group, name, rate, "a day", note=note))
    return [*figures, Figure(group, "as promised: one a stream-year", GOAL_A_DAY, "a day")]


def _changed(kind: str, share: float) -> Maker:
    if kind == "beta":
        return lambda n, rng: Beta(share, n, rng)
    if kind == "Bernoulli":
        return lambda n, rng: Bernoulli(share, n, rng)
    return lambda n, rng: Sticky(0.9, lambda k: Bernoulli(share, k, rng).take(1)[0], n, rng)


def delays(kind: str, size: Size, seed: int) -> list[Figure]:
    """Samples until a change is found, of each detector on the same streams of one of the kinds `CHANGING`."""
    make = makers(M0)[kind][1]
    figures = []
    for share in CHANGES:
        rng = np.random.default_rng((seed, 300, CHANGING.index(kind), int(100 * share)))
        before = make(size.delays, rng).take(size.acceptance).T
        after = _changed(kind, share)(size.delays, rng).take(size.longest).T
        for name, start in peers().items():
            found = [_first_alarm(start(one), other) for one, other in zip(before, after, strict=True)]
            waits = [size.longest if first is None else first for first in found]
            missed = sum(first is None for first in found)
            note = f"95 % within {np.quantile(waits, 0.95):.0f}"
            note += f"; never in {missed} of {len(waits)}" if missed else ""
            group = f"samples until {share:.0%} disagreement is found, {kind}"
            figures.append(Figure(group, name, float(np.mean(waits)), "samples", note=note))
    return figures


def _first_alarm(detector: Peer, losses: Floats) -> int | None:
    """How many samples it took."""
    return next((index for index, loss in enumerate(losses.tolist(), 1) if detector.update(loss)), None)
