"""The cameras of agent_config/cameras are settings that the agent takes. None has run on a board."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec
import pytest

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
