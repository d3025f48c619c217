"""Devices with kernels of others: a baseline of healthy runs, then healthy inputs and faults, and how they compute."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tidegauge.compare import Comparison
from tidegauge.compare.exactness import kind_of
from tidegauge.compare.oracle import TIERS
from tidegauge.evaluation import integer_kernels
from tidegauge.evaluation.figures import Figure, NotRun
from tidegauge.evaluation.networks import NETWORKS
from tidegauge.evaluation.trial import Bench, Outcome, draw, healthy, learn_healthy, try_faults, value_of

ORT, LITE = "ONNX Runtime's integer kernels", "LiteRT's int8 kernels"
#: Healthy runs that the baseline is learnt from.
LEARNT = 6
_TRIES = 20
_FAMILIES = ("gross", "mild")


class Habit(NamedTuple):
    """How the healthy layers of a kind lie beside the computed values: shares of codes off by one and by more of the
    worst layer, and how far beyond rounding codes lie, in codes."""

    one: float
    more: float
    reach: float

    def widened(self, other: Habit) -> Habit:
        return Habit(max(self.one, other.one), max(self.more, other.more), max(self.reach, other.reach))


class Independent(NamedTuple):
    """One device: outcomes, healthy runs, false culprits, habits by kind of layer."""

    device: str
    outcomes: list[Outcome]
    runs: int
    false: list[str]
    habits: dict[str, Habit]


class Device(NamedTuple):
    """What one process does."""

    name: str
    network: str
    variant: str
    cases: int
    healthy: int
    seed: int


def devices(quick: bool, seed: int) -> list[Device]:
    """ONNX Runtime's kernels on every network, weights a scale a channel on every other; both kernel sets of LiteRT."""
    found = []
    for number, network in enumerate(NETWORKS):
        variant = "per channel" if number % 2 else "per tensor"
        found.append(Device(ORT, network, variant, 2 if quick else 22, 1 if quick else 20, seed))
    if lite_missing() is None:
        for network in ("residual", "inverted"):
            for variant in ("optimised", "reference"):
                found.append(Device(LITE, network, variant, 2 if quick else 27, 1 if quick else 20, seed))
    return found


def lite_missing() -> NotRun | None:
    """Why LiteRT can't be measured here."""
    for package in ("ai_edge_litert", "ai_edge_quantizer"):
        if importlib.util.find_spec(package) is None:
            return NotRun("Independent devices", LITE, f"{package} is not installed (development dependencies)")
    return None


def build(root: Path, device: Device) -> Bench:
    if device.name == ORT:
        return integer_kernels.build(root, device.network, device.variant == "per channel")
    from tidegauge.evaluation import lite_kernels  # only with development dependencies

    return lite_kernels.build(root, device.network, "optimised" if device.variant == "optimised" else "reference")


def try_device(root: Path, device: Device) -> Independent:
    """Learn, then judge healthy runs on other inputs, then faults drawn at random at layers' outputs."""
    bench = build(root, device)
    known = learn_healthy(bench, LEARNT)
    others = list(healthy(bench, range(device.healthy)))
    false = [f"{c.layer}: {c.cause}, {c.detail}" for a in others for c in (*a.culprits, *a.recovered)]
    key = [device.seed, *device.network.encode(), *device.variant.encode()]
    random = np.random.default_rng(key)
    outcomes: list[Outcome] = []
    for _ in range(device.cases * _TRIES):
        if len(outcomes) == device.cases:
            break
        fault = draw(random, bench, _FAMILIES[int(random.integers(2))])
        picture = int(random.integers(1000, 1 << 20))
        outcome = try_faults(bench, [fault], value_of(bench, picture)) if fault is not None else None
        if outcome is not None:
            outcomes.append(outcome)
    return Independent(device.name, outcomes, len(others), false, habits([*known, *others]))


def habits(answers: Iterable[Comparison]) -> dict[str, Habit]:
    """What healthy runs show, by kind of layer; layers that only move codes aside."""
    found: dict[str, Habit] = {}
    for answer in answers:
        for layer in answer.layers:
            kind = kind_of(layer.operators)
            if layer.codes_off_by_one is None or layer.codes_off_by_more is None or layer.codes_beyond is None:
                continue
            if kind == "move":
                continue
            reach = max((tier for tier, share in zip(TIERS, layer.codes_beyond, strict=True) if share), default=0.0)
            now = Habit(layer.codes_off_by_one, layer.codes_off_by_more, reach)
            found[kind] = now.widened(found.get(kind, now))
    return found


def habit_figures(rows: Sequence[tuple[str, dict[str, Habit]]]) -> list[Figure]:
    """A row a device and kind of layer, for the record."""
    merged: dict[tuple[str, str], Habit] = {}
    for device, kinds in rows:
        for kind, habit in kinds.items():
            merged[device, kind] = habit.widened(merged.get((device, kind), habit))
    found = []
    for (device, kind), habit in sorted(merged.items(), key=lambda item: (item[0][1], item[0][0])):
        past = f"more than {habit.reach:g} codes past rounding" if habit.reach else "never past rounding"
        note = f"off by more: {habit.more:.2%}; {past}"
        found.append(
            Figure("Healthy kernels, worst layer", f"{kind}, {device}: off by one", 100 * habit.one, "%", note=note)
        )
    return found


def independent_figures(
    results: Sequence[Independent], of_set: Callable[[str, list[Outcome]], list[Figure]]
) -> list[Figure]:
    """Each device's set beside its goals, and its false culprits."""
    found: list[Figure] = []
    for name in (ORT, LITE):
        mine = [result for result in results if result.device == name]
        if not mine:
            continue
        figures = of_set(f"on {name}", [outcome for result in mine for outcome in result.outcomes])
        false = sum(len(result.false) for result in mine)
        runs = sum(result.runs for result in mine)
        found += [*figures, Figure(figures[0].group, "false culprits", false, f"in {runs} runs", 0, "<=")]
    return found
