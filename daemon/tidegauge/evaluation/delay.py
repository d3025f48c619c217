"""How soon a disagreement is found, at one false alarm a stream-year, beside the bound that no detector beats."""

from __future__ import annotations

from math import log
from typing import get_args

import numpy as np

from tidegauge.detectors.contexts import Context
from tidegauge.detectors.defaults import STRIKES
from tidegauge.detectors.known_answer import KnownAnswer
from tidegauge.detectors.rates import alpha_for, stack_rates
from tidegauge.evaluation.figures import Figure
from tidegauge.evaluation.run_length import run_lengths
from tidegauge.evaluation.streams import Bernoulli, Beta, Maker

M0 = 0.05
GAP = 60.0
#: Disagreement → observations within which 95 of 100 are found.
GOALS = {0.5: 31.0, 0.2: 170.0}
LONGEST = 20_000
#: Seconds from a golden round to the next, and the goal for a fault that they see; tensors, and seconds that a run
#: may take at most, both sides and queueing included.
GOLDEN_INTERVAL, GOLDEN_GOAL = 900.0, 1800.0
GOLDEN_COUNT, GOLDEN_SECONDS = 3, 60.0


def divergence(share: float, limit: float) -> float:
    """Kullback-Leibler divergence of Bernoulli laws, nats."""
    return share * log(share / limit) + (1 - share) * log((1 - share) / (1 - limit))


def evaluate(streams: int, seed: int) -> list[Figure]:
    """Delays from no evidence, in observations of one sample (independent samples need no longer block)."""
    alpha = alpha_for(1, GAP)
    rng = np.random.default_rng((seed, 100))
    blocks, m0 = np.ones(streams, np.int64), np.full(streams, M0)
    figures = []
    for share, goal in GOALS.items():
        kinds: dict[str, Maker] = {
            # mypy infers no type for a lambda whose default binds a loop's variable.
            "losses of 0 and 1": lambda n, r, share=share: Bernoulli(share, n, r),  # type: ignore[misc]
            "smooth losses": lambda n, r, share=share: Beta(share, n, r),  # type: ignore[misc]
        }
        for kind, make in kinds.items():
            runs = run_lengths(make(streams, rng), blocks, m0, alpha, LONGEST)
            late = float(np.quantile(runs, 0.95))
            group = f"delay of {share:.0%} disagreement, one false alarm a stream-year, m0 = {M0}"
            hours = f"{late * GAP / 3600:.2f} h at one sample a minute"
            figures.append(Figure(group, f"{kind}: 95 % within", late, "observations", goal, "<=", hours))
            figures.append(Figure(group, f"{kind}: mean", float(runs.mean()), "observations"))
        bound = log(1 / alpha) / divergence(share, M0)
        figures.append(Figure(group, "bound ln(1/α)/KL, losses of 0 and 1", bound, "observations"))
    return [*figures, _known_answer(rng), *_stack()]


def _stack() -> list[Figure]:
    """The promise for all detectors of a board together, with a reference in every light context."""
    rates = stack_rates(contexts=len(get_args(Context)))
    group = "false alarms a year of the whole stack, at most (computed)"
    figures = [Figure(group, f"{each.part}, {each.severity}", each.per_year, "a year") for each in rates]
    for severity in ("critical", "warning"):
        total = sum(each.per_year for each in rates if each.severity == severity)
        figures.append(Figure(group, f"all {severity}", total, "a year"))
    return figures


def _known_answer(rng: np.random.Generator) -> Figure:
    """The longest wait among faults at random times, rounds 15 minutes apart; wrong answers are asked again.

    Each run is taken to need all the time that the agent gives it, and the fault to begin just as often behind the
    tensor that shows it as before it.
    """
    longest = 0.0
    for begun, shows in zip(rng.uniform(0, GOLDEN_INTERVAL, 1000), rng.integers(0, GOLDEN_COUNT, 1000), strict=True):
        now, alarm = 0.0, None
        while alarm is None:
            for index in range(GOLDEN_COUNT):
                test = KnownAnswer("device", {index: "right"})
                for _ in range(STRIKES):
                    right = index != shows or now < begun
                    now += GOLDEN_SECONDS
                    alarm = alarm or test.update(index, "right" if right else "wrong")
                    if right:
                        break
            ended, now = now, now + GOLDEN_INTERVAL
        longest = max(longest, ended - float(begun))
    return Figure(
        "delay of a fault that a golden tensor shows",
        f"longest, {GOLDEN_COUNT} tensors every {GOLDEN_INTERVAL / 60:.0f} min",
        longest / 60,
        "minutes",
        GOLDEN_GOAL / 60,
        "<=",
        f"a wrong answer is asked again at once, {STRIKES} strikes; {GOLDEN_SECONDS:g} s a run",
    )
