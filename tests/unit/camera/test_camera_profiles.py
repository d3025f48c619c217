"""The cameras of agent_config/cameras are settings that the agent takes. None has run on a board."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import msgspec
import pytest

import needs
from tidegauge.camera.config import CameraConfig
from tidegauge.configuration import load_toml

FOLDER = Path(__file__).parents[3] / "agent_config" / "cameras"


class CameraFile(msgspec.Struct, forbid_unknown_fields=True):
    camera: CameraConfig


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_profile_is_read_and_its_pipeline_is_one(path: Path) -> None:
    camera = load_toml(path, CameraFile).camera
    assert camera.live
    if camera.kind == "gstreamer":
        words = shlex.split(camera.source)
        assert words[0] == "v4l2src"
        assert words[-1] != "!"
        assert not [word for word in words if "sink" in word and "::" not in word], "the agent adds the sink"
        assert any(f"width={camera.width},height={camera.height}" in word for word in words), "scaled in hardware"


#: The elements that TI's SDK brings, in each profile's order.
OF_TI = {
    "imx219": ["tiovxisp", "tiovxmultiscaler", "tiovxdlcolorconvert"],
    "usb-mjpeg": ["tiovxdlcolorconvert", "tiovxmultiscaler", "tiovxdlcolorconvert"],
    "usb": [],
}


def test_each_kind_of_camera_has_its_profile_and_none_pretends_to_have_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.toml")} == set(OF_TI)
    for name, elements in OF_TI.items():
        text = (FOLDER / f"{name}.toml").read_text()
        comment = " ".join(line.removeprefix("#") for line in text.splitlines() if line.startswith("#"))
        assert "Never run on a board" in comment
        source = load_toml(FOLDER / f"{name}.toml", CameraFile).camera.source
        assert [word for word in source.split() if word.startswith("tiovx")] == elements


@pytest.mark.parametrize("name", [name for name, elements in OF_TI.items() if elements])
def test_gstreamer_itself_takes_the_line(name: str) -> None:
    """But for TI's elements, which no other machine has: an end and a beginning stand in for each."""
    launch = needs.program("gst-launch-1.0", "gstreamer1.0-tools")
    parts = load_toml(FOLDER / f"{name}.toml", CameraFile).camera.source.split("!")
    line = "!".join(" fakesink fakesrc " if part.split()[0].startswith("tiovx") else part for part in parts)
    done = subprocess.run([launch, *shlex.split(f"{line} ! fakesink")], capture_output=True, text=True, timeout=60)
    assert "erroneous pipeline" not in done.stderr
    assert "Setting pipeline to PAUSED" in done.stdout, "it was taken; that the device is missing comes after"
