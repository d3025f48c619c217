"""The programs of `bench_link.py`, each a process of its own: `python link_programs.py ROLE SETTINGS`.

`SETTINGS` is the JSON of `Settings`. Each prints "ready" when it is, and one line of JSON at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Literal

import aiomqtt
import msgspec

from tidegauge.bundles.manifest import StoredTensor
from tidegauge.bundles.writer import BundleWriter
from tidegauge.clocks import stamp
from tidegauge.evaluation.durability_history import PLAIN
from tidegauge.link.config import LinkConfig
from tidegauge.link.uplink import Uplink
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.store import Spool
from tidegauge.tensors import TensorSpec

DEVICE = "bench"
DATA, DONE = "bench/data", "bench/done"


class Settings(msgspec.Struct, frozen=True):
    """`bytes` of one bundle in `blobs` equal parts; `bundles` of them in turn, each over a new connection."""

    port: int
    folder: str
    bytes: int
    blobs: int = 8
    bundles: int = 1
    chunk: int = 256 * 1024
    window: int = 8
    ca: str = ""
    wait_for_done: bool = True
    pull: Literal["all", "suspicious"] = "all"

    def link(self) -> LinkConfig:
        return LinkConfig(
            port=self.port,
            ca=self.ca,
            chunk_bytes=self.chunk,
            window_chunks=self.window,
            backoff_first=0.05,
            backoff_most=0.2,
            connect_jitter=0.0,
            mib_per_day=1 << 20,
            answer_timeout=5.0,
        )

    def client(self) -> aiomqtt.Client:
        tls = ssl.create_default_context(cafile=self.ca) if self.ca else None
        return aiomqtt.Client("127.0.0.1", self.port, tls_context=tls, max_queued_outgoing_messages=0)


class Sent(msgspec.Struct, frozen=True):
    """Seconds from the first byte to the last word; of the board also its extra resident bytes and the loop's lag."""

    seconds: float
    extra_bytes: int = 0
    lag_p99: float = 0.0
    lag_hashing_p99: float = 0.0


def say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


# --- raw: what the client library and the broker can do ---


async def subscriber(settings: Settings) -> None:
    """Write and sync the bytes, without a look at them."""
    async with settings.client() as client:
        await client.subscribe(DATA, qos=1)
        left = settings.bytes
        with (Path(settings.folder) / "raw").open("wb") as file:
            say(b"ready")
            async for message in client.messages:
                assert isinstance(message.payload, bytes)
                file.write(message.payload)
                left -= len(message.payload)
                if left <= 0:
                    break
            file.flush()
            os.fsync(file.fileno())
        await client.publish(DONE, b"", qos=1)
    say(msgspec.json.encode(Sent(0.0)))


async def publisher(settings: Settings) -> None:
    """As many chunks in flight to the broker as the window holds."""
    payload, window = Random(1).randbytes(settings.chunk), asyncio.Semaphore(settings.window)
    async with settings.client() as client:
        await client.subscribe(DONE, qos=1)
        say(b"ready")
        began = time.monotonic()

        async def send() -> None:
            try:
                await client.publish(DATA, payload, qos=1)
            finally:
                window.release()

        async with asyncio.TaskGroup() as group:
            for _ in range(settings.bytes // settings.chunk):
                await window.acquire()
                group.create_task(send())
        if settings.wait_for_done:
            await anext(aiter(client.messages))
        say(msgspec.json.encode(Sent(time.monotonic() - began)))


# --- ours ---


async def collector(settings: Settings) -> None:
    """The collector's own way from the broker to disk and database, without pages and comparisons."""
    from tidegauge.collector.blobs import BlobStore
    from tidegauge.collector.config import LimitsConfig, PullConfig, PullRule
    from tidegauge.collector.connection import BrokerLink
    from tidegauge.collector.ingest import Ingest
    from tidegauge.collector.metrics import CollectorMetrics
    from tidegauge.collector.partial import FolderPartials
    from tidegauge.collector.presence import Presence
    from tidegauge.collector.shelf import Shelf
    from tidegauge.collector.store import Store
    from tidegauge.collector.transfer_rows import Claimant

    folder = Path(settings.folder)
    store = Store(folder / "collector.sqlite")
    metrics = CollectorMetrics(store)
    me = Presence(store.collector(), "the-collector", "bench", store.made(), "serving")
    link = BrokerLink(settings.link(), me, metrics.connected)
    blobs, partials = BlobStore(folder / "blobs"), FolderPartials(folder / "partial")
    pull = PullConfig((PullRule(settings.pull),))
    alone = Claimant(me.instance, 15.0)
    shelf = Shelf(store, blobs, partials, LimitsConfig(), metrics, lambda *_: None, alone, pull=pull)
    ingest = Ingest(shelf, link.publish)
    async with asyncio.TaskGroup() as group:
        group.create_task(ingest.run())
        group.create_task(link.run(ingest.put))
        while not link.connected:  # noqa: ASYNC110 # nobody signals it
            await asyncio.sleep(0.02)
        say(b"ready")


def sources(settings: Settings) -> list[Path]:
    """Random files, as a capture has left its traces."""
    paths = [Path(settings.folder) / f"part-{number}" for number in range(settings.blobs)]
    for path in paths:
        path.write_bytes(os.urandom(settings.bytes // settings.blobs))
    return paths


def make(spool: Spool, bundle: str, settings: Settings, parts: list[Path]) -> None:
    writer = BundleWriter(spool.prepare(bundle, settings.bytes + (1 << 20), settings.blobs + 16))
    tensors = []
    for number, path in enumerate(parts):
        blob = writer.add_file(path, "raw")
        tensors.append(StoredTensor(TensorSpec(f"t{number}", (blob.size,), "uint8"), blob))
    manifest = msgspec.structs.replace(PLAIN, bundle_id=bundle, device=DEVICE, created=stamp(), inputs=tuple(tensors))
    writer.seal(manifest)
    spool.commit(bundle)


class Watch:
    """Resident bytes and the loop's lag, looked at every few milliseconds while it is on."""

    def __init__(self) -> None:
        self.peak, self.lags = 0, [0.0]
        self._stop = threading.Event()

    @contextlib.asynccontextmanager
    async def on(self):  # type: ignore[no-untyped-def]
        self._stop.clear()
        thread = threading.Thread(target=self._memory)
        thread.start()
        task = asyncio.create_task(self._lag())
        try:
            yield self
        finally:
            self._stop.set()
            task.cancel()
            await asyncio.to_thread(thread.join)

    def _memory(self) -> None:
        while not self._stop.wait(0.02):
            self.peak = max(self.peak, resident())

    async def _lag(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            self.lags.append(time.monotonic() - began - 0.01)

    @property
    def p99(self) -> float:
        return sorted(self.lags)[int(0.99 * (len(self.lags) - 1))]


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class TellingSpool(Spool):
    """Sets `gone` when a bundle has been deleted: who looks every few milliseconds takes time from what is measured."""

    def __init__(self, folder: Path, limits: SpoolLimits) -> None:
        super().__init__(folder, limits)
        self.gone, self._loop = asyncio.Event(), asyncio.get_running_loop()

    def remove(self, bundle_id: str) -> None:
        super().remove(bundle_id)
        self._loop.call_soon_threadsafe(self.gone.set)


async def board(settings: Settings) -> None:
    """The agent's spool and link. The first connection is made, and idle, before a bundle is there."""
    spool = TellingSpool(Path(settings.folder) / "spool", SpoolLimits(max_mib=4096, headroom_mib=0, headroom_files=0))
    hashing = Watch()
    for number in range(settings.bundles):
        parts = await asyncio.to_thread(sources, settings)
        async with hashing.on():
            await asyncio.to_thread(make, spool, f"bundle-{os.getpid()}-{number}", settings, parts)
    say(b"ready")
    await asyncio.to_thread(sys.stdin.readline)
    seconds, extra, lag = 0.0, 0, 0.0
    for entry in spool.pending():
        # One at a time: what is not its turn is not there yet.
        spool.by_priority = lambda entry=entry: [e for e in spool.pending() if e.id == entry.id]  # type: ignore
        spool.gone.clear()
        uplink = Uplink(settings.link(), DEVICE, spool, int(time.monotonic() * 1000) % (1 << 30))
        idle, watch = resident(), Watch()
        task = asyncio.create_task(uplink.run())
        async with watch.on():
            while not uplink.state.connections:  # noqa: ASYNC110 # nobody signals it
                await asyncio.sleep(0.001)
            began = time.monotonic()
            await spool.gone.wait()
        seconds, extra, lag = seconds + time.monotonic() - began, max(extra, watch.peak - idle), max(lag, watch.p99)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    say(msgspec.json.encode(Sent(seconds, extra, lag, hashing.p99)))


ROLES = {"subscriber": subscriber, "publisher": publisher, "collector": collector, "board": board}

if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[1]](msgspec.json.decode(sys.argv[2], type=Settings)))
