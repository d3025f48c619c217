"""No more requests at once than a process can serve; the rest hears so at once, with the headers of every answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar.types import ASGIApp

from tidegauge.collector.headers import with_security

_BODY = b'{"status_code":503,"detail":"too many requests at once: try again in a moment"}'


def limited(app: Any, most: int, full: Callable[[], bool] = lambda: False) -> ASGIApp:
    """The application, answering 503 while `most` requests are under way, or the process is `full` of connections."""
    busy = 0

    async def reached(scope: Any, receive: Any, send: Any) -> None:
        nonlocal busy
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        if busy >= most or full():
            await _refuse(scope, send)
            return
        busy += 1
        try:
            await app(scope, receive, send)
        finally:
            busy -= 1

    return reached


async def _refuse(scope: Any, send: Any) -> None:
    given = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(_BODY)).encode()),
        (b"retry-after", b"5"),
        (b"connection", b"close"),
    ]
    headers = with_security(scope["path"], given, secure=False)
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": _BODY})
