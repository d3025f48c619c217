"""Acceptance: the first measurement of a pair of artifacts and model. It freezes the reference, or fails (DESIGN §6.3).

A board that is wrong from the first frame must never become its own healthy reference: a persisting symptom, a golden
tensor that is far off, or a loss above the limit ends acceptance as `Rejected`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, hypot, isfinite, sqrt

import msgspec

from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.blocks import FEWEST, block_length, correlation_time, longest_correlation_time
from tidegauge.detectors.bounds import group_means, lower_bound, upper_bound
from tidegauge.detectors.defaults import (
    FALSE_ALARMS_A_YEAR,
    GROUPS,
    INDEPENDENT,
    LEAST_M0,
    MAX_LOSS,
    NMSE_QUANTILE,
    PATIENCE,
    SURE,
    SYMPTOM_SAMPLES,
    SYMPTOM_SHARE,
    TOLERANCE,
)
from tidegauge.detectors.exceedance import exceedance_reference, exceeds
from tidegauge.detectors.rates import alpha_for


class AcceptanceRules(msgspec.Struct, frozen=True):
    """`samples` to collect (at least 16). `gap`: mean seconds between them. `block`, `alpha`: 0 derives them.

    m0 is the upper 95 % bound of the mean loss plus `tolerance`, at least `minimum`; above `max_loss` acceptance fails,
    as it does on a symptom in `symptom_samples` samples running, or a loss above `golden_max_loss` (0: `max_loss`) on a
    golden tensor. Where scenes stay, acceptance goes on (at most four times as long) until its samples are worth
    `independent` ones, unless the `block` is given.
    """

    samples: int = 500
    independent: int = INDEPENDENT
    max_loss: float = MAX_LOSS
    golden_max_loss: float = 0.0
    tolerance: float = TOLERANCE
    minimum: float = LEAST_M0
    symptom_samples: int = SYMPTOM_SAMPLES
    nmse_quantile: float = NMSE_QUANTILE
    gap: float = 60.0
    false_alarms_per_year: float = FALSE_ALARMS_A_YEAR
    block: int = 0
    alpha: float = 0.0


class Accepted(msgspec.Struct, frozen=True):
    """The frozen reference. `lower95`, `upper95`: bounds of the healthy mean loss, one-sided each.

    `m0`, `alpha`, `block` are what the loss's detector runs with, `exceedance_m0` is the m0 of the NMSE stream, whose
    samples exceed `nmse_quantile`. `correlation_time` in samples is the best estimate, the block is chosen with
    caution (`longest_correlation_time`), long enough for both streams. `gap` in seconds. `worth`: independent samples
    that the bounds of the mean are taken from, 0 where it was not noted.
    """

    m0: float
    mean: float
    lower95: float
    upper95: float
    nmse_quantile: float
    exceedance_m0: float
    correlation_time: float
    block: int
    alpha: float
    samples: int
    gap: float
    worth: int = 0


class Rejected(msgspec.Struct, frozen=True):
    """Acceptance has failed; nothing is frozen. `reason` is one sentence."""

    reason: str
    evidence: dict[str, float]


class AcceptanceState(msgspec.Struct, frozen=True):
    """What has been collected. `runs`, `seen`: by symptom, samples running up to now and samples in all."""

    losses: tuple[float, ...]
    nmses: tuple[float | None, ...]
    runs: dict[str, int]
    seen: dict[str, int]


class Acceptance:
    """Feed it shadow samples until it gives an outcome; then it is done. Raises ValueError for impossible rules."""

    def __init__(self, rules: AcceptanceRules) -> None:
        if rules.samples < FEWEST:
            raise ValueError(f"acceptance of {rules.samples} samples; it needs {FEWEST}")
        self.rules = rules
        self._losses: list[float] = []
        self._nmses: list[float | None] = []
        self._runs: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    @property
    def progress(self) -> float:
        """Share of the samples collected, 0 to 1."""
        return min(1.0, len(self._losses) / self.rules.samples)

    def update(self, loss: float, nmse: float | None, symptoms: Iterable[str]) -> Accepted | Rejected | None:
        """Take one shadow sample. Raises ValueError for a loss outside [0, 1] or a non-finite NMSE."""
        if not 0 <= loss <= 1:
            raise ValueError(f"loss {loss} is not in [0, 1]")
        if nmse is not None and not isfinite(nmse):
            raise ValueError(f"an NMSE of {nmse}; an undefined one is None")
        self._losses.append(loss)
        self._nmses.append(nmse)
        self._count_symptoms(set(symptoms))
        return self._persisting_symptom() or self._certain_failure() or self._outcome()

    def golden(self, index: int, loss: float) -> Rejected | None:
        """Take the loss between device and reference on a golden tensor."""
        limit = self.rules.golden_max_loss or self.rules.max_loss
        if loss <= limit:
            return None
        return Rejected(
            f"loss {loss:.3f} on golden tensor {index} is above {limit:g} (key `golden.max_loss`)",
            {"golden_loss": loss, "max_loss": limit},
        )

    def state(self) -> AcceptanceState:
        return AcceptanceState(tuple(self._losses), tuple(self._nmses), dict(self._runs), dict(self._seen))

    def restore(self, state: AcceptanceState) -> None:
        if len(state.losses) != len(state.nmses):
            raise ValueError("a stored acceptance with unequal numbers of losses and tensor errors")
        self._losses, self._nmses = list(state.losses), list(state.nmses)
        self._runs, self._seen = dict(state.runs), dict(state.seen)

    def _count_symptoms(self, symptoms: set[str]) -> None:
        self._runs = {symptom: self._runs.get(symptom, 0) + 1 for symptom in symptoms}
        for symptom in symptoms:
            self._seen[symptom] = self._seen.get(symptom, 0) + 1

    def _persisting_symptom(self) -> Rejected | None:
        least, count = self.rules.symptom_samples, len(self._losses)
        running = {symptom: run for symptom, run in self._runs.items() if run >= least}
        if count >= self.rules.samples:
            frequent = max(least, SYMPTOM_SHARE * count + 1)
            running |= {symptom: seen for symptom, seen in self._seen.items() if seen >= frequent}
        if not running:
            return None
        names = ", ".join(sorted(running))
        return Rejected(
            f"the device's output shows {names} in {max(running.values())} of {count} samples",
            {f"samples_with_{symptom}": float(times) for symptom, times in running.items()} | {"samples": float(count)},
        )

    def _certain_failure(self) -> Rejected | None:
        """Even if every sample still to come had no loss at all, the mean would be above the limit."""
        rules, count = self.rules, len(self._losses)
        if count >= rules.samples:
            return None
        total = sum(self._losses)
        if total / rules.samples + rules.tolerance <= rules.max_loss:
            return None
        return self._too_much(total / count, None)

    def _outcome(self) -> Accepted | Rejected | None:
        rules, count = self.rules, len(self._losses)
        if count < rules.samples:
            return None
        # The bound is costly and changes slowly: beyond `samples` it is looked at a few times only.
        if (count - rules.samples) % max(1, rules.samples // 8):
            return None
        mean = sum(self._losses) / count
        tau, staying = correlation_time(self._losses), self._scenes_stay()
        worth = count / (1 + max(tau, staying))
        if not rules.block and count < PATIENCE * rules.samples and worth < min(rules.independent, rules.samples):
            return None
        # Where every loss was small so far, losses alone don't show that scenes stay; a hard one may not have come yet.
        groups = group_means(self._losses, max(tau, min(staying, count / GROUPS - 1)))
        upper = upper_bound(groups)
        m0 = max(upper + rules.tolerance, rules.minimum)
        if m0 > rules.max_loss:
            undecided = mean + rules.tolerance < rules.max_loss and count < PATIENCE * rules.samples
            return None if undecided else self._too_much(mean, upper)
        second = exceedance_reference(self._nmses, rules.nmse_quantile, len(groups))
        block = rules.block or block_length(self._longest_time(second.threshold))
        return Accepted(
            m0=m0,
            mean=mean,
            lower95=min(lower_bound(groups), mean),
            upper95=upper,
            nmse_quantile=second.threshold,
            exceedance_m0=second.m0,
            correlation_time=tau,
            block=block,
            alpha=rules.alpha or alpha_for(block, rules.gap, rules.false_alarms_per_year),
            samples=count,
            gap=rules.gap,
            worth=len(groups),
        )

    def _scenes_stay(self) -> float:
        """The correlation time of large tensor errors, of which there are some in any case."""
        threshold = exceedance_reference(self._nmses, self.rules.nmse_quantile, 1).threshold
        return correlation_time(self._above(threshold))

    def _longest_time(self, threshold: float) -> float:
        """Both streams share a block: it must be long against the stickier of the two."""
        return max(longest_correlation_time(self._losses), longest_correlation_time(self._above(threshold)))

    def _above(self, threshold: float) -> list[float]:
        return [exceeds(nmse, threshold) for nmse in self._nmses]

    def _too_much(self, mean: float, upper: float | None) -> Rejected:
        limit, count = self.rules.max_loss, len(self._losses)
        evidence = {"mean_loss": mean, "max_loss": limit, "samples": float(count)}
        if upper is None:
            return Rejected(f"mean loss {mean:.3f} of {count} samples can no longer stay below {limit:g}", evidence)
        return Rejected(
            f"mean loss {mean:.3f} of {count} samples (at most {upper:.3f} with 95 % confidence) "
            f"leaves no room below {limit:g} (key `acceptance.max_loss`)",
            evidence | {"upper95": upper},
        )


def kind_limit(rules: AcceptanceRules, accepted: Accepted, losses: Sequence[float]) -> float:
    """m0 of one kind of input: as that of all samples, from the losses of this kind in the order in which they came.

    A kind with few samples has a wide bound, and its limit is high. Raises ValueError for no losses.
    """
    groups = group_means(losses, accepted.samples / max(1, accepted.worth) - 1)
    return min(1.0, max(upper_bound(groups) + rules.tolerance, rules.minimum))


class Difference(msgspec.Struct, frozen=True):
    """Of two mean losses, new minus old. It lies between `low` and `high` with 90 % confidence: each of them holds with
    95 %."""

    mean: float
    low: float
    high: float

    @property
    def worse(self) -> bool:
        """Whether `new` is, with 99 % confidence: an alarm, and a release that is held back, need more than 95 %."""
        return self.mean > SURE * (self.mean - self.low)

    @property
    def better(self) -> bool:
        """Whether it is, with 99 % confidence."""
        return -self.mean > SURE * (self.high - self.mean)

    @property
    def half_width(self) -> float:
        """The larger of the two distances from the mean to the ends."""
        return max(self.high - self.mean, self.mean - self.low)


def difference(previous: Accepted, new: Accepted) -> Difference:
    """How much worse `new` is. Positive: worse.

    From the bounds of either mean, by the method of variance estimates recovery: G. Y. Zou, A. Donner, "Construction of
    confidence limits about effect measures: a general approach", Statistics in Medicine 27, 2008. The two means come
    from different samples, so their errors add up as squares; differences of bounds would be wider than they say.
    """
    mean = new.mean - previous.mean
    low = hypot(new.mean - new.lower95, previous.upper95 - previous.mean)
    high = hypot(new.upper95 - new.mean, previous.mean - previous.lower95)
    return Difference(mean, mean - low, mean + high)


def samples_to_name(accepted: Accepted, cost: float) -> int:
    """Samples that the acceptance before a change and the one after it need, so that a change that costs `cost` of loss
    is named in 95 of 100 cases. Raises ValueError for a cost outside (0, 1].

    From the half-width of this acceptance's interval, which shrinks with the square root of the samples, to more of
    them than it has at least. A change is named when what was measured is above `SURE` times the interval's half-width;
    what is measured scatters by no more than the half-width.
    After the change, losses are taken to vary as much more than before as losses of 0 and 1 of these means do.
    """
    if not 0 < cost <= 1:
        raise ValueError(f"a cost of {cost}")
    after = min(accepted.mean + cost, 0.5)
    before = max(accepted.mean, 1 / accepted.samples)
    wider = max(1.0, after * (1 - after) / (before * (1 - before)))
    width = (accepted.upper95 - accepted.mean) * sqrt(1 + wider)
    return max(accepted.samples, ceil(accepted.samples * ((1 + SURE) * width / cost) ** 2))


def worse_than(previous: Accepted, new: Accepted, change: str = "the change") -> Alarm | None:
    """An alarm where a new acceptance (after a change of artifacts, SDK, model or reference) is worse with 99 %
    confidence; it names the cost. `change`: what has changed, in words."""
    found = difference(previous, new)
    if not found.worse:
        return None
    return Alarm(
        detector="change",
        message=(
            f"the upgrade ({change}) cost accuracy, {found.mean:.3f} ± {found.half_width:.3f}: "
            f"mean loss {new.mean:.3f}, before it {previous.mean:.3f}"
        ),
        evidence={
            "cost": found.mean,
            "cost_low": found.low,
            "cost_high": found.high,
            "mean_loss": new.mean,
            "previous_mean_loss": previous.mean,
        },
    )
