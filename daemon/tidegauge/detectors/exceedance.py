"""The second stream: whether a sample's tensor error exceeds what nearly all healthy samples stay below.

Heavy-tailed NMSE becomes a bounded value, 0 or 1, so that the same detector with the same guarantee serves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, isnan

import msgspec

from tidegauge.detectors.bounds import share_upper_bound
from tidegauge.detectors.defaults import LEAST_NMSE, SHARE_TOLERANCE


class ExceedanceReference(msgspec.Struct, frozen=True):
    """`threshold`: the healthy quantile of the NMSE; `m0`: upper bound of the share of healthy samples above it."""

    threshold: float
    m0: float


def exceeds(nmse: float | None, threshold: float) -> float:
    """1 where `nmse` is above `threshold`, else 0. An undefined NMSE counts as above. Raises ValueError for NaN."""
    if nmse is None:
        return 1.0
    if isnan(nmse):
        raise ValueError("an NMSE of NaN; an undefined one is None")
    return float(nmse > threshold)


def exceedance_reference(
    values: Sequence[float | None], quantile: float, effective: int, delta: float = 0.05
) -> ExceedanceReference:
    """The reference of the second stream from healthy samples; `effective`: how many independent ones they are worth.

    The threshold is the order statistic at or above `quantile`, at least 1e-6; where the quantile lies among undefined
    values it is the largest defined one, and the share of undefined ones enters `m0`. `m0` is the exact upper bound of
    the share above the threshold (at least of 1 − quantile: the share of later samples above an order statistic is
    Beta-distributed with just these numbers) plus a tolerance of 0.05, at most 1.
    """
    if not values or effective < 1:
        raise ValueError("no samples")
    ordered = sorted(inf if value is None else value for value in values)
    threshold = ordered[min(ceil(quantile * len(ordered)), len(ordered)) - 1]
    if threshold == inf:
        threshold = max((value for value in ordered if value < inf), default=0.0)
    threshold = max(threshold, LEAST_NMSE)
    above = sum(value > threshold for value in ordered) / len(ordered)
    share = max(above, 1 - quantile)
    hits = min(ceil(share * effective - 1e-9), effective)
    return ExceedanceReference(threshold, min(1.0, share_upper_bound(hits, effective, delta) + SHARE_TOLERANCE))
