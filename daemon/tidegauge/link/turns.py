"""Packets are made ready side by side, and leave in the order in which they were begun."""

from __future__ import annotations

import asyncio


class Turn:
    """A place in a row. What is done between `come` and the next `await` is done before the next turn comes."""

    def __init__(self, before: asyncio.Future[None] | None) -> None:
        self._before = before
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def come(self) -> None:
        """Wait until all before have come, or given up."""
        if self._before is not None:
            await asyncio.shield(self._before)
        self._end()

    def over(self) -> None:
        """Hold nobody up any more, come or not."""
        if self._before is None or self._before.done():
            self._end()
        else:
            self._before.add_done_callback(self._end)

    def _end(self, *_: object) -> None:
        self._before = None
        if not self._over.done():
            self._over.set_result(None)


class Turns:
    """Gives turns, one after another, in one event loop."""

    def __init__(self) -> None:
        self._last: asyncio.Future[None] | None = None

    def take(self) -> Turn:
        turn = Turn(self._last)
        self._last = turn._over
        return turn
