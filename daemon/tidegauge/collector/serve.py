"""The collector as one process: what starts, what runs, what ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvicorn

from tidegauge import __version__, log_output, signing
from tidegauge.clocks import wall
from tidegauge.collector import housekeeping, retention, web
from tidegauge.collector.access import Access
from tidegauge.collector.compare_process import CompareProcess
from tidegauge.collector.comparisons import Comparisons, Workshop, adopt_reports
from tidegauge.collector.config import CollectorConfig, HttpConfig
from tidegauge.collector.connection import BrokerLink
from tidegauge.collector.crowd import limited
from tidegauge.collector.ingest import COMMAND_TOPICS, TOPICS, Ingest
from tidegauge.collector.jobs import Jobs, executor_id
from tidegauge.collector.library import CompileLibrary
from tidegauge.collector.log_kinds import COLLECTOR_CUT_SHORT, COLLECTOR_STARTED, COLLECTOR_STOPPING, COMMANDS_OPEN
from tidegauge.collector.metrics import CollectorMetrics
from tidegauge.collector.pages.live import Feeds
from tidegauge.collector.presence import Presence
from tidegauge.collector.protocol import Protocol
from tidegauge.collector.registered import Registered
from tidegauge.collector.relay import Relay
from tidegauge.collector.roles import is_loopback
from tidegauge.collector.runs import Runs, RunTools
from tidegauge.collector.shelf import Shelf
from tidegauge.collector.site import Site
from tidegauge.collector.startup import URL_FILE
from tidegauge.collector.storage import Storage, open_when_there
from tidegauge.collector.store import Store
from tidegauge.collector.transfer_rows import Claimant
from tidegauge.collector.trust import answer_key
from tidegauge.collector.uploads import Uploads
from tidegauge.collector.watch import Chore, Watch
from tidegauge.errors import TidegaugeError
from tidegauge.exitcodes import ExitCode
from tidegauge.files import write_durably
from tidegauge.log_kinds import PREFIX

_log = logging.getLogger(__name__)

#: A stop that takes longer is cut short: all that matters is on the disk already.
_STOP_SECONDS = 4.5
#: Requests under way at once, streams of open pages among them; connections may be four times as many.
_AT_ONCE = 256
#: Between two looks at what waits.
_CHORE_SECONDS = 60.0
_RETENTION_SECONDS = 600.0


@dataclass
class Collector:
    """All parts, made and connected, none of them running."""

    data: Path
    socket: socket.socket
    url: str
    store: Store
    process: CompareProcess
    jobs: Jobs
    watch: Watch
    ingest: Ingest
    link: BrokerLink | None
    server: WebServer


def run(config: CollectorConfig, listener: socket.socket) -> None:
    """Run until SIGTERM or Ctrl-C, on what `startup.claimed` holds. Raises TidegaugeError where it can't start."""
    collector = _build(config, config.data_folder, listener)
    try:
        collector.jobs.start(collector.store)
        collector.watch.start()
        asyncio.run(_serve(collector))
    finally:
        _stop(collector)


def _build(config: CollectorConfig, data: Path, listener: socket.socket) -> Collector:
    opened = open_when_there(config)
    store, blobs, partials = opened.store, opened.blobs, opened.partials
    _name_lines(store.collector(), executor_id(data))
    check_reach(config, store)
    if not partials.shared:
        partials.keep_only((item.device, item.file_id) for item in store.open_transfers())
    blobs.clean()
    adopt_reports(data, store, blobs)
    metrics = CollectorMetrics(store, config.http.device_metrics, config.link.cert)
    process, library = CompareProcess(config.comparison), _library(config, opened)
    limit, attempts = config.limits.manifest_bytes, config.workers.attempts
    workshop = Workshop(data, store, blobs, library, process, limit, metrics.compared, attempts)
    compares = "compare" in config.roles
    runs = Runs(RunTools(store, blobs, library, process, data / "runs", config.uploads.unpacked_bytes))
    jobs = Jobs(data, Comparisons(workshop), config.comparison.workers, opened.jobs_url, compares, runs=runs)
    chores = _chores(config, opened, jobs)
    watch = Watch(store, jobs, config.workers, socket.gethostname(), compares, chores)
    topics = (*TOPICS, *COMMAND_TOPICS) if config.trust.keep_commands else TOPICS
    link = _link(config, store, jobs.executor, metrics, topics) if "ingest" in config.roles else None
    me = Claimant(jobs.executor, config.workers.dead_after)
    shelf = Shelf(store, blobs, partials, config.limits, metrics, jobs.completed, me, config.trust.devices, config.pull)
    signs = answer_key(data, config.trust.answer_key) if link is not None else None
    ingest = Ingest(shelf, link.publish if link is not None else _nobody, signs)
    site = Site(
        base=config.http.base,
        store=store,
        blobs=blobs,
        work=workshop.work,
        metrics=metrics if config.http.metrics else None,
        manifest_limit=limit,
        connected=lambda: link is None or link.connected,
        stands_back=lambda: link.stands_back if link is not None else "",
        scrape=config.scrape,
        access=Access(store, config.access, is_loopback(config.http.host)),
        uploads=_uploads(config, opened, jobs),
        relay=_relay(config, store, link),
    )
    url = _url(config.http, listener)
    return Collector(data, listener, url, store, process, jobs, watch, ingest, link, WebServer(site, config.http))


def _name_lines(collector: str, process: str) -> None:
    """Each entry of the journal says which collector it is of, and which of its processes."""
    if (output := log_output.installed()) is not None:
        output.always = {f"{PREFIX}COLLECTOR": collector, f"{PREFIX}PROCESS": process}


def check_reach(config: CollectorConfig, store: Store) -> None:
    """What others reach needs somebody to let in. Raises TidegaugeError."""
    if not is_loopback(config.http.host) and not config.access.proxies and not store.token_count():
        store.close()
        raise TidegaugeError(
            f"the collector would listen on {config.http.host} (key `http.host`), and nobody could be told apart",
            "make a token first (`tidegauge collector token new NAME --role operator`), name a reverse proxy "
            "(`access.proxies`), or listen on 127.0.0.1",
        )


def _relay(config: CollectorConfig, store: Store, link: BrokerLink | None) -> Relay | None:
    """Raises KeyUnusable."""
    if not config.commands.key:
        return None
    key = signing.load(Path(config.commands.key))
    said = COMMANDS_OPEN.of(key=key.public)
    _log.warning("operators of this collector command all boards that pin the key %s", key.public, extra=said)
    publish = link.publish if link is not None else _nobody
    return Relay(store, key, publish, lambda: link is not None and link.connected)


def _uploads(config: CollectorConfig, opened: Storage, jobs: Jobs) -> Uploads:
    registered = Registered(opened.store, opened.blobs, opened.data / "library")
    uploads = Uploads(
        store=opened.store,
        blobs=opened.blobs,
        registered=registered,
        config=config.uploads,
        executor=jobs.executor,
        folder=opened.data / "uploads",
        completed=jobs.completed,
        run=jobs.enqueue_run,
    )
    uploads.recover()
    return uploads


def _link(
    config: CollectorConfig, store: Store, executor: str, metrics: CollectorMetrics, topics: tuple[str, ...]
) -> BrokerLink:
    me = Presence(store.collector(), executor, socket.gethostname(), store.made(), "serving")
    return BrokerLink(config.link, me, metrics.connected, topics, config.ingest.group)


def _library(config: CollectorConfig, opened: Storage) -> CompileLibrary:
    return CompileLibrary(config.library_folder, Registered(opened.store, opened.blobs, opened.data / "library"))


def _chores(config: CollectorConfig, opened: Storage, jobs: Jobs) -> list[Chore]:
    store, days = opened.store, config.ingest.wait_days
    work: dict[str, Callable[[], object]] = {
        "waiting bundles": lambda: housekeeping.settle_waiting(store, jobs),
        "overdue bundles": lambda: housekeeping.give_up_waiting(store, jobs, days, wall()),
        "idle transfers": lambda: housekeeping.forget_transfers(store, opened.partials, days, wall()),
    }
    rules = config.retention
    keep = Chore("retention", _RETENTION_SECONDS, lambda: retention.apply(store, opened.blobs.delete, rules, wall()))
    if (output := log_output.installed()) is not None:
        work["lines that were left out"] = output.tick
    return [keep, *(Chore(name, _CHORE_SECONDS, do) for name, do in work.items())]


async def _nobody(topic: str, payload: bytes) -> None:
    """A process without the role "ingest" hears nobody, and answers nobody."""


async def _idle() -> None:
    await asyncio.Event().wait()


class WebServerEnded(TidegaugeError):
    """A fault of the program, which a new start may cure: no exit code for which systemd leaves it down."""

    exit_code = ExitCode.FINDING

    def __init__(self) -> None:
        super().__init__("the collector's web server has ended by itself", "its last lines in the log say why")


async def _serve(collector: Collector) -> None:
    """The three loops, until a signal; then the one that takes things in ends first."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with asyncio.TaskGroup() as group:
        server = group.create_task(collector.server.serve(sockets=[collector.socket]))
        ingest = group.create_task(collector.ingest.run())
        link = group.create_task(collector.link.run(collector.ingest.put) if collector.link else _idle())
        ready = group.create_task(collector.server.ready.wait())
        await asyncio.wait([server, ready], return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            _announce(collector)
        stopping = group.create_task(stop.wait())
        await asyncio.wait([server, stopping], return_when=asyncio.FIRST_COMPLETED)
        by_itself = server.done()
        _cut_short_after(_STOP_SECONDS)
        _log.info("stopping", extra=COLLECTOR_STOPPING.of())
        for task in (link, ingest, ready, stopping):
            task.cancel()
        collector.server.should_exit = True
        await asyncio.wait([server, ingest, link])
    if by_itself:
        raise WebServerEnded


def _stop(collector: Collector) -> None:
    (collector.data / URL_FILE).unlink(missing_ok=True)
    collector.process.stop()
    collector.watch.stop()
    collector.jobs.stop()
    collector.store.close()


class WebServer(uvicorn.Server):
    """uvicorn inside our loop: signals are ours, and `ready` is set when it accepts connections."""

    def __init__(self, site: Site, http: HttpConfig) -> None:
        self.ready = asyncio.Event()
        app = web.build(site)
        self._feeds: Feeds = app.state.feeds
        super().__init__(
            uvicorn.Config(
                limited(app, _AT_ONCE, lambda: len(self.server_state.connections) >= 4 * _AT_ONCE),
                http=Protocol,
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=2,
                proxy_headers=False,  # else uvicorn would let whoever is on this computer say where it comes from
                ssl_certfile=http.certificate or None,
                ssl_keyfile=http.key or None,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._feeds.close()  # else open pages would hold the server until it gives up waiting
        await super().shutdown(sockets)


def _announce(collector: Collector) -> None:
    write_durably(collector.data / URL_FILE, msgspec.json.encode({"url": collector.url}))
    _log.info("pages at %s", collector.url, extra=COLLECTOR_STARTED.of(version=__version__, pages=collector.url))
    print(f"collector ready: {collector.url}", flush=True)


def _cut_short_after(seconds: float) -> None:
    def cut_short() -> None:
        said = "stopped hard: something did not end in time; nothing is lost"
        _log.warning(said, extra=COLLECTOR_CUT_SHORT.of())
        os._exit(0)

    timer = threading.Timer(seconds, cut_short)
    timer.daemon = True
    timer.start()


def _url(http: HttpConfig, listener: socket.socket) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(http.host, http.host)
    host = f"[{host}]" if ":" in host else host
    scheme = "https" if http.certificate else "http"
    return f"{scheme}://{host}:{listener.getsockname()[1]}{http.base}/"
