"""All pages, and what their templates call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar.types import ControllerRouterHandler

from tidegauge.collector import views, views_fleet, views_timeline
from tidegauge.collector.pages import assets, bundles, device, finding, fleet, models, upload

ROUTERS: tuple[ControllerRouterHandler, ...] = (
    fleet.router,
    device.router,
    finding.router,
    bundles.router,
    models.router,
    upload.router,
    assets.router,
)


def template_globals(base: str) -> dict[str, Any]:
    """By the names that templates use; `base` comes before every path."""
    words = ("utc", "iso", "ago", "size", "number", "percent", "words", "bundle_badge", "device_badge", "verdict_line")
    more = ("drifts", "loss", "spool", "camera_badge", "query")
    found: dict[str, Callable[..., Any]] = {name: getattr(views, name) for name in words}
    found |= {name: getattr(views_fleet, name) for name in more}
    found |= {
        name: getattr(views, name) for name in ("run_badge", "upload_badge", "command_badge", "command_name", "short")
    }
    return {
        **found,
        "mean": views_timeline.mean,
        "base": base,
        "asset": lambda name: f"{base}/static/{name}?v={assets.static_version(name)}",
        "plotly_styles": assets.plotly_styles,
        "plotly": lambda: f"{base}/assets/{assets.plotly_version()}/plotly.min.js",
    }
