"""How rarely healthy streams raise an alarm: mean run lengths against the promise of 1/α.

Two questions. *At the limit*: the true mean is exactly m0, the hardest healthy stream there is; only the block is
estimated, from the stream's own acceptance. *As accepted*: m0 and block come from the production acceptance, and for
single boards blocks grow as in the agent.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from tidegauge.detectors.acceptance import Acceptance, AcceptanceRules, AcceptanceState, Accepted
from tidegauge.detectors.defaults import PATIENCE
from tidegauge.detectors.rates import YEAR, alpha_for
from tidegauge.evaluation.figures import Figure
from tidegauge.evaluation.run_length import Ints, run_lengths
from tidegauge.evaluation.streams import TELLS_NOTHING, Floats, Maker, makers

M0 = 0.05
GAP = 60.0
#: Runs are cut after so many times 1/α: the mean of cut runs is a lower bound of the mean run length.
CUT, CUT_ACCEPTED = 4, 2
#: For a board's own rate, of which many runs are averaged, they are cut sooner.
CUT_BOARD = 1
#: Kinds whose years are simulated: the others need no block, and the promise is a theorem.
STICKY = ("AR(0.9)", "sticky scenes, smooth", "sticky scenes, 0 or 1", "scenes of half an hour, 0 or 1")
#: Acceptances that are simulated at a time.
BATCH = 250
#: A day of acceptance sees forty of these scenes, two of them hard: only what is learned from it is of interest.
FEW_SCENES = "scenes of half an hour, 0 or 1"
#: Goals, in units of 1/α. Blocks of ten correlation times leave a little dependence.
INDEPENDENT, DEPENDENT = 1.0, 0.8


class Size(msgspec.Struct, frozen=True):
    """`streams` for each mean; `boards` with `repeats` runs each for a board's own rate; `samples` of acceptance.

    `acceptances`: so many different ones, each for several streams. `small`: α for single boards; a large one does not
    mind a burst that is decisive at a small one. `years`: streams that run for a year each at the product's own α.
    """

    streams: int = 2000
    acceptances: int = 2000
    boards: int = 50
    repeats: int = 12
    samples: int = 1440
    alphas: tuple[float, ...] = (1 / 100, 1 / 300)
    small: float = 1 / 1000
    years: int = 100


class Learned(NamedTuple):
    """What each accepted stream's acceptance froze; `rejected` were not accepted."""

    m0: Floats
    block: Ints
    rejected: int


def learn(make: Maker, count: int, rng: np.random.Generator, rules: AcceptanceRules) -> Learned:
    """Run the production acceptance on `count` streams of their own."""
    outcomes: list[Accepted | None] = []
    for begun in range(0, count, BATCH):  # all of them would not fit into memory
        data, errors = make(min(BATCH, count - begun), rng).take_with_errors(PATIENCE * rules.samples + 1)
        outcomes += [accept(losses, rules, nmses) for losses, nmses in zip(data.T, errors.T, strict=True)]
    accepted = [outcome for outcome in outcomes if outcome is not None]
    return Learned(
        np.array([each.m0 for each in accepted]),
        np.array([each.block for each in accepted], np.int64),
        count - len(accepted),
    )


def accept(losses: Floats, rules: AcceptanceRules, nmses: Floats | None = None) -> Accepted | None:
    """The outcome of acceptance of these losses and tensor errors (which tell nothing where they are not given)."""
    acceptance = Acceptance(rules)
    known = rules.samples - 1
    errors = (np.full(losses.size, TELLS_NOTHING) if nmses is None else nmses).tolist()
    acceptance.restore(AcceptanceState(tuple(losses[:known].tolist()), tuple(errors[:known]), {}, {}))
    for loss, error in zip(losses[known:].tolist(), errors[known:], strict=True):
        outcome = acceptance.update(loss, error, ())
        if outcome is not None:
            return outcome if isinstance(outcome, Accepted) else None
    return None


def run_length_figures(name: str, size: Size, seed: int) -> list[Figure]:
    """Mean run lengths of one kind of healthy streams, of `makers`."""
    independent, make = makers(M0)[name]
    rng = _rng(name, 0, seed)
    learned = learn(make, min(size.acceptances, size.streams), rng, AcceptanceRules(samples=size.samples))
    goal = INDEPENDENT if independent else DEPENDENT
    blocks, m0 = np.resize(learned.block, size.streams), np.resize(learned.m0, size.streams)
    note = f"block: median {np.median(learned.block):.0f}, 95 % {np.quantile(learned.block, 0.95):.0f}"
    figures = []
    for alpha in size.alphas:
        runs = run_lengths(make(blocks.size, rng), blocks, np.full(blocks.size, M0), alpha, round(CUT / alpha))
        group = f"run length at the limit, 1/α = {1 / alpha:.0f}"
        figures.append(Figure(group, name, float(runs.mean() * alpha), "1/α", goal, note=note))
    alpha = size.alphas[0]
    runs = run_lengths(make(blocks.size, rng), blocks, m0, alpha, round(CUT_ACCEPTED / alpha))
    group = f"run length as accepted, 1/α = {1 / alpha:.0f}"
    note = f"m0: median {np.median(learned.m0):.3f}; {learned.rejected} of {size.acceptances} not accepted"
    return [*figures, Figure(group, name, float(runs.mean() * alpha), "1/α", goal, note=note)]


def board_figures(name: str, size: Size, seed: int) -> list[Figure]:
    """Share of boards whose own rate is above twice the promised one, from several runs of each."""
    make = makers(M0)[name][1]
    rng = _rng(name, 1, seed)
    learned = learn(make, size.boards, rng, AcceptanceRules(samples=size.samples))
    boards, longest = learned.block.size, round(CUT_BOARD / size.small)
    figures = []
    kinds: list[tuple[str, Floats, float | None]] = [("as accepted", learned.m0, 0.05)]
    if name != FEW_SCENES:
        kinds.insert(0, ("at the limit", np.full(boards, M0), None))
    for kind, m0, goal in kinds:
        blocks, limits = np.repeat(learned.block, size.repeats), np.repeat(m0, size.repeats)
        runs = run_lengths(make(blocks.size, rng), blocks, limits, size.small, longest, growing=goal is not None)
        runs = runs.reshape(boards, size.repeats)
        # Of cut exponential runs, alarms over observations is the maximum-likelihood rate.
        rate = (runs < longest).sum(axis=1) / runs.sum(axis=1)
        group = f"boards above twice the promised rate, {kind}, 1/α = {1 / size.small:.0f}"
        share = float(np.mean(rate > 2 * size.small))
        note = f"{boards} boards × {size.repeats} runs"
        note += f"; {learned.rejected} of {size.boards} not accepted" if learned.rejected else ""
        figures.append(Figure(group, name, share, "of boards", goal, "<=", note))
    return figures


def year_figures(name: str, size: Size, seed: int) -> list[Figure]:
    """First alarms in a year at one sample a minute, with the α that each board's block gives: nothing extrapolated."""
    make = makers(M0)[name][1]
    rng = _rng(name, 2, seed)
    learned = learn(make, size.years, rng, AcceptanceRules(samples=size.samples))
    blocks = learned.block
    alpha = np.array([alpha_for(int(block), GAP) for block in blocks])
    longest = np.maximum(1, (YEAR / (GAP * blocks)).astype(np.int64))
    kinds = [("as accepted", learned.m0)]
    if name != FEW_SCENES:
        kinds.insert(0, ("at the limit", np.full(blocks.size, M0)))
    figures = []
    for kind, m0 in kinds:
        runs = run_lengths(make(blocks.size, rng), blocks, m0, alpha, longest, growing=kind == "as accepted")
        alarms = int(np.count_nonzero(runs < longest))
        years = float((runs * blocks).sum()) * GAP / YEAR
        group = f"false alarms a stream-year at the product's α, {kind}"
        figures.append(Figure(group, name, alarms / years, "a year", 1.0, "<=", f"{alarms} in {years:.0f} years"))
    return figures


def _rng(name: str, part: int, seed: int) -> np.random.Generator:
    return np.random.default_rng((seed, list(makers(M0)).index(name), part))


def block_lengths(streams: int, seed: int) -> list[Figure]:
    """What the block does: sticky losses of 0 and 1 (correlation time 18) at the limit, by its length. No goals."""
    rng = np.random.default_rng((seed, 400))
    make = makers(M0)["sticky scenes, 0 or 1"][1]
    figures = []
    for alpha in (1 / 100, 1 / 1000):
        for length in (1, 3, 20, 60, 180):
            blocks = np.full(streams, length, np.int64)
            runs = run_lengths(make(streams, rng), blocks, np.full(streams, M0), alpha, round(CUT / alpha))
            group = f"run length at the limit by block, sticky scenes, 0 or 1, 1/α = {1 / alpha:.0f}"
            figures.append(Figure(group, f"blocks of {length}", float(runs.mean() * alpha), "1/α"))
    return figures
