"""The page of one device."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from litestar import Router, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, QueryParameter
from litestar.response import Stream, Template

from tidegauge.clocks import wall
from tidegauge.collector.fleet_rows import BundleFilter
from tidegauge.collector.history_points import merged
from tidegauge.collector.pages import live
from tidegauge.collector.pages.common import AnyRequest, Shown, TheSite, page
from tidegauge.collector.relay import as_of
from tidegauge.collector.site import Site
from tidegauge.collector.views_timeline import Timeline, timeline

#: Points of a curve; alarms and captures in a timeline; rows of a list.
POINTS, MARKS, ROWS = 400, 500, 20
#: What the buttons over the timeline offer, days.
SPANS = (1, 7, 30, 90, 365)
Days = Annotated[int, QueryParameter(ge=1, le=3650)]
_DAY = 86400.0
#: Commands without parameters, which a button can give; `tidegauge device` has them all.
COMMANDS = {
    "CaptureNow": "Capture now",
    "SelfTest": "Run the golden set",
    "GetStatus": "Tell the status",
    "ClearAlarms": "Clear the alarms, keep the reference",
    "Rebaseline": "Measure a new reference",
    "Reload": "Read the configuration again",
}


@get("/devices/{device:str}", sync_to_thread=True)
def device_page(site: TheSite, device: FromPath[str], days: Days = 7) -> Template:
    """How a device is, what happened to it, and what it has sent."""
    more = {
        "days": days,
        "spans": SPANS,
        "timeline": read_timeline(site, device, days),
        "commanding": COMMANDS if site.relay is not None else {},
    }
    return page("device.html", shown(site, device), f"/live/devices/{device}/events", **more)


@get("/live/devices/{device:str}/events")
async def device_events(request: AnyRequest, site: TheSite, device: FromPath[str]) -> Stream:
    """The versions of the page."""
    return await live.stream(request, partial(shown, site, device))


@get("/devices/{device:str}/timeline", sync_to_thread=True)
def device_timeline(site: TheSite, device: FromPath[str], days: Days = 7) -> Timeline:
    """The curves and marks that the page draws."""
    return read_timeline(site, device, days)


def read_timeline(site: Site, device: str, days: int) -> Timeline:
    """The last days up to now, or a little beyond: a board's clock may be ahead."""
    until = wall() + 3600.0
    since = until - days * _DAY
    points = merged(site.store.hours(device, since, until), since, until, POINTS)
    alarms = site.store.alarms(device, limit=MARKS)
    bundles = site.store.find_bundles(BundleFilter(device=device), MARKS)
    return timeline(points, alarms, bundles, since, until)


def shown(site: Site, device: str) -> Shown:
    found = site.store.device(device)
    if found is None:
        raise NotFoundException(f"nothing was ever heard of a device {device}")
    which = BundleFilter(device=device)
    return {
        "device": found,
        "alarms": site.store.alarms(device, limit=ROWS),
        "bundles": site.store.find_bundles(which, ROWS),
        "total": site.store.count_bundles(which),
        "given_up": site.store.given_up(device, ROWS),
        "newest": site.store.newest_record(device),
        "commands": [as_of(each, wall()) for each in site.store.sent_commands(device, ROWS)],
    }


router = Router("/", route_handlers=[device_page, device_events, device_timeline], include_in_schema=False)
