"""Typed events between the agent's parts. Handlers must not block; long work has its own task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

E = TypeVar("E")


class Bus:
    """Hands each event to the handlers of its type, in the order they were registered, before `emit` returns.

    An event emitted by a handler is handled after the present one, so handlers never nest.
    """

    def __init__(self) -> None:
        self._handlers: dict[type, list[Callable[[Any], None]]] = defaultdict(list)
        self._queue: list[Any] = []
        self._busy = False

    def on(self, kind: type[E], handler: Callable[[E], None]) -> None:
        self._handlers[kind].append(handler)

    def emit(self, event: object) -> None:
        self._queue.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._queue:
                present = self._queue.pop(0)
                for handler in self._handlers[type(present)]:
                    handler(present)
        finally:
            self._busy = False
            self._queue.clear()
