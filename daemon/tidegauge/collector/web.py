"""Pages, reports, API and metrics, as one ASGI application."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from litestar import Litestar, MediaType, Request, Response, Router, get
from litestar.config.compression import CompressionConfig
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.params import FromPath
from litestar.plugins.jinja import JinjaTemplateEngine
from litestar.response import Redirect, Stream
from litestar.static_files import create_static_files_router
from litestar.status_codes import (
    HTTP_303_SEE_OTHER,
    HTTP_401_UNAUTHORIZED,
    HTTP_500_INTERNAL_SERVER_ERROR,
    HTTP_503_SERVICE_UNAVAILABLE,
)
from litestar.template import TemplateConfig
from litestar.types import Message, Scope
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.exc import SQLAlchemyError

from tidegauge import __version__
from tidegauge.collector import api_description, probes, request_api
from tidegauge.collector.access import PUBLIC, Access, admit, asked_of, pictures, visitor_of
from tidegauge.collector.api import TheSite
from tidegauge.collector.compare_process import HTML, JSON
from tidegauge.collector.headers import with_security
from tidegauge.collector.log_kinds import REQUEST_FAILED, STORAGE_FAILED
from tidegauge.collector.pages import routes
from tidegauge.collector.pages.live import Feeds
from tidegauge.collector.roles import Visitor
from tidegauge.collector.site import Site
from tidegauge.errors import TidegaugeError

_log = logging.getLogger(__name__)
_HERE = Path(__file__).parent
#: Of a form or of JSON; what is larger is an upload, and has its own limits.
_BODY_BYTES = 1 << 20


@get("/bundles/{device:str}/{bundle:str}/download", guards=[pictures], sync_to_thread=True)
def download(site: TheSite, device: FromPath[str], bundle: FromPath[str]) -> Stream:
    """The bundle as one file, for mail and for `tidegauge compare`."""
    found = site.bundle(device, bundle)
    size, content = site.archive(found)
    headers = {
        "content-disposition": f'attachment; filename="{found.bundle}.tidebundle"',
        "content-length": str(size),
    }
    return Stream(content, media_type="application/zip", headers=headers)


@get("/reports/{device:str}/{bundle:str}/report.html", guards=[pictures], sync_to_thread=True)
def report(site: TheSite, device: FromPath[str], bundle: FromPath[str]) -> Response[bytes]:
    """The self-contained report of the comparison."""
    return Response(site.report(device, bundle, HTML), media_type="text/html; charset=utf-8", headers=_inline(HTML))


@get("/reports/{device:str}/{bundle:str}/comparison.json", guards=[pictures], sync_to_thread=True)
def comparison(site: TheSite, device: FromPath[str], bundle: FromPath[str]) -> Response[bytes]:
    """The comparison as JSON."""
    found = site.bundle(device, bundle)
    headers = _inline(f"{found.device}-{found.bundle}-{JSON}")
    return Response(site.report(device, bundle, JSON), media_type="application/json", headers=headers)


def _inline(name: str) -> dict[str, str]:
    return {"content-disposition": f'inline; filename="{name}"'}


@get("/metrics", sync_to_thread=True, include_in_schema=False)
def metrics(request: Request[Any, Any, Any], site: TheSite) -> Response[bytes]:
    """For Prometheus. Packed here, in a thread: of a large fleet it is much."""
    if site.metrics is None:
        raise HTTPException("metrics are off (key http.metrics)", status_code=404)
    packed = "gzip" in request.headers.get("accept-encoding", "")
    headers = {"vary": "accept-encoding", **({"content-encoding": "gzip"} if packed else {})}
    return Response(site.metrics.render(packed), media_type=CONTENT_TYPE_LATEST, headers=headers)


def build(site: Site) -> Litestar:
    """The application; `site.base` comes before every path."""
    files = Router("/", route_handlers=[download, report, comparison], include_in_schema=False)
    static = create_static_files_router("/static", [_HERE / "static"], include_in_schema=False, opt=PUBLIC)
    return Litestar(
        path=site.base or None,
        route_handlers=[
            *routes.ROUTERS,
            files,
            metrics,
            probes.router,
            *api_description.routers(),
            request_api.reports,
            static,
        ],
        guards=[admit],
        state=State({"access": site.access, "base": site.base, "feeds": Feeds()}),
        request_max_body_size=_BODY_BYTES,
        dependencies={"site": Provide(lambda: site, use_cache=True, sync_to_thread=False)},
        template_config=TemplateConfig(instance=_templates(site)),
        openapi_config=api_description.openapi(),
        compression_config=CompressionConfig(
            backend="gzip", exclude=["/download", "/archive", "/events", "/assets/", "/metrics"]
        ),
        before_send=[_security_headers],
        exception_handlers={
            HTTPException: _http_error,
            TidegaugeError: _own_error,
            OSError: _storage_error,
            SQLAlchemyError: _storage_error,
            HTTP_500_INTERNAL_SERVER_ERROR: _unexpected,
        },
        logging_config=None,
    )


def _templates(site: Site) -> JinjaTemplateEngine:
    engine = JinjaTemplateEngine(_HERE / "templates")
    engine.engine.globals.update(routes.template_globals(site.base), version=__version__)
    engine.register_template_callable("csrf_token", lambda context: site.access.csrf(_visitor(context).anchor))
    engine.register_template_callable("visitor", _visitor)
    engine.engine.trim_blocks = engine.engine.lstrip_blocks = True
    return engine


def _visitor(context: Mapping[str, Any]) -> Visitor:
    return visitor_of(context["request"])


async def _security_headers(message: Message, scope: Scope) -> None:
    """On every response, errors and static files too, which `response_headers` of the application would miss."""
    if message["type"] == "http.response.start":
        access: Access = scope["litestar_app"].state.access
        secure = access.places.secure(asked_of(ASGIConnection(scope)))
        message["headers"] = with_security(scope["path"], message["headers"], secure)


def _http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    if error.status_code == HTTP_401_UNAUTHORIZED and _is_page(request) and not request.headers.get("authorization"):
        query = request.scope["query_string"].decode("latin-1")
        target = quote(request.scope["path"] + (f"?{query}" if query else ""), safe="/")
        return Redirect(f"{request.app.state.base}/login?next={target}", status_code=HTTP_303_SEE_OTHER)
    return _error(request, error.status_code, error.detail, error.headers)


def _own_error(request: Request[Any, Any, Any], error: TidegaugeError) -> Response[Any]:
    _log.error("%s %s: %s", request.method, request.scope["path"], error, extra=REQUEST_FAILED.of())
    return _error(request, HTTP_500_INTERNAL_SERVER_ERROR, str(error))


def _unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """A mistake in this program: whoever reads the log must see where."""
    _log.error("%s %s failed", request.method, request.scope["path"], exc_info=error, extra=REQUEST_FAILED.of())
    return _error(request, HTTP_500_INTERNAL_SERVER_ERROR, "the collector made a mistake: its log says where")


def _storage_error(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    _log.error("%s %s: %s", request.method, request.scope["path"], error, extra=STORAGE_FAILED.of())
    return _error(request, HTTP_503_SERVICE_UNAVAILABLE, "the collector's storage failed: see its log, and try again")


def _is_page(request: Request[Any, Any, Any]) -> bool:
    """Whether a person has opened it in a browser."""
    return request.method == "GET" and "text/html" in request.headers.get("accept", "")


def _error(
    request: Request[Any, Any, Any], status: int, detail: str, headers: dict[str, str] | None = None
) -> Response[Any]:
    """JSON for the API and for programs, a page for people."""
    if "/api/" in request.scope["path"]:
        body = {"status_code": status, "detail": detail}
        return Response(body, status_code=status, media_type=MediaType.JSON, headers=headers)
    engine = request.app.template_engine
    assert engine is not None  # `build` has set it
    text = engine.get_template("error.html").render(status=status, detail=detail, request=request)
    return Response(text, status_code=status, media_type=MediaType.HTML, headers=headers)
