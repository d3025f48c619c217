"""Pages, reports, API and metrics, as one ASGI application."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from litestar import Litestar, MediaType, Request, Response, Router, get
from litestar.config.compression import CompressionConfig
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.params import FromPath
from litestar.plugins.jinja import JinjaTemplateEngine
from litestar.response import Stream, Template
from litestar.static_files import create_static_files_router
from litestar.status_codes import HTTP_500_INTERNAL_SERVER_ERROR
from litestar.template import TemplateConfig
from litestar.types import Message, Scope
from prometheus_client import CONTENT_TYPE_LATEST

from tidegauge import __version__
from tidegauge.clocks import wall
from tidegauge.collector import api, views
from tidegauge.collector.api import TheSite
from tidegauge.collector.compare_process import HTML, JSON
from tidegauge.collector.site import Site
from tidegauge.errors import TidegaugeError

_HERE = Path(__file__).parent

#: Pages of this program have no inline script or style.
CSP = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
#: A report is one file with all in it, made from what a device sent: it may draw, and reach nothing else.
REPORT_CSP = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts allow-downloads allow-popups"
)


@get("/", sync_to_thread=True)
def index(site: TheSite) -> Template:
    """Bundles, newest first, and devices."""
    return Template(
        "index.html",
        context={
            "bundles": site.store.bundles(limit=200),
            "devices": site.store.devices(),
            "refused": site.store.refused(),
            "connected": site.connected(),
            "now": wall(),
        },
    )


@get("/bundles/{device:str}/{bundle:str}", sync_to_thread=True)
def bundle_page(site: TheSite, device: FromPath[str], bundle: FromPath[str]) -> Template:
    """One bundle: what the board said, and what the comparison found."""
    found = site.bundle(device, bundle)
    manifest = site.manifest(found)
    return Template("bundle.html", context={"bundle": found, "manifest": manifest})


@get("/bundles/{device:str}/{bundle:str}/download", sync_to_thread=True)
def download(site: TheSite, device: FromPath[str], bundle: FromPath[str]) -> Stream:
    """The bundle as one file, for mail and for `tidegauge compare`."""
    found = site.bundle(device, bundle)
    size, content = site.archive(found)
    headers = {
        "content-disposition": f'attachment; filename="{found.bundle}.tidebundle"',
        "content-length": str(size),
    }
    return Stream(content, media_type="application/zip", headers=headers)


@get("/reports/{device:str}/{bundle:str}/report.html", sync_to_thread=True)
def report(site: TheSite, device: FromPath[str], bundle: FromPath[str]) -> Response[bytes]:
    """The self-contained report of the comparison."""
    return Response(site.report(device, bundle, HTML), media_type="text/html; charset=utf-8", headers=_inline(HTML))


@get("/reports/{device:str}/{bundle:str}/comparison.json", sync_to_thread=True)
def comparison(site: TheSite, device: FromPath[str], bundle: FromPath[str]) -> Response[bytes]:
    """The comparison as JSON."""
    found = site.bundle(device, bundle)
    headers = _inline(f"{found.device}-{found.bundle}-{JSON}")
    return Response(site.report(device, bundle, JSON), media_type="application/json", headers=headers)


def _inline(name: str) -> dict[str, str]:
    return {"content-disposition": f'inline; filename="{name}"'}


@get("/metrics", sync_to_thread=True, include_in_schema=False)
def metrics(site: TheSite) -> Response[bytes]:
    """For Prometheus."""
    if site.metrics is None:
        raise HTTPException("metrics are off (key http.metrics)", status_code=404)
    return Response(site.metrics.render(), media_type=CONTENT_TYPE_LATEST)


def build(site: Site) -> Litestar:
    """The application; `site.base` comes before every path."""
    pages = Router("/", route_handlers=[index, bundle_page, download, report, comparison], include_in_schema=False)
    static = create_static_files_router("/static", [_HERE / "static"], include_in_schema=False)
    return Litestar(
        path=site.base or None,
        route_handlers=[pages, metrics, api.router, static],
        dependencies={"site": Provide(lambda: site, use_cache=True, sync_to_thread=False)},
        template_config=TemplateConfig(instance=_templates(site)),
        openapi_config=OpenAPIConfig(
            title="Tidegauge collector", version=__version__, path="/schema", render_plugins=[JsonRenderPlugin()]
        ),
        compression_config=CompressionConfig(backend="gzip", exclude=["/download"]),
        before_send=[_security_headers],
        exception_handlers={HTTPException: _http_error, TidegaugeError: _own_error},
        logging_config=None,
    )


def _templates(site: Site) -> JinjaTemplateEngine:
    engine = JinjaTemplateEngine(_HERE / "templates")
    names = ("utc", "iso", "ago", "size", "number", "percent", "words", "bundle_badge", "device_badge", "verdict_line")
    engine.engine.globals.update({name: getattr(views, name) for name in names})
    engine.engine.globals.update(base=site.base, version=__version__)
    engine.engine.trim_blocks = engine.engine.lstrip_blocks = True
    return engine


async def _security_headers(message: Message, scope: Scope) -> None:
    """On every response, errors and static files too, which `response_headers` of the application would miss."""
    if message["type"] != "http.response.start":
        return
    is_report = "/reports/" in scope["path"] and scope["path"].endswith(f"/{HTML}")
    found = [
        (b"content-security-policy", (REPORT_CSP if is_report else CSP).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"same-origin"),
    ]
    message["headers"] = [*message["headers"], *found]


def _http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    return _error(request, error.status_code, error.detail)


def _own_error(request: Request[Any, Any, Any], error: TidegaugeError) -> Response[Any]:
    return _error(request, HTTP_500_INTERNAL_SERVER_ERROR, str(error))


def _error(request: Request[Any, Any, Any], status: int, detail: str) -> Response[Any]:
    """JSON for the API, a page for people."""
    if "/api/" in request.url.path:
        return Response({"status_code": status, "detail": detail}, status_code=status, media_type=MediaType.JSON)
    engine = request.app.template_engine
    assert engine is not None  # `build` has set it
    text = engine.get_template("error.html").render(status=status, detail=detail)
    return Response(text, status_code=status, media_type=MediaType.HTML)
