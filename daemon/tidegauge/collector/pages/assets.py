"""Plotly's own script, from the installed package: no other host is asked for it. Its address changes when it does."""

from __future__ import annotations

import gzip
import hashlib
import re
from functools import cache
from importlib.resources import files
from pathlib import Path

from litestar import Response, Router, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from tidegauge.collector.access import PUBLIC
from tidegauge.collector.pages.common import AnyRequest

_STATIC = Path(__file__).parents[1] / "static"
_FOREVER = "public, max-age=31536000, immutable"


@get("/assets/{version:str}/plotly.min.js", opt=PUBLIC, sync_to_thread=True)
def plotly(request: AnyRequest, version: FromPath[str]) -> Response[bytes]:
    """The script, kept by browsers for good."""
    if version != plotly_version():
        raise NotFoundException("this is not the installed version of Plotly: open the page again")
    headers = {"cache-control": _FOREVER, "vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(_packed(), media_type="text/javascript", headers={**headers, "content-encoding": "gzip"})
    return Response(_script(), media_type="text/javascript", headers=headers)


def plotly_version() -> str:
    """Part of the script's hash."""
    return _version(_script())


@cache
def static_version(name: str) -> str:
    """Of a file in `static`: in the query of its address, so that no browser shows a page with an old one."""
    return _version((_STATIC / name).read_bytes())


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


@cache
def plotly_styles() -> tuple[str, ...]:
    """Ids of style elements that the script would make for maps, and doesn't where an element has the id already.

    The policy of our pages lets none be made, and each try would be an error in the browser's console.
    """
    return tuple(sorted({found.decode() for found in re.findall(rb'getElementById\("([0-9a-f]{64})"\)', _script())}))


@cache
def _script() -> bytes:
    return files("plotly").joinpath("package_data/plotly.min.js").read_bytes()


@cache
def _packed() -> bytes:
    return gzip.compress(_script(), 6)


router = Router("/", route_handlers=[plotly], include_in_schema=False)
