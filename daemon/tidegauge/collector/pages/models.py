"""The page of models: what boards run, how each set of artifacts does, and what is registered."""

from __future__ import annotations

from functools import partial

from litestar import Router, get
from litestar.response import Stream, Template

from tidegauge.collector.pages import live
from tidegauge.collector.pages.common import AnyRequest, Shown, TheSite, page
from tidegauge.collector.site import Site


@get("/models", sync_to_thread=True)
def models_page(site: TheSite) -> Template:
    """Models, artifact sets by SDK release, and the library."""
    return page("models.html", shown(site), "/live/models/events")


@get("/live/models/events")
async def models_events(request: AnyRequest, site: TheSite) -> Stream:
    """The versions of the page."""
    return await live.stream(request, partial(shown, site))


def shown(site: Site) -> Shown:
    sets, library = site.store.model_sets(), site.store.library()
    compiles = {entry.key for entry in library if entry.kind == "compile"}
    return {
        "running": site.store.running(),
        "sets": sets,
        "library": library,
        "compiled": {each.artifacts: each.artifacts in compiles for each in sets},
    }


router = Router("/", route_handlers=[models_page, models_events], include_in_schema=False)
