"""What is made of an answer beside the accelerator's next run: in a thread of its own, one at a time, in order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from tidegauge.pipeline.channel import ChannelClosed


class Aside:
    """Work that is put aside, to be done by a thread once the caller waits for something else, or by the caller itself.

    `failed` is called, in that thread, when the work raises: the caller may be waiting for a message. The error itself
    is raised by the next call of any method.
    """

    def __init__(self, failed: Callable[[], None]) -> None:
        self._failed = failed
        self._pool = ThreadPoolExecutor(1, "aside")
        self._waiting: Callable[[], None] | None = None
        self._under_way: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left undone, unless another error ends it. What the work has raised is why a channel was left."""
        try:
            if error is None or isinstance(error, ChannelClosed):
                self.finish()
        finally:
            self._pool.shutdown()

    @property
    def waiting(self) -> bool:
        """Something has been put aside, and not been begun."""
        return self._waiting is not None

    def put(self, work: Callable[[], None]) -> None:
        """Put it aside; all that was before is done first."""
        self.finish()
        self._waiting = work

    def begin(self) -> None:
        """Let the thread do what was put aside, if anything was."""
        work, self._waiting = self._waiting, None
        if work is not None:
            self._settle()
            self._under_way = self._pool.submit(self._told, work)

    def finish(self) -> None:
        """Return when all of it is done."""
        self._settle()
        work, self._waiting = self._waiting, None
        if work is not None:
            work()

    def _settle(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def _told(self, work: Callable[[], None]) -> None:
        done = False
        try:
            work()
            done = True
        finally:
            if not done:
                self._failed()
