"""A healthy AM62A as a folder; a case lays its own files over it, takes some away, and says which check notices."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec

from tidegauge.camera.config import CameraConfig
from tidegauge.link.config import LinkConfig
from tidegauge.preflight.context import Context, Settings
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.spool.limits import SpoolLimits
from tidegauge.tidl.io_descriptor import IoDescriptor, IoInput, IoOutput, pack

BOARDS = Path(__file__).parent / "boards"
CAMERAS = Path(__file__).parents[3] / "agent_config" / "cameras"
FIRMWARE = "lib/firmware/am62a-c71_0-fw"
DIMS = (1, 1, 1, 3, 8, 16)


class Case(msgspec.Struct, forbid_unknown_fields=True):
    """`case.toml`. `expect`: status by check, all others stay "ok". `found`, `cure`: text that must be in them."""

    expect: dict[str, str]
    found: str
    cure: str
    remove: tuple[str, ...] = ()
    environment: dict[str, str] = msgspec.field(default_factory=lambda: {"SOC": "am62a"})
    settings: dict[str, Any] = {}


class CameraFile(msgspec.Struct):
    camera: CameraConfig


def descriptor() -> bytes:
    """An I/O descriptor of the network's right size."""
    source = IoInput("input", 0, DIMS, "float32", 1.0, 0)
    result = IoOutput("enhanced", 3, DIMS, "float32", 1.0, 0)
    return pack(IoDescriptor((source,), (result,)))


def make_board(root: Path, *overlays: Path) -> None:
    shutil.copytree(BOARDS / "healthy", root, symlinks=True)
    # The board's own link is absolute; one in the repository would keep installers from unpacking a source release.
    (root / FIRMWARE).symlink_to("/lib/firmware/vision_apps_eaik/vx_app_rtos_linux_c7x_1.out")
    for overlay in overlays:
        shutil.copytree(overlay / "root", root, symlinks=True, dirs_exist_ok=True)
    for folder in ("tmp", "var/lib/tidegauge"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "opt/model/artifacts/subgraph_0_tidl_io_1.bin").write_bytes(descriptor())


def context_of(root: Path, environment: dict[str, str], **changes: Any) -> Context:
    profile = Profile(
        name="enhancer",
        runtime="onnx",
        model=str(root / "opt/model/enhancer.onnx"),
        artifacts=str(root / "opt/model/artifacts"),
        preprocess=Preprocess(width=16, height=8),
        output=Output(name="enhanced", kind="image", step=0.01),
    )
    settings = Settings(
        device="cam-1",
        state="/var/lib/tidegauge",
        profile=profile,
        camera=msgspec.toml.decode((CAMERAS / "imx219.toml").read_bytes(), type=CameraFile).camera,
        link=LinkConfig(),
        spool=SpoolLimits(max_mib=1, headroom_mib=0),
        room_mib=1,
    )
    settings = msgspec.structs.replace(settings, **changes)
    return Context(root=str(root), environment=environment, settings=settings, checker=1)
