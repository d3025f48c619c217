"""Which boards of a fleet drift, when all of them are looked at together. Pure.

A detector on a board has one false alarm in a year of its stream. Of a thousand boards three are wrong on a day, all by
chance. Here the evidence that boards have told is judged as a whole, by e-Benjamini-Hochberg: of the boards that it
names at any one time, at most `FALSE_SHARE` are expected to be healthy, whatever the dependence between boards (one
light, one weather, one release).

The evidence M of a betting detector has an expectation of at most t after t observations, so M/t is an e-value; M
itself is none. A board's detectors are averaged into one e-value. With the e-values in falling order, the k first
boards are named for the largest k with e_k ≥ D / (k · `FALSE_SHARE`), D boards in all.

Sources: Wang and Ramdas, "False discovery rate control with e-values", arXiv 2009.02824; Dandapanthula and Ramdas,
"Multiple testing in multi-stream sequential change detection", arXiv 2501.04130 (why the error at one time, and not
over an endless stream).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, expm1, isfinite, log

import msgspec

from tidegauge.link import vitals

#: Largest expected share of healthy boards among those named at one time.
FALSE_SHARE = 0.05
#: Below this no board is named, however many have as much: the threshold where all of them do.
LEAST_LOG_E = -log(FALSE_SHARE)


class Drifting(msgspec.Struct, frozen=True):
    """A board by its evidence. `log_e`: natural logarithm of its e-value."""

    device: str
    model: str
    log_e: float


def standing_out(told: Sequence[Drifting], fleet: int) -> list[Drifting]:
    """The boards that stand out from a fleet of so many, those with most evidence first.

    `told`: at least those with `LEAST_LOG_E`. A board that has told no evidence counts as one without any: the fleet is
    as large as it is.
    """
    ranked = sorted(told, key=lambda each: (-each.log_e, each.device))
    named = 0
    for rank, each in enumerate(ranked, 1):
        if each.log_e >= log(fleet / (rank * FALSE_SHARE)):
            named = rank
    return ranked[:named]


def log_e(detail: Mapping[str, float]) -> float | None:
    """Logarithm of a board's e-value, from the numbers of its status; None where it has told no evidence."""
    found = []
    for key, value in detail.items():
        count = detail.get(vitals.OBSERVATIONS + key.removeprefix(vitals.EVIDENCE), 0.0)
        if key.startswith(vitals.EVIDENCE) and isfinite(value) and isfinite(count) and count >= 1:
            found.append(_log_e(value, count))
    if not found:
        return None
    top = max(found)
    return top + log(sum(exp(value - top) for value in found) / len(found))


def _log_e(evidence: float, observations: float) -> float:
    """ln(M/t) from ln(1 + M); the smallest float where there is no evidence, since the logarithm of 0 is none."""
    if evidence <= 0:
        return log(5e-324)
    return evidence + log(-expm1(-evidence)) - log(observations)
