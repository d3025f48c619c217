"""The collector as one process: what starts, what runs, what ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvicorn

from tidegauge.collector import web
from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.compare_process import CompareProcess
from tidegauge.collector.config import CollectorConfig, HttpConfig
from tidegauge.collector.connection import Connection
from tidegauge.collector.ingest import Ingest
from tidegauge.collector.jobs import Comparisons, Jobs
from tidegauge.collector.library import CompileLibrary
from tidegauge.collector.metrics import CollectorMetrics
from tidegauge.collector.partial import Partials
from tidegauge.collector.reception import Shelf
from tidegauge.collector.site import Site
from tidegauge.collector.store import Store
from tidegauge.errors import TidegaugeError
from tidegauge.files import write_durably

_log = logging.getLogger(__name__)

#: A stop that takes longer is cut short: all that matters is on the disk already.
_STOP_SECONDS = 4.5
_URL_FILE = "collector.json"


@dataclass
class Collector:
    """All parts, made and connected, none of them running."""

    data: Path
    socket: socket.socket
    url: str
    store: Store
    process: CompareProcess
    jobs: Jobs
    ingest: Ingest
    connection: Connection
    server: WebServer


def run(config: CollectorConfig) -> None:
    """Run until SIGTERM or Ctrl-C. Raises TidegaugeError where it can't start."""
    log_to_stderr()
    data = config.data_folder
    with _only_one(data):
        collector = _build(config, data)
        try:
            collector.jobs.start(collector.store)
            asyncio.run(_serve(collector))
        finally:
            _stop(collector)


def _build(config: CollectorConfig, data: Path) -> Collector:
    """Everything that can refuse to start does so here, with a sentence."""
    _check_library(config.library_folder)
    listener = _listen(config.http)
    store, blobs, partials = Store(data / "collector.sqlite"), BlobStore(data / "blobs"), Partials(data / "partial")
    partials.keep_only((item.device, item.file_id) for item in store.open_transfers())
    metrics = CollectorMetrics(store)
    process, library = CompareProcess(config.comparison), CompileLibrary(config.library_folder)
    manifest_limit = config.limits.manifest_bytes
    comparisons = Comparisons(data, store, blobs, library, process, manifest_limit, metrics.compared)
    jobs = Jobs(data, comparisons, config.comparison.workers)
    connection = Connection(config.link, metrics.connected)
    ingest = Ingest(Shelf(store, blobs, partials, config.limits, metrics, jobs.enqueue), connection.publish)
    site = Site(
        base=config.http.base,
        store=store,
        blobs=blobs,
        work=data / "work",
        metrics=metrics if config.http.metrics else None,
        manifest_limit=manifest_limit,
        connected=lambda: connection.connected,
        report_folder=comparisons.report_folder,
    )
    return Collector(
        data, listener, _url(config.http, listener), store, process, jobs, ingest, connection, WebServer(site)
    )


async def _serve(collector: Collector) -> None:
    """The three loops, until a signal; then the one that takes things in ends first."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with asyncio.TaskGroup() as group:
        server = group.create_task(collector.server.serve(sockets=[collector.socket]))
        ingest = group.create_task(collector.ingest.run())
        link = group.create_task(collector.connection.run(collector.ingest.put))
        await collector.server.ready.wait()
        _announce(collector)
        await stop.wait()
        _cut_short_after(_STOP_SECONDS)
        _log.info("stopping")
        link.cancel()
        ingest.cancel()
        collector.server.should_exit = True
        await asyncio.wait([server, ingest, link])


def _stop(collector: Collector) -> None:
    (collector.data / _URL_FILE).unlink(missing_ok=True)
    collector.process.stop()
    collector.jobs.stop()
    collector.store.close()
    collector.socket.close()


class WebServer(uvicorn.Server):
    """uvicorn inside our loop: signals are ours, and `ready` is set when it accepts connections."""

    def __init__(self, site: Site) -> None:
        self.ready = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                web.build(site),
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=256,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=2,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


def _announce(collector: Collector) -> None:
    write_durably(collector.data / _URL_FILE, msgspec.json.encode({"url": collector.url}))
    print(f"collector ready: {collector.url}", flush=True)


def _cut_short_after(seconds: float) -> None:
    def cut_short() -> None:
        print("collector: stopped hard, something did not end in time; nothing is lost", file=sys.stderr, flush=True)
        os._exit(0)

    timer = threading.Timer(seconds, cut_short)
    timer.daemon = True
    timer.start()


@contextlib.contextmanager
def _only_one(data: Path) -> Iterator[None]:
    """Make the data folder, and hold a lock on it: two collectors on one SQLite file would answer for each other."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = (data / "lock").open("a")
    except OSError as error:
        raise TidegaugeError(
            f"the data folder {data} can't be used ({error.strerror})",
            "set the key `data` to a folder that this user may write",
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TidegaugeError(
                f"another collector is running on the data folder {data}", "stop it, or set another folder as `data`"
            ) from error
        (data / _URL_FILE).unlink(missing_ok=True)
        yield


def _listen(http: HttpConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((http.host, http.port))
    except OSError as error:
        listener.close()
        raise TidegaugeError(
            f"the collector can't listen on {http.host}:{http.port} ({error.strerror})",
            "stop what listens there, or set the keys `http.host` and `http.port` (0 takes a free port)",
        ) from error
    return listener


def _url(http: HttpConfig, listener: socket.socket) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(http.host, http.host)
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{listener.getsockname()[1]}{http.base}/"


def _check_library(folder: Path | None) -> None:
    if folder is not None and not folder.is_dir():
        raise TidegaugeError(
            f"the compile library {folder} is not a folder", "make it, or correct the key `compile_library`"
        )


def log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for noisy in ("uvicorn", "uvicorn.error", "litestar", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
