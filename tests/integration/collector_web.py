"""The collector's web application in a test's own process, reached as from an address of the test's choice."""

from __future__ import annotations

from typing import Any

from litestar.types import ASGIApp


def from_here(app: Any, address: str = "127.0.0.1", scheme: str = "http") -> ASGIApp:
    """The application as somebody at `address` reaches it."""

    async def reached(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope = {**scope, "client": (address, 50000), "scheme": scheme}
        await app(scope, receive, send)

    return reached
