"""`agent.toml`: every key of the agent, its default and its bounds, in one place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tidegauge.agent.watch_config import CameraHealthConfig, ContextsConfig, InputDriftConfig, StandBackConfig
from tidegauge.bundles.redaction import WHOLE, Hiding, Region
from tidegauge.bundles.sealing import is_recipient
from tidegauge.camera.config import CameraConfig
from tidegauge.configuration import ConfigurationError, load_toml
from tidegauge.link.config import LinkConfig
from tidegauge.link.files import located
from tidegauge.profile import Profile
from tidegauge.runtimes import artifact_folder
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.signing import PublicKey
from tidegauge.spool.limits import SpoolLimits

Seconds = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1)]


class RuntimeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`module`: empty for TI's own runtime; a Python module with TI's call shapes for a stand-in (the virtual board).

    Deadlines in seconds. `start_timeout`: creating a session (long on the C7x). `first_run_timeout`: the warm-up runs
    after it. `run_timeout`: one device run. `stop_timeout`: closing a session, after which the process is ended by
    force: by SIGTERM, and SIGKILL `kill_timeout` later.
    """

    module: str = ""
    start_timeout: Seconds = 120.0
    first_run_timeout: Seconds = 60.0
    run_timeout: Seconds = 10.0
    stop_timeout: Seconds = 3.0
    kill_timeout: Annotated[float, Meta(gt=0, le=2)] = 1.5


class SupervisionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What follows when the accelerator's worker has hung, crashed, or won't open a session (docs/supervision.md).

    Pauses in seconds, doubling from `_first` to `_most`: `restart_…` after a worker that had run, `create_…` after a
    session that could not be created (each try leaks C7x memory). After `failed_creates` such tries running, after a
    hang that a new worker didn't cure, or after `restarts_per_day` new workers, nothing is sent to the accelerator any
    more until the alarm is cleared; with `exit_when_down` the agent ends with exit code 70 instead. `slow_factor`: how
    many times longer than at first a device run may take, as medians.

    `remoteproc`: before it is given up after a hang or failed creates, the core of exactly the name `core` is stopped
    and started through `sysfs`/class/remoteproc, at most `remoteproc_per_day` times a day, each step within
    `remoteproc_timeout`, and never while another process holds a TIDL session. Not tried on a real board.
    """

    restart_first: Seconds = 0.2
    restart_most: Seconds = 60.0
    create_first: Seconds = 5.0
    create_most: Seconds = 300.0
    healthy: Seconds = 60.0
    failed_creates: Count = 5
    restarts_per_day: Count = 20
    exit_when_down: bool = False
    slow_factor: Annotated[float, Meta(gt=1)] = 8.0
    remoteproc: bool = False
    core: str = "7e000000.dsp"
    sysfs: str = "/sys"
    remoteproc_timeout: Seconds = 10.0
    remoteproc_per_day: Count = 2


class ShadowConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a frame becomes a shadow sample: Poisson gaps, and a budget on measured CPU time.

    `cpu_share` of one core over `cpu_window` seconds.
    """

    gap_mean: Seconds = 60.0
    gap_floor: Annotated[float, Meta(ge=0)] = 20.0
    cpu_share: Annotated[float, Meta(gt=0, le=1)] = 0.05
    cpu_window: Seconds = 600.0
    measure_timeout: Seconds = 60.0


class AcceptanceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first measurement of artifacts and model, which freezes the reference or fails (DESIGN §6.3).

    `samples`: a day of them at the default gap, so that night and day are both in the reference
    (docs/adr/0001-acceptance-takes-a-day.md).
    """

    samples: Annotated[int, Meta(ge=20)] = 1440
    max_loss: Share = 0.15
    tolerance: Share = 0.02
    minimum: Annotated[float, Meta(gt=0, le=0.5)] = 0.03
    symptom_samples: Count = 5
    nmse_quantile: Annotated[float, Meta(gt=0.5, lt=1)] = 0.95


class DetectorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The betting detector. `alpha` 0 derives it from the block's expected length and `false_alarms_per_year`.

    `block` 0 takes ten correlation times of the loss, as measured at acceptance.
    """

    false_alarms_per_year: Annotated[float, Meta(gt=0)] = 1.0
    alpha: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    block: Annotated[int, Meta(ge=0)] = 0


class GoldenConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The known-answer test: how many input tensors, how often, and the loss above which acceptance fails.

    `max_loss` 0 takes `acceptance.max_loss`.
    """

    count: Annotated[int, Meta(ge=1, le=16)] = 3
    interval: Seconds = 900.0
    max_loss: Share = 0.0


#: What golden tensors are blurred by where bundles are encrypted: the board must be able to read these itself.
BLUR_AT_REST = 0.125


class PrivacyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a camera saw, hidden before anything of it is written to a disk: in the input tensor, on which both sides
    then run anew, so that outputs and traces show no more than it. `capture.privacy` says what leaves the board.

    `blur`: standard deviation as a share of the picture's shorter side; 0 for none. `keep`: left, top, right and bottom
    of the region that is kept, as shares of width and height; all around it becomes grey. `encrypt_to`: public key (64
    hexadecimal digits, from `tidegauge keys new --for pictures`) that tensors and traces of a bundle are encrypted to;
    empty for none. The trace folder must then be in memory, and golden tensors, which the board reads itself, are
    blurred by 0.125 at least.
    """

    blur: Annotated[float, Meta(ge=0, le=0.5)] = 0.0
    keep: Annotated[tuple[Share, ...], Meta(min_length=4, max_length=4)] = WHOLE
    encrypt_to: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$")] = ""

    def __post_init__(self) -> None:
        left, top, right, bottom = self.keep
        if not (left < right and top < bottom):
            raise ValueError("`keep` is left, top, right, bottom, and leaves nothing of the picture")
        if self.encrypt_to and not is_recipient(self.encrypt_to):
            raise ValueError("nothing can be encrypted to the key `encrypt_to`")

    @property
    def hiding(self) -> Hiding:
        return Hiding(self.blur, self._region)

    @property
    def at_rest(self) -> Hiding:
        """Of what lies on the board."""
        return Hiding(max(self.blur, BLUR_AT_REST) if self.encrypt_to else self.blur, self._region)

    @property
    def _region(self) -> Region:
        left, top, right, bottom = self.keep
        return left, top, right, bottom


class CaptureConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traces on an alarm. `remote_log`: text by which the remote-log server's command line is known.

    `remote_log_file`: where its output is collected, empty for none. `room_mib` must be free in the trace folder as
    long as the size of a capture isn't known from the compile or from an earlier capture. `timeout` bounds the traced
    run. `heap_tool`: program and arguments that print the free heaps, run while nobody holds a session; captures are
    taken without knowing them where it is empty or isn't there. `quiet_hours`: no capture between these local times,
    such as "22:00-06:00", empty for none. `veto_file`: no capture while this file exists, empty for none.
    """

    enabled: bool = True
    debug_level: Literal[3, 4] = 3
    trace_folder: str = "/tmp"
    remote_log: str = "vx_app_arm_remote_log.out"
    remote_log_file: str = ""
    room_mib: Annotated[int, Meta(ge=0)] = 256
    per_hour: Count = 5
    per_day: Count = 20
    per_cause_hour: Count = 1
    timeout: Seconds = 180.0
    heap_tool: tuple[str, ...] = ("/opt/vision_apps/vx_app_heap_stats.out",)
    quiet_hours: Annotated[str, Meta(pattern=r"^(([01][0-9]|2[0-3]):[0-5][0-9]-([01][0-9]|2[0-3]):[0-5][0-9])?$")] = ""
    veto_file: str = ""
    privacy: Literal["full", "statistics", "golden"] = "full"


class RemoteLogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The C7x's remote-log server as a child of the agent. `command`: program and arguments; empty where something
    else runs it, such as a unit of its own.

    Its output goes to `logs/remote_log.txt` in the state folder, in the place of `capture.remote_log_file`. `settle`:
    seconds from its start to the first session. It is started anew after a pause that doubles from `restart_first` to
    `restart_most`, never during a capture.
    """

    command: tuple[str, ...] = ()
    settle: Annotated[float, Meta(ge=0)] = 1.0
    restart_first: Seconds = 1.0
    restart_most: Seconds = 60.0


class ResultsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the product gets its answers: `socket`, a Unix socket with the raw outputs; `mqtt`, decoded summaries.

    At most one summary every `mqtt_interval` seconds.
    """

    socket: str = ""
    mqtt: bool = True
    mqtt_interval: Annotated[float, Meta(ge=0)] = 1.0


class MetricsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where `/metrics` and `/healthz` listen. Port 0 takes a free one (written to `agent.json` in the state folder)."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 9464


class CommandsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`operators`: public keys (64 hexadecimal digits, from `tidegauge keys`) whose commands by broker are obeyed.

    None pinned, none obeyed. The control socket on the board needs no key.
    """

    operators: tuple[PublicKey, ...] = ()


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. Relative paths are relative to the file's own folder."""

    device: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    state: str
    profile: str
    camera: CameraConfig
    link: LinkConfig
    runtime: RuntimeConfig = RuntimeConfig()
    supervision: SupervisionConfig = SupervisionConfig()
    shadow: ShadowConfig = ShadowConfig()
    stand_back: StandBackConfig = StandBackConfig()
    contexts: ContextsConfig = ContextsConfig()
    camera_health: CameraHealthConfig = CameraHealthConfig()
    input_drift: InputDriftConfig = InputDriftConfig()
    acceptance: AcceptanceConfig = AcceptanceConfig()
    detector: DetectorConfig = DetectorConfig()
    golden: GoldenConfig = GoldenConfig()
    capture: CaptureConfig = CaptureConfig()
    remote_log: RemoteLogConfig = RemoteLogConfig()
    results: ResultsConfig = ResultsConfig()
    metrics: MetricsConfig = MetricsConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    spool: SpoolLimits = SpoolLimits()
    commands: CommandsConfig = CommandsConfig()


class Loaded(msgspec.Struct, frozen=True):
    """A configuration with its profile, all paths absolute. `path`, `profile_path`: the files they were read from."""

    config: AgentConfig
    profile: Profile
    state: Path
    path: Path
    profile_path: Path


def read(path: Path) -> Loaded:
    """The types of `agent.toml` and of the profile it names, paths absolute; nothing they name is looked at.

    Raises `ConfigurationError`.
    """
    config = load_toml(path, AgentConfig)
    folder = path.resolve().parent
    profile_path = folder / config.profile
    profile = load_toml(profile_path, Profile)
    profile = msgspec.structs.replace(
        profile,
        model=str(profile_path.parent / profile.model),
        artifacts=str(profile_path.parent / profile.artifacts),
    )
    if config.shadow.gap_floor >= config.shadow.gap_mean:
        raise ConfigurationError(
            f"{path}: key `shadow.gap_floor` is not below `shadow.gap_mean`",
            "the mean gap includes the floor: make the floor smaller or the mean larger",
        )
    camera, link = config.camera, config.link
    if not camera.live or camera.kind == "tap":
        camera = msgspec.structs.replace(camera, source=str(folder / camera.source))
    link = located(path, link, os.environ)
    if link.cert and not link.renewal:
        link = msgspec.structs.replace(link, renewal=str(folder / config.state / "certificates"))
    capture = _with_own_server(path, config, folder / config.state)
    config = msgspec.structs.replace(config, camera=camera, link=link, capture=capture)
    return Loaded(config, profile, folder / config.state, path.resolve(), profile_path)


def _with_own_server(path: Path, config: AgentConfig, state: Path) -> CaptureConfig:
    """Where the agent runs the remote-log server, captures read what it has heard. Raises ConfigurationError."""
    capture, command = config.capture, " ".join(config.remote_log.command)
    if not command:
        return capture
    if capture.remote_log not in command:
        raise ConfigurationError(
            f"{path}: key `remote_log.command` lacks the text of `capture.remote_log` ({capture.remote_log})",
            "a capture knows the server by that text: make it a part of the command line",
        )
    if capture.remote_log_file:
        raise ConfigurationError(
            f"{path}: keys `remote_log.command` and `capture.remote_log_file` are both given",
            "the agent collects its own server's output: leave the second one out",
        )
    return msgspec.structs.replace(capture, remote_log_file=str(state / "logs" / "remote_log.txt"))


def load(path: Path) -> Loaded:
    """`read`, and what it names exists: model, artifacts with all their files, camera. Raises `ConfigurationError`."""
    loaded = read(path)
    profile, camera = loaded.profile, loaded.config.camera
    profile_path = path.resolve().parent / loaded.config.profile
    if not Path(profile.model).is_file():
        raise ConfigurationError(
            f"{profile_path}: key `model` names {profile.model}, which does not exist", "correct it"
        )
    if not Path(profile.artifacts).is_dir():
        raise ConfigurationError(
            f"{profile_path}: key `artifacts` names {profile.artifacts}, which is not a folder",
            "give the folder that the TIDL compile wrote",
        )
    if not camera.live and not Path(camera.source).exists():
        raise ConfigurationError(
            f"{path}: key `camera.source` names {camera.source}, which does not exist",
            f"give the path for a camera of kind `{camera.kind}`",
        )
    try:
        artifact_folder.require(profile.runtime, Path(profile.artifacts))
    except RuntimeFault as error:
        raise ConfigurationError(f"{profile_path}: {error.problem}", error.cure) from error
    return loaded
