"""The page to which files are dropped: bundles, TIDL traces, models and compile outputs."""

from __future__ import annotations

from functools import partial

from litestar import Router, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from litestar.response import Stream, Template

from tidegauge.collector.pages import live
from tidegauge.collector.pages.common import AnyRequest, Shown, TheSite, page
from tidegauge.collector.site import Site

#: Uploads and runs in the lists.
LISTED = 20


@get("/upload", sync_to_thread=True)
def upload_page(site: TheSite) -> Template:
    """Where to drop files, and what became of earlier ones."""
    models = [entry for entry in site.store.library() if entry.kind == "model"]
    return page("upload.html", shown(site), "/live/upload/events", models=models)


@get("/live/upload/events")
async def upload_events(request: AnyRequest, site: TheSite) -> Stream:
    """The versions of the page."""
    return await live.stream(request, partial(shown, site))


@get("/runs/{run:str}", sync_to_thread=True)
def run_page(site: TheSite, run: FromPath[str]) -> Template:
    """One comparison that somebody has asked for."""
    return page("run.html", one_run(site, run), f"/live/runs/{run}/events")


@get("/live/runs/{run:str}/events")
async def run_events(request: AnyRequest, site: TheSite, run: FromPath[str]) -> Stream:
    """The versions of the page."""
    return await live.stream(request, partial(one_run, site, run))


def shown(site: Site) -> Shown:
    return {"uploads": site.store.uploads(LISTED), "runs": site.store.runs(LISTED)}


def one_run(site: Site, run: str) -> Shown:
    found = site.store.run(run)
    if found is None:
        raise NotFoundException(f"there is no run {run}")
    return {"run": found}


router = Router("/", route_handlers=[upload_page, upload_events, run_page, run_events], include_in_schema=False)
