"""Who may do what, on every route: a guard of the whole application that lets nobody through by default.

Without a word from the route, reading needs the role "viewer", everything else the role "operator" and, from a browser,
a CSRF token. A route says what differs: `guards=[operator]`, `opt=FOR_VIEWERS`, `opt=PUBLIC`.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.exceptions import (
    ClientException,
    NotAuthorizedException,
    PermissionDeniedException,
    TooManyRequestsException,
)
from litestar.handlers.base import BaseRouteHandler

from tidegauge.clocks import monotonic, wall
from tidegauge.collector.access_rows import Deed
from tidegauge.collector.config import AccessConfig
from tidegauge.collector.rate_limits import RateLimit
from tidegauge.collector.roles import (
    NOBODY,
    QUERY_TOKENS,
    Ambiguous,
    Asked,
    Places,
    Visitor,
    bearer,
    csrf,
    digest_of,
    neighbourhood,
    same,
)
from tidegauge.collector.store import Store

Connection = ASGIConnection[Any, Any, Any, Any]

#: `opt` of a route that needs no login.
PUBLIC: dict[str, Any] = {"public": True}
#: `opt` of a route that changes something and is open to viewers too.
FOR_VIEWERS: dict[str, Any] = {"role": "viewer"}

COOKIE = "tidegauge_session"
#: Under this prefix a browser takes a cookie only by https, from this host, for all of it.
SECURE_COOKIE = f"__Host-{COOKIE}"
CSRF_HEADER, CSRF_FIELD = "x-csrf-token", "csrf_token"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FORM = "application/x-www-form-urlencoded"
_FORM_BYTES = 64 << 10


class Access:
    """Who may ask, as the configuration and the database say. `loopback`: whether only this computer reaches us."""

    def __init__(self, store: Store, config: AccessConfig, loopback: bool) -> None:
        self.store, self.config = store, config
        self.places = Places(config, loopback)
        self._attempts = RateLimit(config.attempts_per_minute, config.attempts_per_minute)
        self._secret = store.secret("csrf")

    def csrf(self, anchor: str) -> str:
        return csrf(self._secret, anchor)

    async def identify(self, connection: Connection) -> Visitor:
        """Who asks; NOBODY where nothing is shown. Raises HTTPException for what is shown and not right."""
        asked = asked_of(connection)
        try:
            token = bearer(asked.header("authorization"))
            if token is not None:
                return await self._by_token(asked, token)
            session = connection.cookies.get(cookie_name(self.places.secure(asked)), "")
            found = await asyncio.to_thread(self.store.session, session, wall()) if session else None
            if found is not None:
                return Visitor(found.name, found.role, "session", f"session:{digest_of(session)}")
            return self.places.by_proxy(asked) or self.places.local(asked) or NOBODY
        except Ambiguous as error:
            raise ClientException(f"the header {error} comes more than once: who asks is not clear") from error

    async def _by_token(self, asked: Asked, token: str) -> Visitor:
        found = await self.prove(asked, token)
        return Visitor(found.name, found.role, "token")

    async def prove(self, asked: Asked, token: str) -> Any:
        """The row of a token that somebody shows. Raises HTTPException: 401, or 429 after too many wrong ones."""
        key = neighbourhood(self.places.client(asked))
        if wait := self._attempts.wait(key, monotonic()):
            raise too_many("too many wrong tokens came from this address", wait)
        found = await asyncio.to_thread(self.store.token, token, wall()) if token else None
        if found is None:
            self._attempts.take(key, monotonic())
            raise NotAuthorizedException(
                "this token is not known, or no longer", headers={"www-authenticate": "Bearer"}
            )
        return found

    async def record(
        self, connection: Connection, action: str, device: str = "", detail: Mapping[str, Any] | None = None
    ) -> None:
        """Write into the audit log what the visitor of this connection does."""
        visitor = visitor_of(connection)
        address = self.places.client(asked_of(connection))
        deed = Deed(0, wall(), visitor.name, visitor.by, address, action, device, dict(detail or {}))
        await asyncio.to_thread(self.store.add_deed, deed)


async def admit(connection: Connection, handler: BaseRouteHandler) -> None:
    """The guard of the whole application. Raises HTTPException."""
    access: Access = connection.app.state.access
    if QUERY_TOKENS & {name.lower() for name in connection.query_params}:
        raise ClientException(
            "a token does not belong into an address, where logs and histories keep it: "
            "send it as `Authorization: Bearer …`, and revoke the one that was sent"
        )
    if "\0" in connection.scope["path"] or any(
        "\0" in f"{key}{value}" for key, value in connection.query_params.multi_items()
    ):
        raise ClientException("an address holds no NUL: no file or row has such a name")
    public = bool(handler.opt.get("public"))
    try:
        visitor = await access.identify(connection)
    except (NotAuthorizedException, TooManyRequestsException):
        if not public:
            raise
        visitor = NOBODY
    connection.scope["user"] = visitor
    if public:
        return
    if not visitor.may_view:
        raise NotAuthorizedException("log in, or send a token", headers={"www-authenticate": "Bearer"})
    changes = connection.scope.get("method", "GET") not in _SAFE
    if changes and visitor.by != "token":
        await check_csrf(connection, visitor.anchor)
    if changes and handler.opt.get("role") != "viewer":
        operator(connection, handler)


def viewer(connection: Connection, handler: BaseRouteHandler) -> None:
    """Guard: whoever may see things. Raises PermissionDeniedException."""
    if not visitor_of(connection).may_view:
        raise PermissionDeniedException("this needs the role viewer")


def operator(connection: Connection, handler: BaseRouteHandler) -> None:
    """Guard: whoever may do things. Raises PermissionDeniedException."""
    if not visitor_of(connection).may_operate:
        raise PermissionDeniedException("this needs the role operator")


def pictures(connection: Connection, handler: BaseRouteHandler) -> None:
    """Guard: whoever may see what a camera saw. Raises PermissionDeniedException."""
    access: Access = connection.app.state.access
    if access.config.pictures == "operator":
        operator(connection, handler)


async def check_csrf(connection: Connection, anchor: str) -> None:
    """The request must come from a page of ours, made for this visitor. Raises PermissionDeniedException."""
    if connection.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise PermissionDeniedException("another site has made the browser send this")
    given = connection.headers.get(CSRF_HEADER) or await _field(connection)
    access: Access = connection.app.state.access
    if not anchor or not given or not same(given, access.csrf(anchor)):
        raise PermissionDeniedException(
            "the CSRF token is missing or not this visitor's: open the page again; "
            "a program sends a bearer token, or the `csrf_token` of /api/v1/session as header X-CSRF-Token"
        )


async def _field(connection: Connection) -> str:
    """The token from a small form. Anything larger sends it as a header."""
    if not isinstance(connection, Request) or connection.content_type[0] != _FORM:
        return ""
    announced = connection.headers.get("content-length", "")
    if not announced.isdecimal() or int(announced) > _FORM_BYTES:
        return ""
    fields = parse_qs((await connection.body()).decode("utf-8", "replace"), max_num_fields=None)
    return fields.get(CSRF_FIELD, [""])[0]


def visitor_of(connection: Connection) -> Visitor:
    """Who asks; NOBODY where no route was found."""
    found = connection.scope.get("user")
    return found if isinstance(found, Visitor) else NOBODY


def asked_of(connection: Connection) -> Asked:
    headers: dict[str, list[str]] = defaultdict(list)
    for name, value in connection.scope["headers"]:
        headers[name.decode("latin-1").lower()].append(value.decode("latin-1"))
    client = connection.scope.get("client")
    return Asked(client[0] if client else "", headers, str(connection.scope.get("scheme", "http")))


def cookie_name(secure: bool) -> str:
    return SECURE_COOKIE if secure else COOKIE


def too_many(problem: str, wait: float) -> TooManyRequestsException:
    seconds = math.ceil(wait)
    return TooManyRequestsException(f"{problem}: try again in {seconds} s", headers={"retry-after": str(seconds)})
