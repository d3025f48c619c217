"""A long-running coroutine that another part of the event loop may have started anew, with other settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Restartable:
    """Runs one body at a time. `restart` cancels it, so that its `finally` clauses leave things in order."""

    def __init__(self) -> None:
        self._scope: asyncio.Timeout | None = None

    def restart(self) -> None:
        """From the event loop's thread. Does nothing where no body runs, or one is being cancelled already."""
        scope = self._scope
        if scope is not None and not scope.expired():
            scope.reschedule(asyncio.get_running_loop().time())

    async def run(self, body: Callable[[], Awaitable[None]]) -> bool:
        """Run the body. True where `restart` ended it, False where it has ended by itself. What it raises is raised."""
        try:
            async with asyncio.timeout(None) as scope:
                self._scope = scope
                await body()
        except TimeoutError:
            if not scope.expired():
                raise  # the body's own
            return True
        finally:
            self._scope = None
        return False
