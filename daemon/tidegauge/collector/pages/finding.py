"""Findings: the same fault on many boards is one. Their list, and the page of one."""

from __future__ import annotations

from functools import partial

from litestar import Router, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from litestar.response import Stream, Template

from tidegauge.collector.api import MOST_FINDINGS
from tidegauge.collector.pages import live
from tidegauge.collector.pages.common import AnyRequest, Shown, TheSite, page
from tidegauge.collector.site import Site

#: Findings in the list.
LISTED = 200


@get("/findings", sync_to_thread=True)
def findings_page(site: TheSite) -> Template:
    """All findings, those on most boards first."""
    return page("findings.html", listed(site), "/live/findings/events")


@get("/findings/{finding:str}", sync_to_thread=True)
def finding_page(site: TheSite, finding: FromPath[str]) -> Template:
    """One finding and its boards."""
    return page("finding.html", shown(site, finding), f"/live/findings/{finding}/events")


@get("/live/findings/events")
async def findings_events(request: AnyRequest, site: TheSite) -> Stream:
    """The versions of the list."""
    return await live.stream(request, partial(listed, site))


@get("/live/findings/{finding:str}/events")
async def finding_events(request: AnyRequest, site: TheSite, finding: FromPath[str]) -> Stream:
    """The versions of the page."""
    return await live.stream(request, partial(shown, site, finding))


def listed(site: Site) -> Shown:
    return {"findings": site.store.findings(limit=LISTED)}


def shown(site: Site, finding: str) -> Shown:
    for each in site.store.findings(limit=MOST_FINDINGS):
        if each.id == finding:
            return {"finding": each, "boards": site.store.found_on(each)}
    raise NotFoundException(f"there is no finding {finding}")


router = Router(
    "/", route_handlers=[findings_page, finding_page, findings_events, finding_events], include_in_schema=False
)
