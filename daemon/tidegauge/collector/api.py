"""The JSON API, `/api/v1/…`; its description is at `/schema/openapi.json`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from litestar import Router, get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter, SkipValidation

from tidegauge import __version__
from tidegauge.bundles.manifest import Manifest
from tidegauge.collector.discovery import TargetGroup, groups
from tidegauge.collector.site import Site
from tidegauge.collector.tables import Bundle, Device

TheSite = NamedDependency[SkipValidation[Site]]
Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="How many, newest first.")]


class BundleDetail(msgspec.Struct, frozen=True):
    """A bundle with its manifest; `wanted`: SHA-256 of the blobs that the device has not sent yet."""

    bundle: Bundle
    manifest: Manifest
    wanted: tuple[str, ...]


class Health(msgspec.Struct, frozen=True):
    """`status` "degraded": pages work, but nothing comes in, since the broker is not connected.

    `stands_back`: why this collector leaves the broker to another one, empty where it serves.
    """

    status: Literal["ok", "degraded"]
    version: str
    broker_connected: bool
    stands_back: str
    devices: int
    bundles: dict[str, int]
    transfers: dict[str, int]


@get("/bundles", sync_to_thread=True)
def list_bundles(site: TheSite, limit: Limit = 200) -> list[Bundle]:
    """Bundles, newest first."""
    return site.store.bundles(limit)


@get("/bundles/{device:str}/{bundle:str}", sync_to_thread=True)
def show_bundle(site: TheSite, device: FromPath[str], bundle: FromPath[str]) -> BundleDetail:
    """One bundle."""
    found = site.bundle(device, bundle)
    return BundleDetail(found, site.manifest(found), site.store.wanted(device, bundle))


@get("/devices", sync_to_thread=True)
def list_devices(site: TheSite) -> list[Device]:
    """Devices by name, as they last told of themselves."""
    return site.store.devices()


@get("/sd", sync_to_thread=True)
def service_discovery(site: TheSite) -> list[TargetGroup]:
    """Boards that Prometheus can scrape (key `scrape.address`), in the format of its HTTP service discovery."""
    return groups(site.scrape, site.store.devices())


@get("/health", sync_to_thread=True)
def health(site: TheSite) -> Health:
    """Whether the collector works."""
    totals, connected = site.store.totals(), site.connected()
    return Health(
        status="ok" if connected else "degraded",
        version=__version__,
        broker_connected=connected,
        stands_back=site.stands_back(),
        devices=site.store.device_count(),
        bundles=totals.bundles,
        transfers=totals.transfers,
    )


router = Router("/api/v1", route_handlers=[list_bundles, show_bundle, list_devices, service_discovery, health])
