"""How far a healthy device is from its reference, output by output: what acceptance saw, for people and comparisons.

The detectors watch the product loss and the tensor errors of one output. A release can leave that one as it was and
make another one noisier; then this says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import msgspec
import numpy as np

#: Quantiles that are kept of each error.
MIDDLE, UPPER = 0.5, 0.95


class Noise(msgspec.Struct, frozen=True):
    """Of one output: `samples` in all, `undefined` of them without a defined NMSE (a zero or non-finite reference).

    `nmse`, `max_steps` (largest absolute difference in steps of the profile): median and 95 % quantile of the defined
    ones, None where there are none.
    """

    samples: int
    undefined: int
    nmse: tuple[float, float] | None
    max_steps: tuple[float, float] | None


def noise(errors: Sequence[tuple[float | None, float | None]]) -> Noise:
    """From NMSE and largest difference of each sample. Raises ValueError for no samples, or a number not finite."""
    if not errors:
        raise ValueError("no samples to take an output's noise from")
    nmses = [nmse for nmse, _ in errors if nmse is not None]
    steps = [largest for _, largest in errors if largest is not None]
    if not all(isfinite(value) for value in (*nmses, *steps)):
        raise ValueError("an error that is not finite; an undefined one is None")
    return Noise(len(errors), len(errors) - len(nmses), _quantiles(nmses), _quantiles(steps))


def _quantiles(values: Sequence[float]) -> tuple[float, float] | None:
    if not values:
        return None
    middle, upper = np.quantile(values, (MIDDLE, UPPER))
    return float(middle), float(upper)
