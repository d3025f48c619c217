"""Wrong from the first frame: acceptance of faulty devices, of healthy ones, and after an upgrade."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from tidegauge.detectors.acceptance import (
    AcceptanceRules,
    Accepted,
    Rejected,
    samples_to_name,
    worse_than,
)
from tidegauge.detectors.defaults import PATIENCE
from tidegauge.evaluation.attribution import rate
from tidegauge.evaluation.corpus import draw_fault
from tidegauge.evaluation.figures import Figure, Report
from tidegauge.evaluation.healthy import FEW_SCENES, M0
from tidegauge.evaluation.healthy import accept as accept_stream
from tidegauge.evaluation.pairs import FIRST_ACCEPTANCE, FIRST_WATCH, Device, Pair, models
from tidegauge.evaluation.stack import Meter, accept
from tidegauge.evaluation.streams import makers
from tidegauge.virtualboard.faults import ALL_KINDS, Fault, eligible

FAILED_GOAL, ACCEPTED_GOAL, NAMED_GOAL, FREE_GOAL = 95.0, 99.0, 95.0, 1.0
#: Fixed before any case was drawn: a symptom (or broken invariant) in this share of so many frames, or a mean loss
#: above acceptance's limit.
SHOWN_SHARE, FRAMES = 0.5, 40
#: What an upgrade costs that must be named.
COST = 0.05
#: Samples of acceptance in the streams of the upgrades: a day; and the most that are simulated.
DAY, MOST_SAMPLES = 1440, 60_000
#: Streams of losses at a time.
BATCH = 10


class Sizes(msgspec.Struct, frozen=True):
    """Cases of each kind of fault, healthy acceptances, upgrades: of each model. `streams`: upgrades of each kind."""

    faults: dict[str, int]
    healthy: dict[str, int]
    upgrades: dict[str, int]
    streams: int
    samples: int = 120


FULL = Sizes(
    {"enhancer": 1, "classifier": 4}, {"enhancer": 6, "classifier": 110}, {"enhancer": 1, "classifier": 4}, 100
)
QUICK = Sizes({"enhancer": 1, "classifier": 1}, {"enhancer": 1, "classifier": 10}, {"enhancer": 1, "classifier": 1}, 10)


class Outcome(NamedTuple):
    """`shown`: above the size. `failed`: acceptance has. `worst`: share of frames with a symptom; `loss`: the mean."""

    fault: str
    shown: bool
    failed: bool
    worst: float
    loss: float
    reason: str

    @property
    def right(self) -> bool:
        return self.failed


class Upgrade(NamedTuple):
    """`cost` as measured on other frames; whether it was named."""

    cost: float
    named: bool
    accepted: bool


class Measured(NamedTuple):
    faults: list[Outcome]
    healthy: list[bool]
    costly: list[Upgrade]
    free: list[Upgrade]


class Part(NamedTuple):
    model: str
    sizes: Sizes
    seed: int
    what: str


def rules(sizes: Sizes) -> AcceptanceRules:
    return AcceptanceRules(samples=sizes.samples)


def measure(part: Part) -> Measured:
    """All cases of one model, of the kind `what`: "faults", "healthy" or "upgrades"."""
    sizes, rng = part.sizes, np.random.default_rng([part.seed, list(models()).index(part.model)])
    with tempfile.TemporaryDirectory(prefix="tidegauge-evaluate-") as folder:
        pair = Pair(Path(folder), part.model, part.seed)
        if part.what == "healthy":
            count = sizes.healthy[part.model]
            step = 10 * sizes.samples  # no two of them share a frame
            outcomes = [accept(pair, pair.device(), rules(sizes), FIRST_ACCEPTANCE + n * step) for n in range(count)]
            return Measured([], [isinstance(outcome, Accepted) for outcome in outcomes], [], [])
        if part.what == "upgrades":
            return Measured([], [], *upgrades(pair, sizes, Path(folder), part))
        drawn = [draw_fault(rng, pair, kind) for kind in ALL_KINDS for _ in range(sizes.faults[part.model])]
        return Measured([try_fault(pair, fault, sizes) for fault in drawn if fault is not None], [], [], [])


def try_fault(pair: Pair, fault: Fault, sizes: Sizes) -> Outcome:
    outcome = accept(pair, pair.device([fault]), rules(sizes))
    shown, loss = seen_at_once(pair, pair.device([fault]))
    limit = AcceptanceRules().max_loss
    reason = outcome.reason if isinstance(outcome, Rejected) else ""
    words = f"{fault.layer}:{fault.kind}:{fault.strength:.4g}"
    return Outcome(words, shown >= SHOWN_SHARE or loss > limit, bool(reason), shown, loss, reason)


def seen_at_once(pair: Pair, device: Device) -> tuple[float, float]:
    """The most frequent symptom's share of frames (a broken invariant counts as one), and the mean loss."""
    meter, seen, losses = Meter(pair.model.output), Counter[str](), []
    for number in range(FRAMES):
        frame = pair.frame(FIRST_WATCH + number)
        measured = meter.measure(device.run(frame.tensor), frame)
        seen.update(measured.symptoms if measured.alarm is None else ("invariant",))
        losses.append(measured.loss)
    return max(seen.values(), default=0) / FRAMES, float(np.mean(losses))


def upgrades(pair: Pair, sizes: Sizes, folder: Path, part: Part) -> tuple[list[Upgrade], list[Upgrade]]:
    """Artifacts that cost 0.05 of loss (a gain in the last layer, found by bisection), and ones compiled anew."""
    before = accept(pair, pair.device(), rules(sizes))
    if isinstance(before, Rejected):
        raise ValueError(f"the healthy {part.model} was not accepted: {before.reason}")
    costly, free = [], []
    for number in range(sizes.upgrades[part.model]):
        start = FIRST_ACCEPTANCE + (number + 1) * 10 * sizes.samples
        fault = costing(pair, COST, up=bool(number % 2))
        costly.append(upgraded(pair, pair.device([fault]), before, sizes, start))
        again = Pair(folder / f"again{number}", part.model, part.seed + 1 + number)
        free.append(upgraded(again, again.device(), before, sizes, start))
    return costly, free


def upgraded(pair: Pair, device: Device, before: Accepted, sizes: Sizes, start: int) -> Upgrade:
    _, loss = seen_at_once(pair, device)
    after = accept(pair, device, rules(sizes), start)
    named = isinstance(after, Accepted) and worse_than(before, after) is not None
    return Upgrade(loss - before.mean, named, isinstance(after, Accepted))


def costing(pair: Pair, cost: float, up: bool) -> Fault:
    """A gain of the last layer that has one, so wrong that the mean loss becomes larger by `cost`."""
    layer = eligible(pair.network)["gain"][-1]
    healthy = seen_at_once(pair, pair.device())[1]
    low, high = 0.0, 1.0
    for _ in range(12):
        size = (low + high) / 2
        fault = Fault(layer, "gain", 1 + size if up else 1 - size)
        low, high = (low, size) if seen_at_once(pair, pair.device([fault]))[1] - healthy > cost else (size, high)
    return Fault(layer, "gain", 1 + high if up else 1 - high)


def stream_upgrades(kind: str, streams: int, seed: int) -> list[Figure]:
    """Acceptances before and after, of losses with mean m0; after: mean m0 + 0.05, or the same.

    Of a day each, and where `tidegauge baseline show` says after such a day that it takes longer, as long as that: the
    median of what nine boards say.
    """
    rng = np.random.default_rng((seed, 500, list(makers(M0)).index(kind)))
    days = _acceptances(kind, M0, DAY, 9, rng)
    told = [samples_to_name(each, COST) for each in days if each is not None]
    needed = min(int(np.median(told)), MOST_SAMPLES)
    figures = _named(kind, DAY, streams, rng, NAMED_GOAL if needed <= DAY else None, "a day")
    if needed > DAY:
        figures += _named(kind, needed, streams, rng, NAMED_GOAL, "as long as one of a day says that it takes")
    return figures


def _acceptances(kind: str, mean: float, samples: int, count: int, rng: np.random.Generator) -> list[Accepted | None]:
    """As in the product, but that no loss is too large: a stream left out would make the rest look better."""
    rule = AcceptanceRules(samples=samples, max_loss=1.0)
    long = PATIENCE * samples + 1 if samples <= DAY else samples  # where scenes stay, a day is no acceptance
    found: list[Accepted | None] = []
    while len(found) < count:  # a few at a time, which fit into memory
        losses, errors = makers(mean)[kind][1](BATCH, rng).take_with_errors(long)
        found += [accept_stream(one, rule, other) for one, other in zip(losses.T, errors.T, strict=True)]
    return found[:count]


def _named(
    kind: str, samples: int, streams: int, rng: np.random.Generator, goal: float | None, words: str
) -> list[Figure]:
    """Upgrades named among `streams` that cost 0.05, and among as many that cost nothing."""
    found: dict[float, list[bool]] = {}
    for cost in (0.0, COST):
        before, after = (_acceptances(kind, mean, samples, streams, rng) for mean in (M0, M0 + cost))
        found[cost] = [
            old is not None and new is not None and worse_than(old, new) is not None
            for old, new in zip(before, after, strict=True)
        ]
    group = f"upgrades named, losses of mean {M0} before, acceptances of {words}"
    costly = rate(group, f"costs {COST:g}, {kind}", found[COST], goal)
    free = rate(group, f"costs nothing, {kind}", found[0.0])
    hours = f"{samples} samples, {samples / 60:.0f} h at one a minute; "
    return [
        msgspec.structs.replace(costly, note=hours + costly.note),
        msgspec.structs.replace(free, goal=FREE_GOAL, relation="<="),
    ]


def evaluate(quick: bool, seed: int, jobs: int = 0, progress: Callable[[str], None] = lambda text: None) -> Report:
    """`seed` draws faults and pictures; figures do not depend on `jobs`."""
    sizes = QUICK if quick else FULL
    chosen = [Part(name, sizes, seed, what) for what in ("faults", "healthy", "upgrades") for name in models()]
    found: list[Measured] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs or os.cpu_count() or 1, mp_context=context) as pool:
        streams = [pool.submit(stream_upgrades, kind, sizes.streams, seed) for kind in makers(M0) if kind != FEW_SCENES]
        for part, measured in zip(chosen, pool.map(measure, chosen), strict=True):
            found.append(measured)
            wrong = [f"{o.fault} (loss {o.loss:.3f}, symptom in {o.worst:.0%})" for o in measured.faults if missed(o)]
            progress(f"{part.model}, {part.what}: done" + "".join(f"; accepted {each}" for each in wrong))
        further = [figure for future in streams for figure in future.result()]
    return Report(seed, quick, [*figures(found), *further], [])


def missed(outcome: Outcome) -> bool:
    return outcome.shown and not outcome.failed


def figures(found: Sequence[Measured]) -> list[Figure]:
    faults = [each for measured in found for each in measured.faults]
    shown, small = [each for each in faults if each.shown], [each for each in faults if not each.shown]
    healthy = [good for measured in found for good in measured.healthy]
    group = "acceptance of a device that is wrong from the first frame"
    failed = sum(each.failed for each in small)
    result = [
        rate(group, "failed, with a symptom or a loss above the limit", [o.failed for o in shown], FAILED_GOAL),
        Figure(
            group, "smaller faults, counted apart", len(small), "cases", note=f"{failed} of them failed all the same"
        ),
        rate("acceptance of a healthy pair", "accepted", healthy, ACCEPTED_GOAL),
    ]
    for words, kind, goal in (("costs 0.05", "costly", NAMED_GOAL), ("costs nothing", "free", None)):
        every = [each for measured in found for each in getattr(measured, kind)]
        named = rate("upgrades on the virtual board", f"{words}: named", [each.named for each in every], goal)
        costs = [each.cost for each in every]
        cost = f"cost {min(costs):.3f} to {max(costs):.3f}; " if costs else ""
        named = msgspec.structs.replace(named, note=f"{cost}{named.note}")
        result.append(named if goal else msgspec.structs.replace(named, goal=0.0, relation="<="))
    return result


def conditions() -> str:
    """What was fixed before any case was drawn, in words."""
    return (
        f"Counted: faults that show a symptom (or break an invariant) in {SHOWN_SHARE:.0%} of {FRAMES} frames, or "
        f"whose mean loss is above acceptance's limit, {AcceptanceRules().max_loss:g}. Smaller ones are counted apart."
    )
