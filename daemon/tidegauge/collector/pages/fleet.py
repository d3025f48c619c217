"""The first page: the fleet."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
from litestar import Router, get
from litestar.params import QueryParameter
from litestar.response import Stream, Template

from tidegauge.collector import views_fleet
from tidegauge.collector.fleet_drift import FALSE_SHARE
from tidegauge.collector.fleet_rows import DeviceFilter, DeviceOrder
from tidegauge.collector.pages import live
from tidegauge.collector.pages.common import AnyRequest, PageNumber, Shown, Text, TheSite, page
from tidegauge.collector.site import Site

#: Devices a page.
SIZE = 50
#: Findings and bundles on the first page; their own pages have all.
FINDINGS, BUNDLES = 4, 8
State = Annotated[Literal["", "online", "lost", "stopped", "unknown"], QueryParameter(name="state")]
Program = Annotated[str, QueryParameter(name="version", max_length=200)]
Order = Annotated[DeviceOrder, QueryParameter()]
Flag = Annotated[bool, QueryParameter()]


class Asked(msgspec.Struct, frozen=True):
    """What the page is asked for, by the names of its query."""

    search: str = ""
    state: str = ""
    model: str = ""
    version: str = ""
    alarmed: bool = False
    order: DeviceOrder = "alarms"
    descending: bool = True
    page: int = 1


@get("/", sync_to_thread=True)
def fleet(
    site: TheSite,
    search: Text = "",
    device_state: State = "",
    model: Text = "",
    program: Program = "",
    alarmed: Flag = False,
    order: Order = "alarms",
    descending: Flag = True,
    number: PageNumber = 1,
) -> Template:
    """Devices that match, sorted, a page at a time; what is wrong comes first."""
    asked = Asked(search, device_state, model, program, alarmed, order, descending, number)
    given = _given(asked)
    return page(
        "fleet.html",
        shown(site, asked),
        f"/live/fleet/events{views_fleet.query(given)}",
        given=given,
        false_share=FALSE_SHARE,
    )


@get("/live/fleet/events")
async def fleet_events(
    request: AnyRequest,
    site: TheSite,
    search: Text = "",
    device_state: State = "",
    model: Text = "",
    program: Program = "",
    alarmed: Flag = False,
    order: Order = "alarms",
    descending: Flag = True,
    number: PageNumber = 1,
) -> Stream:
    """The versions of the page."""
    asked = Asked(search, device_state, model, program, alarmed, order, descending, number)
    return await live.stream(request, partial(shown, site, asked))


def shown(site: Site, asked: Asked) -> Shown:
    which = DeviceFilter(asked.search, asked.state, asked.model, asked.version, True if asked.alarmed else None)
    store = site.store
    where = views_fleet.paging(store.count_devices(which), asked.page, SIZE)
    devices = store.find_devices(which, asked.order, asked.descending, SIZE, (where.number - 1) * SIZE)
    named = store.standing_out()
    here = {device.device for device in devices}
    return {
        "asked": asked,
        "paging": where,
        "devices": devices,
        "standing_out": {each.device: each.log_e for each in named if each.device in here},
        "named": len(named),
        "counts": store.fleet_counts(),
        "choices": store.fleet_choices(),
        "findings": store.findings(limit=FINDINGS),
        "bundles": store.bundles(limit=BUNDLES),
        "refused": store.refused(),
        "connected": site.connected(),
        "stands_back": site.stands_back(),
    }


def _given(asked: Asked) -> dict[str, object]:
    """The query by which the same is asked again: what is as always is left out."""
    usual = Asked()
    values = {name: getattr(asked, name) for name in asked.__struct_fields__}
    given = {name: value for name, value in values.items() if value != getattr(usual, name)}
    if "descending" in given:
        given["descending"] = "false"
    return {name: "true" if value is True else value for name, value in given.items()}


router = Router("/", route_handlers=[fleet, fleet_events], include_in_schema=False)
