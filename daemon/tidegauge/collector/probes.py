"""Whether this process lives, and whether it can work: for those who start and stop processes, without a login."""

from __future__ import annotations

from litestar import MediaType, Response, Router, get
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from sqlalchemy.exc import SQLAlchemyError

from tidegauge.collector.access import PUBLIC
from tidegauge.collector.site import Site


@get("/healthz", media_type=MediaType.TEXT, opt=PUBLIC, sync_to_thread=False)
def alive() -> str:
    """The process answers."""
    return "ok\n"


@get("/readyz", media_type=MediaType.TEXT, opt=PUBLIC, sync_to_thread=True)
def ready(site: NamedDependency[SkipValidation[Site]]) -> Response[str]:
    """The database answers, and where this process takes bundles in, the broker is connected; else 503 and why."""
    try:
        site.store.token_count()
    except SQLAlchemyError:
        return Response("the database does not answer\n", status_code=503, media_type=MediaType.TEXT)
    if why := site.stands_back():
        return Response(f"stands back: {why}\n", status_code=503, media_type=MediaType.TEXT)
    if not site.connected():
        return Response("the broker is not connected\n", status_code=503, media_type=MediaType.TEXT)
    return Response("ready\n", media_type=MediaType.TEXT)


router = Router("/", route_handlers=[alive, ready], include_in_schema=False)
