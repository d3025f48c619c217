"""The agent: start-up, loop and shutdown, each on one screen."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidegauge import __version__, board, log_output
from tidegauge.agent import memory, orphans
from tidegauge.agent.accepting import Accepting
from tidegauge.agent.alarms import AlarmBook
from tidegauge.agent.bundling import Identity, predicted_bytes
from tidegauge.agent.bus import Bus
from tidegauge.agent.camera import CameraService
from tidegauge.agent.capture import CaptureService
from tidegauge.agent.commands import Operator
from tidegauge.agent.config import AgentConfig, Loaded
from tidegauge.agent.control import ControlServer
from tidegauge.agent.endings import Endings
from tidegauge.agent.events import PhaseChanged
from tidegauge.agent.file_watch import FileWatch
from tidegauge.agent.golden import GoldenService
from tidegauge.agent.health import Health
from tidegauge.agent.history import HistoryService
from tidegauge.agent.monitor import Monitor
from tidegauge.agent.notify import Notifier
from tidegauge.agent.pipeline import PipelineService
from tidegauge.agent.preconditions import Preconditions
from tidegauge.agent.privacy import PrivatePairs
from tidegauge.agent.reload import Reload
from tidegauge.agent.remote import RemoteCommands, device_key
from tidegauge.agent.remote_log import RemoteLogServer
from tidegauge.agent.replaced import Replaced
from tidegauge.agent.reporting import Reporting
from tidegauge.agent.scene import SceneWatch
from tidegauge.agent.serve import MetricsServer
from tidegauge.agent.shadow import ShadowService
from tidegauge.agent.state import StateStore
from tidegauge.agent.status import Observer
from tidegauge.agent.supervision import Supervision
from tidegauge.agent.tap import TapPipeline
from tidegauge.agent.ticker import Ticker
from tidegauge.agent.verdicts import Verdicts
from tidegauge.agent.watching import Watching
from tidegauge.errors import TidegaugeError
from tidegauge.files import write_durably
from tidegauge.link.uplink import Uplink
from tidegauge.log_kinds import AGENT_STARTED, AGENT_STOPPING, STATE_UNWRITABLE
from tidegauge.metrics import AgentMetrics
from tidegauge.profile import Profile
from tidegauge.ram_folder import own_files, read_only
from tidegauge.spool.store import Spool

log = logging.getLogger(__name__)


class Ready(msgspec.Struct, frozen=True):
    """`agent.json` in the state folder: where this run of the agent can be reached."""

    pid: int
    metrics: str
    results_socket: str


def lock(folder: Path) -> int:
    """A descriptor that owns the state folder as long as it is open. Raises TidegaugeError where another agent does."""
    path = folder / "agent.lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        # A disk that has become read-only must not end what still can be done: watch, tell, send what is there.
        fd = os.open(path if path.exists() else folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise TidegaugeError(
            f"another agent runs with the state folder {folder}", "stop it, or give each agent its own key `state`"
        ) from error
    return fd


class Agent:
    """All parts, wired. `run()` returns when `stop` is set."""

    def __init__(self, loaded: Loaded) -> None:
        config, profile = loaded.config, loaded.profile
        self._loaded = loaded
        loaded.state.mkdir(parents=True, exist_ok=True)
        own = own_files(loaded.state)
        if own != loaded.state:
            log.error(
                "the disk of %s is read-only: nothing new outlives this run of the agent",
                loaded.state,
                extra=STATE_UNWRITABLE.of(folder=str(loaded.state)),
            )
        self._logs, self._work = own / "logs", own / "work"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._lock = lock(loaded.state)
        self.store = StateStore(loaded.state)
        self.store.update(session=self.store.state.session + 1)
        self.bus = Bus()
        self.metrics = AgentMetrics(profile.name)
        self._phase = ""
        self.bus.on(PhaseChanged, self._on_phase)
        self.spool = Spool(loaded.state / "spool", config.spool)
        socket = str(own / config.results.socket) if config.results.socket else ""
        self._results_socket = socket
        self._watch = FileWatch(
            {loaded.path.parent, loaded.profile_path.parent, Path(profile.model).parent, Path(profile.artifacts)}
        )
        seed = int.from_bytes(hashlib.sha256(f"{config.device} {self.store.state.session}".encode()).digest()[:4])
        remote_log = Path(config.capture.remote_log_file) if config.capture.remote_log_file else None
        endings = Endings(remote_log, Path(profile.artifacts), self.store, self.bus, self.metrics)
        tap = None
        if config.camera.kind == "tap":
            tap = TapPipeline(profile, config, self.store, endings, self.bus, self.metrics, self._logs)
        self.pipeline = tap or PipelineService(
            profile, config, socket, self.store, endings, self.bus, self.metrics, self._logs
        )
        self.alarms = AlarmBook(self.store, self.bus, self.metrics)
        self.scene = SceneWatch(config.camera_health, config.contexts, self.alarms, self.bus, self.metrics)
        self.shadow = ShadowService(
            profile, config, self.pipeline, self.scene, self.bus, self.metrics, self._logs, seed
        )
        self.camera = (
            tap.camera
            if tap is not None
            else CameraService(config.camera, config.supervision, self.pipeline, self.bus, self.metrics, self._logs)
        )
        self.private = PrivatePairs(config, profile, self.store, self.pipeline, self.shadow)
        self.golden = GoldenService(config.golden, self.store, self.pipeline, self.shadow, self.private, self.bus)
        self.supervision = Supervision(self.alarms, self.bus)
        self.monitor = self._monitor(config, profile)
        preconditions = Preconditions(
            config.capture,
            self.store,
            self.pipeline,
            lambda: self.camera.problem,
            lambda: self.replaced.problem,
        )
        self.capture = CaptureService(
            config.capture,
            config.runtime,
            profile,
            self.identity,
            preconditions,
            self.pipeline,
            self.spool,
            self.store,
            self.bus,
            self.metrics,
            self.private,
            self._work,
        )
        self.replaced = Replaced(
            loaded,
            self._watch.subscribe(),
            self.capture,
            self.pipeline,
            self.shadow,
            self.monitor.begin,
            self.bus,
            self.metrics,
        )
        self.remote_log = RemoteLogServer(
            config.remote_log,
            config.capture.remote_log,
            lambda: self.capture.began is not None,
            self.pipeline.stuck,
            self.metrics,
            self._logs,
        )
        account = loaded.state / "link_today.json"
        self.uplink = Uplink(config.link, config.device, self.spool, self.store.state.session, account=account)
        self.reporting = Reporting(config, profile, self.store, self.uplink, self.spool, self.bus, self.metrics)
        self.history = HistoryService(
            profile,
            self.store,
            self.monitor.evidence,
            self.spool,
            self.uplink.wake,
            lambda: predicted_bytes(profile, config.capture.privacy, self.capture.predicted_bytes()),
            self.bus,
            self.metrics,
        )
        self.health = Health(config, self.store, self.camera, self.pipeline, self.capture)
        self.notifier = Notifier(os.environ)
        self.ticker = Ticker(self.metrics, self.store, self.spool, self.uplink, self.health, self.notifier, config.link)
        self.reload = Reload(loaded, self._watch.subscribe(), self._parts(), self.metrics)
        self.server = MetricsServer(config.metrics.host, config.metrics.port, self.metrics.render, self._healthz)
        self.operator = Operator(
            self.monitor, self.pipeline, self.shadow, self.capture, self.store, self.bus, self.uplink
        )
        self.operator.settings = self.reload
        observer = self._observer(config, profile.name)
        self.control = ControlServer(own, self.operator, observer)
        self.capture.key = key = device_key(loaded.state)
        self.remote = RemoteCommands(
            config.device,
            config.commands.operators,
            key,
            loaded.state,
            self.operator,
            observer,
            self.uplink,
            self.bus,
            self.metrics,
        )

    def _parts(self) -> tuple[Callable[[AgentConfig], None], ...]:
        """What takes keys of `config_changes.AT_ONCE`."""
        return (
            lambda config: self.camera.reconfigure(config.camera),
            lambda config: self.scene.reconfigure(config.camera_health),
            self.shadow.reconfigure,
            lambda config: self.golden.reconfigure(config.golden),
            lambda config: self.capture.reconfigure(config.capture),
            self.reporting.reconfigure,
            self.health.reconfigure,
            self._relink,
            lambda config: self.remote.reconfigure(config.commands.operators),
            lambda config: setattr(self.spool, "limits", config.spool),
        )

    def _relink(self, config: AgentConfig) -> None:
        if config.link != self.reload.config.link:
            self.uplink.reconfigure(config.link)
            self.ticker.reconfigure(config.link)

    def _on_phase(self, event: PhaseChanged) -> None:
        """What the start needed, or the end of an acceptance, is not needed for the months after it."""
        if event.phase != self._phase:
            self._phase = event.phase
            memory.give_back()

    def ask_reload(self) -> None:
        """SIGHUP: read agent.toml now, and look whether model, artifacts or the link's certificate were replaced."""
        self.reload.ask()
        self.replaced.look()
        self.ticker.reconfigure(self.reload.config.link)

    def _monitor(self, config: AgentConfig, profile: Profile) -> Monitor:
        store, alarms, scene, metrics = self.store, self.alarms, self.scene, self.metrics
        accepting = Accepting(config, store, self.golden, metrics)
        watching = Watching(config, store, alarms, scene, metrics)
        verdicts = Verdicts(config, store, alarms, self.golden, self.shadow, self.bus, metrics)
        return Monitor(profile, store, alarms, scene, accepting, watching, verdicts, self.bus, metrics)

    def _observer(self, config: AgentConfig, model: str) -> Observer:
        return Observer(
            config,
            model,
            self.store,
            self.camera,
            self.pipeline,
            self.shadow,
            self.monitor,
            self.capture,
            self.reporting,
            self.uplink,
            self.spool,
            self.health,
            self.scene,
            self.remote_log,
            self.metrics,
            self.reload,
            self.replaced,
        )

    def _healthz(self) -> tuple[bool, str]:
        verdict = self.health.judge()
        return verdict.ok, f"{verdict.state}: {verdict.sentence}"

    def identity(self) -> Identity:
        """What runs now, with the reference's runtime once it is known."""
        ready = self.shadow.ready
        return msgspec.structs.replace(self.replaced.running, reference_runtime=ready.runtime if ready else "")

    def _start(self) -> None:
        self.monitor.begin(self.replaced.running)
        self.metrics.build.labels(__version__, "unknown").set(1)
        self.metrics.device.labels(self._loaded.config.device).set(1)
        self.server.start()
        self.control.listen()
        ready = Ready(board.own_pid(), self.server.url, self._results_socket)
        where = self._loaded.state / "agent.json"
        self.store.disk.attempt("where the metrics are", lambda: write_durably(where, msgspec.json.encode(ready)))
        log.info("metrics on %s", self.server.url, extra=AGENT_STARTED.of(version=__version__, metrics=self.server.url))

    async def run(self, stop: asyncio.Event) -> None:
        self._start()
        self.notifier.ready()
        try:
            self._watch.start()
            async with asyncio.TaskGroup() as group:
                parts = (
                    self.uplink.run(),
                    self.ticker.run(),
                    self.history.run(),
                    self.control.run(),
                    self.remote.run(),
                    self.reload.run(),
                    self.replaced.run(),
                    self._run_board(),
                )
                tasks = [group.create_task(part) for part in parts]
                await stop.wait()
                log.info("stopping", extra=AGENT_STOPPING.of())
                self.notifier.stopping()
                for task in tasks:
                    task.cancel()
        finally:
            self._watch.stop()
            self.server.stop()
            if not read_only(self._loaded.state):
                (self._loaded.state / "agent.json").unlink(missing_ok=True)

    async def _run_board(self) -> None:
        """Everything that starts workers; first, what an agent that was killed has left."""
        for folder in (self._logs, self._work, self.private.ram.path):
            await orphans.end_all(folder, self.pipeline.stuck)
        self.capture.recover()
        async with self.remote_log.supervised(), asyncio.TaskGroup() as group:
            for part in (self.shadow, self.pipeline, self.camera, self.scene, self.golden, self.capture):
                group.create_task(part.run())


async def serve(loaded: Loaded) -> None:
    """Run the agent until SIGTERM or Ctrl-C."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    agent = Agent(loaded)
    loop.add_signal_handler(signal.SIGHUP, agent.ask_reload)
    await agent.run(stop)


def run(loaded: Loaded) -> None:
    """Run to the end. Raises TidegaugeError where the agent refuses to start."""
    try:
        asyncio.run(serve(loaded))
    except BaseExceptionGroup as group:
        refusals = group.subgroup(TidegaugeError)
        if refusals is None:
            raise
        raise _first(refusals) from None


def _first(group: BaseExceptionGroup[TidegaugeError]) -> TidegaugeError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def begin_log() -> log_output.Output:
    """Log lines to the journal where that is behind stderr, else there: time, level, part, sentence."""
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")
    output = log_output.begin("tidegauge-agent", text)
    logging.getLogger("mqtt").setLevel(logging.ERROR)  # the client library's own words; ours say the same better
    return output
