"""Collecting trace files while the accelerator writes them.

TIDL opens, closes and reopens a file and appends to it in pieces, and writes a super-tiled layer's again for each tile,
so that neither a close nor the full size says that a trace is complete: it is when it has the size that its name tells
and the next one has been opened, or when the run has returned. Complete ones are moved out at once, since the trace
folder is usually RAM and a full one hangs the C7x.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from math import prod
from pathlib import Path

from watchdog.events import FileCreatedEvent, FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from tidegauge.agent.completeness import ELEMENT_BYTES
from tidegauge.tidl import trace_names

log = logging.getLogger(__name__)


def is_trace(name: str) -> bool:
    return trace_names.parse(name) is not None


def may_be_whole(name: str, size: int) -> bool:
    """Whether a trace of this name can have so many bytes, whatever its element type. How much padding a padded one
    has is not in its name."""
    trace = trace_names.parse(name)
    if trace is None or trace.kind == "padded":
        return trace is not None and size > 0
    return size in {width * prod(trace.dims) for width in ELEMENT_BYTES}


def stale_traces(folder: Path) -> list[Path]:
    """Traces that lie in the folder already."""
    return sorted(path for path in folder.iterdir() if is_trace(path.name) and path.is_file())


class _Handler(FileSystemEventHandler):
    """Runs in watchdog's thread: hands each new trace's path to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, created: asyncio.Queue[Path | None]) -> None:
        self._loop, self._created = loop, created

    def on_created(self, event: FileSystemEvent) -> None:
        path = Path(str(event.src_path))
        if isinstance(event, FileCreatedEvent) and is_trace(path.name):
            self._loop.call_soon_threadsafe(self._created.put_nowait, path)


class TraceCollector:
    """Moves traces from `source` to `target` as they complete. Use: `start()`, run the model, `finish()`."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target
        self._created: asyncio.Queue[Path | None] = asyncio.Queue()  # None: the run has returned
        self._observer = Observer()
        self._moved: dict[str, Path] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._target.mkdir(parents=True, exist_ok=True)
        handler = _Handler(asyncio.get_running_loop(), self._created)
        self._observer.schedule(handler, str(self._source), event_filter=[FileCreatedEvent])
        self._observer.start()
        self._task = asyncio.create_task(self._follow(), name="traces")

    async def _follow(self) -> None:
        """Move each trace out when its successor appears, but for one whose size says that it isn't whole."""
        waiting: list[Path] = []
        while (new := await self._created.get()) is not None:
            waiting = [path for path in waiting if path == new or not await asyncio.to_thread(self._move_whole, path)]
            if new not in waiting:
                waiting.append(new)

    def _move_whole(self, path: Path) -> bool:
        if not may_be_whole(path.name, path.stat().st_size):
            return False
        self._move(path)
        return True

    def _move(self, path: Path) -> None:
        target = self._target / path.name
        shutil.copyfile(path, target)
        path.unlink()
        self._moved[path.name] = target

    async def finish(self) -> list[Path]:
        """Call after the run has returned: moves the rest; returns all traces in the order they were written."""
        assert self._task is not None
        self._created.put_nowait(None)
        await self._task
        self._observer.stop()
        await asyncio.to_thread(self._observer.join)
        rest = stale_traces(self._source)
        for path in rest:
            await asyncio.to_thread(self._move, path)
        return list(self._moved.values())
