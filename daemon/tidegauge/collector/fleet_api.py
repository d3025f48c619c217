"""The JSON API of the fleet: devices, their history and alarms, and who did what."""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from litestar import Router, get
from litestar.di import NamedDependency
from litestar.exceptions import ClientException, NotFoundException
from litestar.params import FromPath, QueryParameter, SkipValidation

from tidegauge.clocks import wall
from tidegauge.collector.access import operator
from tidegauge.collector.access_rows import Deed
from tidegauge.collector.fleet_rows import Alarm, BundleFilter, DeviceFilter, DeviceOrder
from tidegauge.collector.history_points import HistoryPoint, merged
from tidegauge.collector.record_rows import StoredRecord
from tidegauge.collector.site import Site
from tidegauge.collector.tables import Bundle, BundleState, Device

TheSite = NamedDependency[SkipValidation[Site]]
Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="How many.")]
Offset = Annotated[int, QueryParameter(ge=0, le=10_000_000, description="How many to leave out before.")]
Text = Annotated[str, QueryParameter(max_length=200)]
When = Annotated[float | None, QueryParameter(ge=0, le=1e11, description="Unix seconds.")]
Flag = Annotated[bool | None, QueryParameter(description="Neither: all.")]
Order = Annotated[DeviceOrder, QueryParameter()]
Down = Annotated[bool, QueryParameter(description="The largest first.")]
Points = Annotated[int, QueryParameter(ge=1, le=5000, description="At most so many points.")]

#: What history is told of where no time is given, seconds.
_NINETY_DAYS = 90 * 86400.0

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Some of `total`."""

    total: int
    items: list[T]


@get("/fleet", sync_to_thread=True)
def find_devices(
    site: TheSite,
    search: Text = "",
    device_state: Annotated[str, QueryParameter(name="state", max_length=200)] = "",
    model: Text = "",
    program: Annotated[str, QueryParameter(name="version", max_length=200)] = "",
    alarmed: Flag = None,
    order: Order = "name",
    descending: Down = False,
    limit: Limit = 200,
    offset: Offset = 0,
) -> Page[Device]:
    """Devices that match, sorted, some at a time."""
    which = DeviceFilter(search, device_state, model, program, alarmed)
    found = site.store.find_devices(which, order, descending, limit, offset)
    return Page(site.store.count_devices(which), found)


@get("/devices/{device:str}", sync_to_thread=True)
def show_device(site: TheSite, device: FromPath[str]) -> Device:
    """One device, as it last told of itself."""
    return known(site, device)


@get("/devices/{device:str}/history", sync_to_thread=True)
def history(
    site: TheSite, device: FromPath[str], since: When = None, until: When = None, points: Points = 500
) -> list[HistoryPoint]:
    """Loss, evidence, temperature and counts over time, by the board's clock; the last 90 days by default.

    Hours are merged into equal parts of the time asked for, so that there are at most `points`.
    """
    known(site, device)
    end = wall() + 3600.0 if until is None else until
    begin = end - _NINETY_DAYS if since is None else since
    if not begin < end:
        raise ClientException("`since` must be before `until`")
    return merged(site.store.hours(device, begin, end), begin, end, points)


@get("/devices/{device:str}/given-up", sync_to_thread=True)
def given_up(site: TheSite, device: FromPath[str], limit: Limit = 200) -> list[StoredRecord]:
    """Bundles that the board could not keep until they were sent, newest first."""
    known(site, device)
    return site.store.given_up(device, limit)


@get("/devices/{device:str}/bundles", sync_to_thread=True)
def device_bundles(site: TheSite, device: FromPath[str], limit: Limit = 200, offset: Offset = 0) -> Page[Bundle]:
    """What the device has sent, newest first."""
    which = BundleFilter(device=device)
    return Page(site.store.count_bundles(which), site.store.find_bundles(which, limit, offset))


@get("/devices/{device:str}/alarms", sync_to_thread=True)
def device_alarms(site: TheSite, device: FromPath[str], limit: Limit = 200, offset: Offset = 0) -> list[Alarm]:
    """Alarms of the device, raised and cleared, newest first."""
    known(site, device)
    return site.store.alarms(device, None, limit, offset)


@get("/alarms", sync_to_thread=True)
def list_alarms(site: TheSite, active: Flag = None, limit: Limit = 200, offset: Offset = 0) -> list[Alarm]:
    """Alarms of all devices, newest first."""
    return site.store.alarms("", active, limit, offset)


@get("/captures", sync_to_thread=True)
def find_bundles(
    site: TheSite,
    device: Text = "",
    bundle_state: Annotated[BundleState | Literal[""], QueryParameter(name="state")] = "",
    verdict: Text = "",
    model: Text = "",
    exit_code: Annotated[int | None, QueryParameter(ge=0, le=3)] = None,
    limit: Limit = 200,
    offset: Offset = 0,
) -> Page[Bundle]:
    """Bundles that match, newest first, some at a time."""
    which = BundleFilter(device, bundle_state, verdict, model, exit_code)
    return Page(site.store.count_bundles(which), site.store.find_bundles(which, limit, offset))


@get("/audit", guards=[operator], sync_to_thread=True)
def audit(
    site: TheSite,
    device: Text = "",
    before: Annotated[int, QueryParameter(ge=0, le=1 << 31)] = 0,
    limit: Limit = 200,
) -> list[Deed]:
    """Who did what, newest first; `before` is the number of the last one seen."""
    return site.store.deeds(limit, device, before)


def known(site: Site, device: str) -> Device:
    """Raises NotFoundException."""
    found = site.store.device(device)
    if found is None:
        raise NotFoundException(f"nothing was ever heard of a device {device}")
    return found


router = Router(
    "/api/v1",
    route_handlers=[
        find_devices,
        show_device,
        history,
        given_up,
        device_bundles,
        device_alarms,
        list_alarms,
        find_bundles,
        audit,
    ],
)
