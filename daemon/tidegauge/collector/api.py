"""The JSON API, `/api/v1/…`; its description is at `/schema/openapi.json`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from litestar import Router, get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, QueryParameter, SkipValidation

from tidegauge import __version__
from tidegauge.bundles.manifest import Manifest
from tidegauge.collector.discovery import TargetGroup, groups
from tidegauge.collector.executor_rows import Executor
from tidegauge.collector.findings import Finding, FoundOn
from tidegauge.collector.library_rows import LibraryEntry
from tidegauge.collector.site import Site
from tidegauge.collector.tables import Bundle, Device

TheSite = NamedDependency[SkipValidation[Site]]
#: Findings looked through for one.
MOST_FINDINGS = 10_000
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


class FindingDetail(msgspec.Struct, frozen=True):
    """A finding, and the boards that have it."""

    id: str
    finding: Finding
    boards: tuple[FoundOn, ...]


@get("/findings", sync_to_thread=True)
def list_findings(site: TheSite, limit: Limit = 200) -> list[FindingDetail]:
    """Faults that boards have: the same fault on many boards is one, those on most boards first."""
    return [FindingDetail(each.id, each, ()) for each in site.store.findings(limit=limit)]


@get("/findings/{finding:str}", sync_to_thread=True)
def show_finding(site: TheSite, finding: FromPath[str]) -> FindingDetail:
    """One finding, with its boards and the newest bundle of each."""
    for each in site.store.findings(limit=MOST_FINDINGS):
        if each.id == finding:
            return FindingDetail(each.id, each, tuple(site.store.found_on(each)))
    raise NotFoundException(f"there is no finding {finding}")


@get("/library", sync_to_thread=True)
def list_library(site: TheSite) -> list[LibraryEntry]:
    """Models and compiles that an operator has registered."""
    return site.store.library()


@get("/executors", sync_to_thread=True)
def list_executors(site: TheSite) -> list[Executor]:
    """Processes of this collector, by their heartbeats."""
    return site.store.executors()


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


router = Router(
    "/api/v1",
    route_handlers=[
        list_bundles,
        show_bundle,
        list_devices,
        list_findings,
        show_finding,
        list_library,
        list_executors,
        service_discovery,
        health,
    ],
)
