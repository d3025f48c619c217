"""What the checks may know: the configuration, and a root folder, so that a test can bring a board's files along."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidegauge.camera.config import CameraConfig
from tidegauge.link.config import LinkConfig
from tidegauge.profile import Profile
from tidegauge.spool.limits import SpoolLimits

#: Variables of the environment that the checks look at.
VARIABLES = ("SOC", "EDGEAI_SDK_VERSION", "TIDEGAUGE_VIRTUALBOARD")


class Settings(msgspec.Struct, frozen=True):
    """What the checks need of `agent.toml` and the model's profile; all paths absolute.

    `module`: `runtime.module`, empty for TI's own runtime. The rest of `[capture]` has its own names.
    """

    device: str
    state: str
    profile: Profile
    camera: CameraConfig
    link: LinkConfig
    spool: SpoolLimits
    module: str = ""
    capture: bool = True
    debug_level: int = 3
    trace_folder: str = "/tmp"
    remote_log: str = "vx_app_arm_remote_log.out"
    room_mib: int = 256


class Context(msgspec.Struct, frozen=True):
    """`configuration`: path of agent.toml. `root`: where /proc, /sys, /dev, /lib are found. `checker`: pid of the
    process that runs the checks (its children are no clients of the accelerator)."""

    configuration: str = ""
    root: str = "/"
    environment: dict[str, str] = {}
    settings: Settings | None = None
    checker: int = 0

    @property
    def virtual(self) -> bool:
        """Whether the virtual board is to be checked instead of silicon."""
        if self.settings is not None:
            return self.settings.module != ""
        return bool(self.environment.get("TIDEGAUGE_VIRTUALBOARD"))

    @property
    def required(self) -> Settings:
        """The settings, for a check that is run only with them."""
        if self.settings is None:
            raise LookupError("this check needs a configuration")
        return self.settings

    def path(self, absolute: str) -> Path:
        """A path of the board, under `root`."""
        return Path(self.root) / absolute.lstrip("/")

    def real(self, absolute: str) -> Path:
        """The same with symbolic links followed inside `root`. Raises OSError where one leads nowhere or in circles."""
        path = self.path(absolute)
        for _ in range(16):
            if not path.is_symlink():
                path.stat()
                return path
            target = path.readlink()
            path = self.path(str(target)) if target.is_absolute() else path.parent / target
        raise OSError(f"{absolute} is a circle of links")
