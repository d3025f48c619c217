"""Security headers of every answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tidegauge.collector.compare_process import HTML

#: Pages of this program have no inline script or style, and nothing from any other host.
PAGES = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; frame-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'self'"
)
#: A report is one file with all in it, made from what a device sent: it may draw, and reach nothing else.
REPORT = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
)

Headers = list[tuple[bytes, bytes]]


def with_security(path: str, headers: Iterable[tuple[bytes, bytes]], secure: bool) -> Headers:
    """An answer's headers and those that no answer goes without; `secure`: the browser came by https."""
    given = list(headers)
    names = {name.lower() for name, _ in given}
    added = [
        (b"content-security-policy", (REPORT if is_report(path) else PAGES).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"same-origin"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    ]
    if secure:
        added.append((b"strict-transport-security", b"max-age=31536000"))
    if b"cache-control" not in names:
        added.append((b"cache-control", b"no-cache" if "/static/" in path else b"no-store"))
    return [(name, value) for name, value in given if name.lower() != b"content-security-policy"] + added


def is_report(path: str) -> bool:
    """Whether a path is that of a self-contained report."""
    return "/reports/" in path and path.endswith(f"/{HTML}")
