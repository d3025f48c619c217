"""What the fleet is sorted and judged by: three numbers of a device, from what it has told with its status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import msgspec

from tidegauge.collector.fleet_drift import log_e
from tidegauge.link import vitals


class Measures(msgspec.Struct, frozen=True):
    """Columns of a device's row. `drift`: largest evidence as a share of its limit, above 1 past it; `loss`: 0…1;
    `log_e`: see `fleet_drift`. None where the device has not told what it takes.
    """

    drift: float | None
    loss: float | None
    log_e: float | None


def measures(detail: Mapping[str, float]) -> Measures:
    """Of the numbers of a status."""
    shares = [share for key in detail if (share := _share(detail, key)) is not None]
    return Measures(max(shares, default=None), _finite(detail, vitals.LOSS), log_e(detail))


def _share(detail: Mapping[str, float], key: str) -> float | None:
    if not key.startswith(vitals.EVIDENCE):
        return None
    evidence, limit = _finite(detail, key), _finite(detail, vitals.LIMIT + key.removeprefix(vitals.EVIDENCE))
    return evidence / limit if evidence is not None and limit is not None and limit > 0 else None


def _finite(detail: Mapping[str, float], key: str) -> float | None:
    value = detail.get(key)
    return value if value is not None and isfinite(value) else None
