"""What all pages share."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

import msgspec
from litestar import Request
from litestar.di import NamedDependency
from litestar.params import QueryParameter, SkipValidation
from litestar.response import Template

from tidegauge.clocks import wall
from tidegauge.collector.site import Site

TheSite = NamedDependency[SkipValidation[Site]]
AnyRequest = Request[Any, Any, Any]
Text = Annotated[str, QueryParameter(max_length=200)]
PageNumber = Annotated[int, QueryParameter(name="page", ge=1, le=1_000_000)]

#: What a page says, by name, before it is put into words.
Shown = dict[str, Any]


def page(template: str, shown: Shown, live: str = "", **more: object) -> Template:
    """A page of `shown`; with `live`, the path of its event stream, it stays up to date by itself.

    `more`: what the template needs and what never changes while the page is open, such as a manifest.
    """
    context = {**shown, **more, "now": wall(), "live": live, "digest": digest(shown) if live else ""}
    return Template(template, context=context)


def digest(shown: Shown) -> str:
    """Changes whenever what a page says does."""
    return hashlib.blake2b(msgspec.json.encode(shown), digest_size=12).hexdigest()
