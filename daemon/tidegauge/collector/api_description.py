"""What the API is made of, and its OpenAPI document without a collector that runs."""

from __future__ import annotations

from typing import Any

from litestar import Litestar, Router
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin

from tidegauge import __version__
from tidegauge.collector import api, bundle_api, command_api, fleet_api, request_api, sessions

#: Where the document is. JSON alone: a page that draws it would need scripts from elsewhere.
PATH = "/schema"


def routers() -> list[Router]:
    """All that answers under `/api/v1`."""
    return [
        sessions.router,
        api.router,
        fleet_api.router,
        bundle_api.router,
        request_api.router,
        command_api.router,
    ]


def openapi() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="Tidegauge collector",
        version=__version__,
        path=PATH,
        render_plugins=[JsonRenderPlugin()],
        use_handler_docstrings=True,
    )


def description() -> dict[str, Any]:
    """The OpenAPI document."""
    app = Litestar(
        route_handlers=routers(),
        openapi_config=openapi(),
        dependencies={"site": Provide(lambda: None, sync_to_thread=False)},
        logging_config=None,
    )
    return dict(app.openapi_schema.to_schema())
