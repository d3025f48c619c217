"""Boards for Prometheus to scrape, in the format of its HTTP service discovery. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import msgspec

from tidegauge.collector.config import ScrapeConfig
from tidegauge.collector.tables import Device


class TargetGroup(msgspec.Struct, frozen=True):
    """Targets, and labels that every series of them gets."""

    targets: tuple[str, ...]
    labels: dict[str, str]


def groups(config: ScrapeConfig, devices: Iterable[Device]) -> list[TargetGroup]:
    """One group a board that the configuration says can be reached; none where it gives no address."""
    if not config.address:
        return []
    return [
        TargetGroup((config.address.replace("{device}", device.device),), {"device": device.device})
        for device in devices
        if any(fnmatchcase(device.device, pattern) for pattern in config.devices)
    ]
