"""What the fleet's pages say of a device: its drift, camera and spool, by what it last told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, isfinite
from urllib.parse import urlencode

import msgspec

from tidegauge.collector.tables import Device
from tidegauge.collector.views import Badge
from tidegauge.link import vitals

#: From this share of its limit on, evidence is worth a look.
NEAR = 0.5


class Drift(msgspec.Struct, frozen=True):
    """Of one detector: logarithm of its evidence, its limit, and the share of the limit that it has reached, 0…1."""

    detector: str
    evidence: float
    limit: float
    share: float

    @property
    def tone(self) -> str:
        return "bad" if self.share >= 1 else "warn" if self.share >= NEAR else "good"


class Paging(msgspec.Struct, frozen=True):
    """Where a list stands: page `number` of `pages`, `first`…`last` of `total` rows. Rows count from 1."""

    number: int
    pages: int
    first: int
    last: int
    total: int


def drifts(device: Device) -> list[Drift]:
    """What a device has told of its detectors, the one nearest to its limit first."""
    found = []
    for key in device.detail:
        detector = key.removeprefix(vitals.EVIDENCE)
        evidence, limit = told(device, key), told(device, vitals.LIMIT + detector)
        if key.startswith(vitals.EVIDENCE) and evidence is not None and limit is not None and limit > 0:
            found.append(Drift(detector, evidence, limit, min(1.0, max(0.0, evidence / limit))))
    return sorted(found, key=lambda each: (-each.share, each.detector))


def told(device: Device, key: str) -> float | None:
    """A number of a device's last status; None where it said none, or none that is finite."""
    value = device.detail.get(key)
    return value if value is not None and isfinite(value) else None


def loss(device: Device) -> float | None:
    return told(device, vitals.LOSS)


def spool(device: Device) -> float | None:
    return told(device, vitals.SPOOL)


def camera_badge(device: Device) -> Badge:
    """A device that has not said how its camera is has not said that it is well."""
    problem = told(device, vitals.CAMERA_PROBLEM)
    if problem is None:
        return Badge("not told", "quiet")
    return Badge("problem", "bad") if problem else Badge("fine", "good")


def paging(total: int, page: int, size: int) -> Paging:
    """Of `total` rows, `size` a page; `page` counts from 1 and is brought into range."""
    pages = max(1, ceil(total / size))
    number = min(max(1, page), pages)
    first = (number - 1) * size
    return Paging(number, pages, min(first + 1, total), min(first + size, total), total)


def query(given: Mapping[str, object], **changes: object) -> str:
    """`?search=cam&page=2`: what is given, changed; what is empty is left out. "" where nothing is left."""
    pairs = {name: value for name, value in {**given, **changes}.items() if value not in ("", None, False)}
    return f"?{urlencode(pairs)}" if pairs else ""
