"""Who gets in: roles, tokens, sessions, proxies, CSRF, and attacks on each."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from litestar.testing import TestClient

from integration.collector_web import from_here
from tidegauge.clocks import Wall, wall
from tidegauge.collector import web
from tidegauge.collector.access import Access
from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.config import AccessConfig, ScrapeConfig
from tidegauge.collector.crowd import limited
from tidegauge.collector.metrics import CollectorMetrics
from tidegauge.collector.rate_limits import RateLimit
from tidegauge.collector.roles import Ambiguous, Asked, Places, bearer, is_loopback, neighbourhood
from tidegauge.collector.sessions import inside
from tidegauge.collector.site import Site
from tidegauge.collector.store import Store
from tidegauge.errors import TidegaugeError

FAR = "192.0.2.7"
PROXY = "10.0.0.5"
BASE = "/tide"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "collector.sqlite")
    yield store
    store.close()


Opened = Callable[..., TestClient[Any]]


@pytest.fixture
def opened(own: Store, tmp_path: Path) -> Iterator[Opened]:
    """A client of a collector: `address` it asks from, `loopback` whether the collector listens on loopback only."""
    with ExitStack() as stack:

        def make(
            address: str = FAR,
            loopback: bool = False,
            host: str = "collector.example.org",
            browser: str = "http",
            **config: Any,
        ) -> TestClient[Any]:
            (tmp_path / "work").mkdir(exist_ok=True)
            site = Site(
                base=BASE,
                store=own,
                blobs=BlobStore(tmp_path / "blobs"),
                work=tmp_path / "work",
                metrics=CollectorMetrics(own),
                manifest_limit=1 << 20,
                connected=lambda: True,
                stands_back=lambda: "",
                scrape=ScrapeConfig(),
                access=Access(own, AccessConfig(**config), loopback),
            )
            app = from_here(web.build(site), address)
            client = TestClient(app, base_url=f"{browser}://collector.example.org")
            client.headers["host"] = host
            client.follow_redirects = False
            return stack.enter_context(client)

        yield make


def token_of(store: Store, role: Any = "viewer", name: str = "somebody") -> str:
    return store.new_token(name, role, wall())


def log_in(client: TestClient[Any], token: str, target: str = "", **headers: str) -> Any:
    page = client.get(f"{BASE}/login", params={"next": target}, headers=headers).text
    page = page[page.index(f'action="{BASE}/login"') :]
    field = re.search(r'name="csrf_token" value="([0-9a-f]{64})"', page)
    assert field is not None
    data = {"csrf_token": field[1], "token": token, "next": target}
    return client.post(f"{BASE}/login", data=data, headers=headers)


def bear(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


EVERYTHING = ("", "bundles/a/b", "metrics", "schema/openapi.json", "api/v1/devices", "api/v1/session", "nothing/here")


def test_nobody_gets_in_without_a_token_and_every_answer_has_its_policy(opened: Opened, own: Store) -> None:
    client = opened()
    token = token_of(own)
    for path in (*EVERYTHING, "static/pages.css", "static/nothing", "healthz", "readyz", "login"):
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
            for headers in ({}, bear("wrong"), bear(token)):
                answer = client.request(method, f"{BASE}/{path}", headers=headers)
                assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert answer.status_code < 500
                known = headers == bear(token)
                public = path.startswith(("static", "healthz", "readyz", "login", "nothing"))
                if method == "GET" and not public:
                    assert (answer.status_code in (200, 404)) == known, (path, headers, answer.status_code)
        client = opened()  # whose wrong tokens are not counted yet


def test_browser_is_sent_to_the_login_page_and_comes_back(opened: Opened, own: Store) -> None:
    client, token = opened(), token_of(own)
    away = client.get(f"{BASE}/api/v1/../../bundles/a/b?x=1", headers={"accept": "text/html"})
    assert away.status_code == 303 and away.headers["location"] == f"{BASE}/login?next={BASE}/bundles/a/b%3Fx%3D1"
    back = log_in(client, token, f"{BASE}/bundles/a/b?x=1")
    assert back.status_code == 303 and back.headers["location"] == f"{BASE}/bundles/a/b?x=1"
    cookie = next(line for line in back.headers.get_list("set-cookie") if line.startswith("tidegauge_session="))
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and "secure" not in cookie.lower()
    assert client.get(f"{BASE}/api/v1/session").json()["role"] == "viewer"
    assert token not in str(client.cookies) and client.cookies["tidegauge_session"] not in repr(own.tokens())


def test_cookie_is_secure_where_the_browser_came_by_https(opened: Opened, own: Store) -> None:
    client = opened(PROXY, browser="https", proxies=(PROXY,))
    answer = log_in(client, token_of(own), **{"x-forwarded-proto": "https"})
    cookie = next(line for line in answer.headers.get_list("set-cookie") if "session" in line)
    assert cookie.startswith("__Host-tidegauge_session=") and "; secure" in cookie.lower()
    assert "max-age" in answer.headers["strict-transport-security"]
    assert "strict-transport-security" not in client.get(f"{BASE}/login").headers


def test_viewer_sees_and_operator_does(opened: Opened, own: Store) -> None:
    client = opened()
    viewer, operator = token_of(own), token_of(own, "operator", "boss")
    assert client.get(f"{BASE}/api/v1/audit", headers=bear(viewer)).status_code == 403
    assert client.get(f"{BASE}/api/v1/audit", headers=bear(operator)).status_code == 200
    own.revoke_token("boss")
    assert client.get(f"{BASE}/api/v1/audit", headers=bear(operator)).status_code == 401


def test_token_expires_and_its_sessions_with_it(opened: Opened, own: Store) -> None:
    client, token = opened(), token_of(own, name="short")
    log_in(client, token)
    assert client.get(f"{BASE}/api/v1/session").status_code == 200
    assert own.revoke_token("short") and client.get(f"{BASE}/api/v1/session").status_code == 401
    old = own.new_token("old", "viewer", Wall(wall() - 2 * 86400), days=1.0)
    assert client.get(f"{BASE}/api/v1/session", headers=bear(old)).status_code == 401
    assert own.token(old, Wall(wall() - 86401)) is not None
    with pytest.raises(TidegaugeError, match="already"):
        own.new_token("old", "viewer", wall())


def test_session_ends_by_logging_out_and_by_time(opened: Opened, own: Store) -> None:
    client, token = opened(), token_of(own)
    log_in(client, token)
    csrf = client.get(f"{BASE}/api/v1/session").json()["csrf_token"]
    kept = client.cookies["tidegauge_session"]
    assert own.session(kept, Wall(wall() + 13 * 3600)) is None
    assert client.post(f"{BASE}/logout", data={"csrf_token": csrf}).status_code == 303
    client.cookies.set("tidegauge_session", kept)
    assert client.get(f"{BASE}/api/v1/session").status_code == 401


# --- attacks ---------------------------------------------------------------------------------------------------------


def test_session_cannot_be_chosen_by_somebody_else(opened: Opened, own: Store) -> None:
    client, token = opened(), token_of(own)
    log_in(client, token)
    planted = client.cookies["tidegauge_session"]
    victim = opened()
    victim.cookies.set("tidegauge_session", planted)
    log_in(victim, token_of(own, "operator", "victim"))
    assert own.session(planted, wall()) is None, "the session that the browser brought is over"
    fresh = [cookie.value for cookie in victim.cookies.jar if cookie.name == "tidegauge_session"]
    assert any(value != planted and value and own.session(value, wall()) for value in fresh)


def test_header_of_a_proxy_is_believed_from_a_proxy_only(opened: Opened) -> None:
    forged = {"x-forwarded-user": "root", "x-forwarded-groups": "admins", "x-forwarded-for": "127.0.0.1"}
    config: Any = {"proxies": (PROXY,), "operator_groups": ("admins",)}
    assert opened(FAR, **config).get(f"{BASE}/api/v1/session", headers=forged).status_code == 401
    assert opened("127.0.0.1", True, **config).get(f"{BASE}/api/v1/session", headers=forged).status_code == 401
    true = opened(PROXY, **config).get(f"{BASE}/api/v1/session", headers=forged)
    assert (true.json()["name"], true.json()["role"], true.json()["by"]) == ("root", "operator", "proxy")
    plain = opened(PROXY, **config).get(f"{BASE}/api/v1/session", headers={"x-forwarded-user": "guest"})
    assert plain.json()["role"] == "viewer"
    both = Asked(PROXY, {"x-forwarded-user": ["guest", "root"]})
    with pytest.raises(Ambiguous):
        Places(AccessConfig(**config), loopback=False).by_proxy(both)
    joined = opened(PROXY, **config).get(f"{BASE}/api/v1/session", headers={"x-forwarded-user": "guest, root"})
    assert joined.status_code == 401
    assert opened(PROXY, **config).get(f"{BASE}/api/v1/session").status_code == 401


def test_only_this_computer_needs_no_token(opened: Opened) -> None:
    def status(address: str, loopback: bool, host: str, headers: dict[str, str] | None = None, **config: Any) -> int:
        client = opened(address, loopback, host, **config)
        return int(client.get(f"{BASE}/api/v1/session", headers=headers).status_code)

    assert status("127.0.0.1", True, "localhost:8420") == 200
    assert status("::1", True, "[::1]:8420") == 200
    assert status("127.0.0.1", False, "localhost:8420") == 401, "others reach us as well: a forwarded port looks so"
    assert status("127.0.0.1", True, "evil.example.org") == 401, "a page made its own name mean this computer"
    assert status("127.0.0.1", True, "localhost", {"x-forwarded-for": FAR}) == 401, "a proxy that nobody named"
    assert status("127.0.0.1", True, "localhost", local="none") == 401
    assert status(FAR, True, "localhost") == 401


def test_change_from_a_browser_needs_the_token_of_a_page(opened: Opened, own: Store) -> None:
    client = opened("127.0.0.1", True, "127.0.0.1:8420")
    csrf = client.get(f"{BASE}/api/v1/session").json()["csrf_token"]
    out = f"{BASE}/logout"
    assert client.post(out).status_code == 403
    assert client.post(out, data={"csrf_token": "0" * 64}).status_code == 403
    assert client.post(out, headers={"x-csrf-token": csrf, "sec-fetch-site": "cross-site"}).status_code == 403
    assert client.post(out, content=f"csrf_token={csrf}", headers={"content-type": "text/plain"}).status_code == 403
    assert client.post(out, data={"csrf_token": csrf}).status_code == 303
    assert client.post(out, headers={"x-csrf-token": csrf}).status_code == 303
    other = opened()
    log_in(other, token_of(own))
    assert other.post(out, headers={"x-csrf-token": csrf}).status_code == 403, "another visitor's token"


def test_other_site_cannot_log_a_browser_in(opened: Opened, own: Store) -> None:
    attacker, victim, token = opened(), opened(), token_of(own)
    page = attacker.get(f"{BASE}/login").text
    field = re.search(r'value="([0-9a-f]{64})"', page)
    assert field is not None
    assert victim.post(f"{BASE}/login", data={"csrf_token": field[1], "token": token}).status_code == 403
    victim.get(f"{BASE}/login")  # has a form of its own, and still not that one
    assert victim.post(f"{BASE}/login", data={"csrf_token": field[1], "token": token}).status_code == 403


def test_token_in_an_address_is_refused(opened: Opened, own: Store) -> None:
    client, token = opened(), token_of(own)
    for name in ("token", "access_token", "Bearer", "api_key"):
        for headers in ({}, bear(token)):
            answer = client.get(f"{BASE}/api/v1/session", params={name: token}, headers=headers)
            assert answer.status_code == 400 and "revoke" in answer.json()["detail"]


def test_guessing_is_slowed_down_for_the_address_that_guesses(opened: Opened, own: Store) -> None:
    client, token = opened(attempts_per_minute=3), token_of(own)
    statuses = [client.get(f"{BASE}/api/v1/session", headers=bear(f"guess-{i}")).status_code for i in range(5)]
    assert statuses == [401, 401, 401, 429, 429]
    late = client.get(f"{BASE}/api/v1/session", headers=bear(token))
    assert late.status_code == 429 and 1 <= int(late.headers["retry-after"]) <= 60
    assert log_in(client, token).status_code == 429, "the form counts with the header"
    assert log_in(opened(), token).status_code == 303
    assert any(deed.action == "login refused" and deed.address == FAR for deed in own.deeds())


def test_proxy_is_not_who_guesses(opened: Opened, own: Store) -> None:
    client, token = opened(PROXY, proxies=(PROXY,), attempts_per_minute=2), token_of(own)
    for i in range(4):
        client.get(f"{BASE}/api/v1/session", headers={**bear(f"guess-{i}"), "x-forwarded-for": "1.1.1.1, 198.51.100.9"})
    other = client.get(f"{BASE}/api/v1/session", headers={**bear(token), "x-forwarded-for": "198.51.100.8"})
    forged = client.get(f"{BASE}/api/v1/session", headers={**bear(token), "x-forwarded-for": "8.8.8.8, 198.51.100.9"})
    assert (other.status_code, forged.status_code) == (200, 429)


@pytest.mark.parametrize(
    "path",
    [
        "static/../web.py",
        "static/..%2fweb.py",
        "static/%2e%2e/web.py",
        "static//etc/passwd",
        "static/%00",
        "..%2f..%2fetc",
    ],
)
def test_no_path_leads_out(opened: Opened, path: str) -> None:
    answer = opened("127.0.0.1", True, "127.0.0.1").get(f"{BASE}/{path}")
    assert answer.status_code in (400, 404) and "import" not in answer.text


def test_too_many_at_once_are_told_so_with_all_headers() -> None:
    async def crowd() -> tuple[httpx.Response, httpx.Response, httpx.Response]:
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            entered.set()
            await go_on.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"served"})

        transport = httpx.ASGITransport(limited(slow, 1))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://collector") as client:
            first = asyncio.create_task(client.get("/"))
            await entered.wait()
            second = await client.get("/reports/a/b/report.html")
            go_on.set()
            served, later = await first, await client.get("/")
        full = httpx.ASGITransport(limited(slow, 1, lambda: True))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=full, base_url="http://collector") as client:
            assert (await client.get("/")).status_code == 503
        return served, second, later

    served, refused, later = asyncio.run(crowd())
    assert (served.status_code, refused.status_code, later.status_code) == (200, 503, 200)
    assert refused.headers["content-security-policy"] and refused.headers["retry-after"] == "5"


# --- pure ------------------------------------------------------------------------------------------------------------


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_one_comes_back_to_a_page_of_this_collector_only(target: str) -> None:
    for given_target in (target, f"/tide/{target}", f"//{target}", f"/tide//{target}"):
        found = inside("/tide", given_target)
        assert found.startswith("/tide/") and "\\" not in found and "\n" not in found
    assert inside("", f"//{target}") == "/"
    assert inside("/tide", "/tide/bundles/a?b=1") == "/tide/bundles/a?b=1" and inside("", "/login?next=/") == "/"


@given(st.lists(st.text(max_size=20), max_size=4), st.text(max_size=20))
@settings(max_examples=200, deadline=None)
def test_client_behind_a_proxy_is_an_address_whatever_was_forged(lines: list[str], peer: str) -> None:
    places = Places(AccessConfig(proxies=(PROXY,)), loopback=False)
    assert places.client(Asked(PROXY, {"x-forwarded-for": lines})) is not None
    assert places.client(Asked(FAR, {"x-forwarded-for": lines})) == FAR
    assert places.by_proxy(Asked(peer, {"x-forwarded-user": ["root"]})) is None
    neighbourhood(peer)


def test_addresses_and_headers() -> None:
    assert neighbourhood("2001:db8::1") == neighbourhood("2001:db8::ffff") != neighbourhood("2001:db8:0:1::1")
    assert neighbourhood("::ffff:192.0.2.7") == "192.0.2.7"
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("::") and not is_loopback("collector")
    assert bearer("Bearer abc") == "abc" and bearer("Basic abc") == "" and bearer("") is None


def test_rate_limit_fills_again_and_forgets_nobody_wrongly() -> None:
    limit = RateLimit(burst=2, per_minute=60)
    assert [limit.take("a", 0.0), limit.take("a", 0.0)] == [0.0, 0.0]
    assert limit.take("a", 0.0) == 1.0 and limit.take("b", 0.0) == 0.0
    assert limit.wait("a", 0.5) == 0.5 and limit.take("a", 1.0) == 0.0 and limit.take("a", 1.0) == 1.0
