"""The HTTP protocol of the web server, where it answers by itself: what is no HTTP never reaches the application."""

from __future__ import annotations

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidegauge.collector.headers import with_security


class Protocol(H11Protocol):
    """uvicorn's, with the headers of every answer."""

    def send_400_response(self, msg: str) -> None:
        """Say that this was no request, and hang up."""
        said = msg.encode("ascii")
        given = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(said)).encode()),
            (b"connection", b"close"),
        ]
        headers = with_security("", given, secure=False)
        answer = (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=said),
            h11.EndOfMessage(),
        )
        for event in answer:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
