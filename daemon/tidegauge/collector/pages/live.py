"""Live pages by server-sent events: the browser waits, the server looks, and tells when a page says something else.

Everything that pages show is in the database, which any process of this collector may change. So each process looks for
itself, once for all browsers that have the same page open, and only while one has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from litestar import Request
from litestar.exceptions import HTTPException, ServiceUnavailableException
from litestar.response import Stream
from sqlalchemy.exc import SQLAlchemyError

from tidegauge.clocks import monotonic
from tidegauge.collector.log_kinds import STORAGE_FAILED
from tidegauge.collector.pages.common import Shown, digest
from tidegauge.errors import TidegaugeError

_log = logging.getLogger(__name__)

#: Browsers that may wait at once, in this process.
MOST = 100
#: Seconds between two looks at a page, and at least so many times as long as a look takes.
PERIOD, SHARE = 1.0, 20.0
#: A comment after so many silent seconds keeps proxies from taking a quiet stream for a dead one.
HEARTBEAT = 15.0
#: A stream ends after so many seconds, and the browser asks again: then it is looked at anew who asks.
LIFE = 900.0
_HEADERS = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}


class Feed:
    """One page, looked at for all who have it open. `version`: "" until the first look; `gone`: why it ended."""

    def __init__(self, look: Callable[[], str]) -> None:
        self.readers, self.version, self.gone = 0, "", ""
        self._look, self._changed = look, asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def changed(self, seconds: float) -> None:
        """Returns at the next change, or after a time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def _run(self) -> None:
        while not self.gone:
            began = monotonic()
            try:
                self.tell(await asyncio.to_thread(self._look))
            except HTTPException as error:
                self.end(error.detail)
            except (SQLAlchemyError, TidegaugeError, OSError) as error:
                _log.warning("a live page can't be looked at, and is tried again: %s", error, extra=STORAGE_FAILED.of())
            await asyncio.sleep(max(PERIOD, SHARE * (monotonic() - began)))

    def tell(self, version: str) -> None:
        if version != self.version:
            self.version = version
            self._wake()

    def end(self, why: str) -> None:
        self.gone = why
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Feeds:
    """The pages that are open. For one event loop."""

    def __init__(self, most: int = MOST) -> None:
        self._feeds: dict[str, Feed] = {}
        self._most, self._readers, self._closing = most, 0, asyncio.Event()

    def close(self) -> None:
        """All streams end soon: the process stops."""
        self._closing.set()
        for feed in self._feeds.values():
            feed.task.cancel()
            feed.end("the collector stops")

    async def versions(self, topic: str, look: Callable[[], str], first: str) -> AsyncIterator[bytes]:
        """Events `version`, with the version of the page under this topic: `first`, and what comes of it."""
        feed = self._join(topic, look)
        try:
            last, ends = first, monotonic() + LIFE
            yield f"retry: 3000\nevent: version\ndata: {last}\n\n".encode()
            while not feed.gone and monotonic() < ends:
                if feed.version in ("", last):
                    await feed.changed(HEARTBEAT)
                if feed.version in ("", last):
                    yield b": still here\n\n"
                else:
                    last = feed.version
                    yield f"event: version\ndata: {last}\n\n".encode()
        finally:
            self._leave(topic, feed)

    def full(self) -> bool:
        return self._readers >= self._most or self._closing.is_set()

    def _join(self, topic: str, look: Callable[[], str]) -> Feed:
        feed = self._feeds.get(topic)
        if feed is None or feed.gone:
            feed = self._feeds[topic] = Feed(look)
        feed.readers += 1
        self._readers += 1
        return feed

    def _leave(self, topic: str, feed: Feed) -> None:
        self._readers -= 1
        feed.readers -= 1
        if feed.readers == 0:
            feed.task.cancel()
            if self._feeds.get(topic) is feed:
                del self._feeds[topic]


async def stream(request: Request[Any, Any, Any], shown: Callable[[], Shown]) -> Stream:
    """The answer of an event stream. Its path ends with `/events`, so that nothing compresses and holds it back.

    Raises HTTPException where there is no such page, or too many are open.
    """
    feeds: Feeds = request.app.state.feeds
    if feeds.full():
        raise ServiceUnavailableException(
            "too many pages are open; this one is not live", headers={"retry-after": "30"}
        )
    topic = f"{request.scope['path']}?{request.scope['query_string'].decode('latin-1')}"
    first = await asyncio.to_thread(lambda: digest(shown()))
    versions = feeds.versions(topic, lambda: digest(shown()), first)
    return Stream(versions, media_type="text/event-stream", headers=_HEADERS)
