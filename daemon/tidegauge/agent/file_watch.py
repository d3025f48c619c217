"""Files whose change matters to a running agent: a cheap signature of them, and a wake-up when their folder changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer

log = logging.getLogger(__name__)

#: What says that a file has become another one. Reading says nothing: each new session opens the artifacts.
_EVENTS: list[type[FileSystemEvent]] = [
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
]

#: By path: inode, size, modification time in nanoseconds; None for what is not there.
Signature = dict[str, tuple[int, int, int] | None]


def signature(paths: Iterable[Path]) -> Signature:
    """Of files, and of the files in folders (not of what lies deeper). Reads nothing but their entries."""
    found: Signature = {}
    for path in paths:
        try:
            files = [each for each in path.iterdir() if each.is_file()] if path.is_dir() else [path]
        except OSError:
            files = [path]
        for file in files:
            try:
                status = file.stat()
            except OSError:
                found[str(file)] = None
                continue
            found[str(file)] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found


class _Handler(FileSystemEventHandler):
    """Runs in watchdog's thread."""

    def __init__(self, watch: FileWatch) -> None:
        self._watch = watch

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._watch.told()


class FileWatch:
    """Folders watched by inotify. `subscribe()` for each part that looks after some of their files.

    Where the kernel tells nothing (a network file system, no watches left, a folder that was replaced by a rename),
    whoever waits looks again after its own period: a wake-up is a hint, the signature decides.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = sorted({folder.resolve() for folder in folders})
        self._events: list[asyncio.Event] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._observer: Any = None

    def subscribe(self) -> asyncio.Event:
        """An event that is set when something may have changed."""
        event = asyncio.Event()
        self._events.append(event)
        return event

    def start(self) -> None:
        """From the event loop. A folder that can't be watched is said, and looked at by the clock alone."""
        self._loop = asyncio.get_running_loop()
        self._observer = Observer()
        self._observer.start()
        for folder in self._folders:
            try:
                self._observer.schedule(_Handler(self), str(folder), event_filter=_EVENTS)
            except OSError as error:
                log.warning("changes in %s are seen by the clock only (%s)", folder, error.strerror or error)

    def stop(self) -> None:
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            observer.join()
        self._loop = None

    def told(self) -> None:
        """Something in a folder has changed; from any thread."""
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        """Let everybody look now; from the loop's thread."""
        for event in self._events:
            event.set()


async def wait(event: asyncio.Event, period: float) -> None:
    """Until the event is set, or the period in seconds has passed; the event is cleared."""
    try:
        async with asyncio.timeout(period):
            await event.wait()
    except TimeoutError:
        pass  # nobody told: look all the same
    event.clear()


async def settled(paths: Iterable[Path], seconds: float, most: float) -> Signature:
    """The signature once it has stayed the same for `seconds`, or after `most` seconds whatever it is."""
    watched = tuple(paths)
    present = signature(watched)
    loop = asyncio.get_running_loop()
    end = loop.time() + most
    while loop.time() < end:
        await asyncio.sleep(seconds)
        later = signature(watched)
        if later == present:
            break
        present = later
    return present
