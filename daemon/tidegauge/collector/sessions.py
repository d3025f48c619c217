"""Logging in: a token is typed once, and the browser keeps a cookie that is good for nothing else."""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated, Any
from urllib.parse import parse_qs

import msgspec
from litestar import Request, Response, Router, get, post
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from litestar.params import QueryParameter, SkipValidation
from litestar.response import Redirect, Template

from tidegauge.clocks import wall
from tidegauge.collector.access import (
    CSRF_FIELD,
    FOR_VIEWERS,
    PUBLIC,
    asked_of,
    check_csrf,
    cookie_name,
    visitor_of,
)
from tidegauge.collector.roles import Role, Visitor
from tidegauge.collector.site import Site

TheSite = NamedDependency[SkipValidation[Site]]
AnyRequest = Request[Any, Any, Any]
Next = Annotated[str, QueryParameter(name="next", description="Path to go to afterwards.", max_length=2000)]

#: Binds the login form to the browser that asked for it: another site can't log it in as somebody else.
LOGIN_COOKIE = "tidegauge_login"
_LOGIN_SECONDS = 3600


class Session(msgspec.Struct, frozen=True):
    """Who asks, and the CSRF token with which this visitor may change things ("" for a bearer token: it needs none).

    `commands`: whether this collector can command boards.
    """

    name: str
    role: Role
    by: str
    logged_in: bool
    csrf_token: str
    commands: bool


@get("/login", opt=PUBLIC, include_in_schema=False)
async def login_page(request: AnyRequest, site: TheSite, next_path: Next = "") -> Response[Any]:
    """The form that takes a token."""
    return _form(request, site, next_path)


@post("/login", opt=PUBLIC, include_in_schema=False, status_code=303)
async def login(request: AnyRequest, site: TheSite) -> Response[Any]:
    """Open a session; whatever session the browser had before is over."""
    fields = parse_qs((await request.body()).decode("utf-8", "replace"))
    target = fields.get("next", [""])[0]
    await check_csrf(request, _anchor(request.cookies.get(LOGIN_COOKIE, "")))
    asked = asked_of(request)
    secure = site.access.places.secure(asked)
    try:
        token = await site.access.prove(asked, fields.get("token", [""])[0].strip())
    except HTTPException as error:
        await site.access.record(request, "login refused", detail={"status": error.status_code})
        return _form(request, site, target, error)
    await _end(request, site)
    seconds = int(3600 * site.access.config.session_hours)
    secret = await asyncio.to_thread(site.store.open_session, token, wall(), seconds)
    request.scope["user"] = Visitor(token.name, token.role, "session")
    await site.access.record(request, "login")
    answer = Redirect(inside(site.base, target), status_code=303)
    answer.cookies = [
        Cookie(cookie_name(secure), "/", secret, max_age=seconds, httponly=True, secure=secure, samesite="strict"),
        _gone(LOGIN_COOKIE, secure),
    ]
    return answer


@post("/logout", opt=FOR_VIEWERS, include_in_schema=False, status_code=303)
async def logout(request: AnyRequest, site: TheSite) -> Response[Any]:
    """End the session, here and in the database."""
    await _end(request, site)
    await site.access.record(request, "logout")
    secure = site.access.places.secure(asked_of(request))
    answer = Redirect(f"{site.base}/login", status_code=303)
    answer.cookies = [_gone(cookie_name(secure), secure)]
    return answer


@get("/api/v1/session")
async def session(request: AnyRequest, site: TheSite) -> Session:
    """Who asks, and with which CSRF token."""
    visitor = visitor_of(request)
    assert visitor.role  # the guard lets nobody else through
    token = site.access.csrf(visitor.anchor) if visitor.anchor else ""
    return Session(visitor.name, visitor.role, visitor.by, visitor.logged_in, token, site.relay is not None)


def _form(request: AnyRequest, site: Site, target: str, error: HTTPException | None = None) -> Response[Any]:
    secure = site.access.places.secure(asked_of(request))
    nonce = secrets.token_urlsafe(24)
    context = {
        "next": target,
        "login_token": site.access.csrf(_anchor(nonce)),
        "error": error.detail if error is not None else "",
        "field": CSRF_FIELD,
    }
    status = error.status_code if error is not None else 200
    headers = dict(error.headers or {}) if error is not None else {}
    answer = Template("login.html", context=context, status_code=status, headers=headers)
    answer.cookies = [
        Cookie(LOGIN_COOKIE, "/", nonce, max_age=_LOGIN_SECONDS, httponly=True, secure=secure, samesite="strict")
    ]
    return answer


async def _end(request: AnyRequest, site: Site) -> None:
    secret = request.cookies.get(cookie_name(site.access.places.secure(asked_of(request))), "")
    if secret:
        await asyncio.to_thread(site.store.close_session, secret)


def _anchor(nonce: str) -> str:
    return f"login:{nonce}" if nonce else ""


def _gone(name: str, secure: bool) -> Cookie:
    return Cookie(name, "/", "", max_age=0, httponly=True, secure=secure, samesite="strict")


def inside(base: str, target: str) -> str:
    """A path of ours to go to; the first page for anything else, and for what a browser may read as a host. Pure."""
    start = f"{base}/"
    plain = target.isascii() and target.isprintable() and not set(target) & set("\\ \"'<>")
    if not plain or not target.startswith(start) or target.startswith(("//", f"{base}/login")):
        return start
    return target


router = Router("/", route_handlers=[login_page, login, logout, session])
