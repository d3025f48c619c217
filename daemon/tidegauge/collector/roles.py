"""Who asks, by what they show: a token, a session, the word of a proxy, or a place on this computer. Pure."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from tidegauge.collector.config import AccessConfig

Role = Literal["viewer", "operator"]
By = Literal["nobody", "token", "session", "proxy", "local"]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LOCAL_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.ASCII | re.IGNORECASE)
#: What a proxy adds to what it forwards. Such a request does not come from this computer, wherever it arrives from.
_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
#: A name as a person can read it in a log. A comma: a header that came twice was joined on its way.
_NAME = re.compile(r"[^\x00-\x1f\x7f,]{1,128}")
#: Parameters under which somebody may put a token into an address, where it ends in logs and histories.
QUERY_TOKENS = frozenset({"token", "access_token", "bearer", "bearer_token", "auth_token", "authorization", "api_key"})


class Visitor(msgspec.Struct, frozen=True):
    """Who asks. `role` "" for nobody known. `by`: how they are known. `anchor`: what their CSRF token is bound to."""

    name: str = ""
    role: Role | Literal[""] = ""
    by: By = "nobody"
    anchor: str = ""

    @property
    def may_view(self) -> bool:
        return self.role != ""

    @property
    def may_operate(self) -> bool:
        return self.role == "operator"

    @property
    def logged_in(self) -> bool:
        """Whether there is a session that can be ended."""
        return self.by == "session"


NOBODY = Visitor()


class Asked(msgspec.Struct, frozen=True):
    """A request, as far as it says who asks. `headers`: lower-case names, all values of each, in their order."""

    peer: str
    headers: Mapping[str, Sequence[str]]
    scheme: str = "http"

    def header(self, name: str) -> str:
        """The only value of a header; "" where there is none. Raises Ambiguous where there are several."""
        values = self.headers.get(name.lower(), ())
        if len(values) > 1:
            raise Ambiguous(name)
        return values[0] if values else ""


class Ambiguous(ValueError):
    """A header that must come once comes twice: somebody has added to what a proxy said."""


class Places:
    """Which addresses are proxies, and whether this computer is the only one that reaches us.

    `loopback`: whether we listen on a loopback address only.
    """

    def __init__(self, config: AccessConfig, loopback: bool) -> None:
        self._config, self._loopback = config, loopback
        self._proxies = [ipaddress.ip_network(each, strict=False) for each in config.proxies]

    def is_proxy(self, address: str) -> bool:
        found = address_of(address)
        return found is not None and any(found in network for network in self._proxies)

    def client(self, asked: Asked) -> str:
        """The address of who asks: behind proxies of ours the last one that is none of them."""
        if not self.is_proxy(asked.peer):
            return asked.peer
        hops = [hop.strip() for line in asked.headers.get("x-forwarded-for", ()) for hop in line.split(",")]
        for hop in reversed(hops):
            if address_of(hop) is None:
                return asked.peer
            if not self.is_proxy(hop):
                return hop
        return asked.peer

    def secure(self, asked: Asked) -> bool:
        """Whether the browser came by https: to us, or to a proxy of ours."""
        if asked.scheme == "https":
            return True
        return self.is_proxy(asked.peer) and asked.headers.get("x-forwarded-proto", ("",))[-1].lower() == "https"

    def by_proxy(self, asked: Asked) -> Visitor | None:
        """Whom a proxy of ours has let through; None where none of them says. Raises Ambiguous."""
        config = self._config
        if not config.user_header or not self.is_proxy(asked.peer):
            return None
        name = asked.header(config.user_header)
        if _NAME.fullmatch(name) is None:
            return None
        groups = [each.strip() for each in asked.header(config.group_header).split(",")] if config.group_header else []
        operates = _matches(name, config.operators) or any(_matches(group, config.operator_groups) for group in groups)
        return Visitor(name, "operator" if operates else "viewer", "proxy", f"proxy:{name}")

    def local(self, asked: Asked) -> Visitor | None:
        """A person or program on this computer, where nobody else can reach us; None otherwise.

        A browser on this computer may be sent here by a page from anywhere, under a name of that page's choice: so the
        name must be one of this computer's own. What a proxy forwards is not from here.
        """
        role, peer = self._config.local, address_of(asked.peer)
        if role == "none" or not self._loopback or peer is None or not peer.is_loopback or self.is_proxy(asked.peer):
            return None
        if any(name in asked.headers for name in _FORWARDED):
            return None
        hosts = asked.headers.get("host", ())
        if len(hosts) != 1 or _LOCAL_HOST.fullmatch(hosts[0]) is None:
            return None
        return Visitor("local", role, "local", "local")


def address_of(text: str) -> Address | None:
    """An address without its port; IPv4 inside IPv6 is IPv4. None for anything else."""
    try:
        found = ipaddress.ip_address(text.strip().strip("[]"))
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped if mapped is not None else found


def neighbourhood(address: str) -> str:
    """What is counted together: an IPv4 address, or the /64 of an IPv6 address, which one person has in whole."""
    found = address_of(address)
    if found is None:
        return "unknown"
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def is_loopback(host: str) -> bool:
    """Whether what listens on `host` is reached from this computer only."""
    found = address_of(host)
    return host.lower() == "localhost" or (found is not None and found.is_loopback)


def bearer(value: str) -> str | None:
    """The token of a header `Authorization: Bearer …`; "" for another scheme or none given, None where absent."""
    if not value:
        return None
    scheme, _, token = value.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def digest_of(secret: str) -> str:
    """As a token or session is kept. 256 random bits need no slow hash: there is nothing to guess from."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def csrf(secret: bytes, anchor: str) -> str:
    """The token that a page of ours carries and other pages can't read: bound to whose page it is."""
    return hmac.new(secret, b"csrf\0" + anchor.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()


def same(one: str, other: str) -> bool:
    """Whether two secrets are the same, in the same time whether or not."""
    return hmac.compare_digest(one.encode("utf-8", "surrogateescape"), other.encode("utf-8", "surrogateescape"))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
