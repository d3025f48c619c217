"""A board's privacy can't be widened from outside: not by a command, not by who asks for a capture."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from tidegauge.agent.config import AgentConfig, CaptureConfig, PrivacyConfig
from tidegauge.agent.control_messages import AnyCommand
from tidegauge.agent.events import Evidence
from tidegauge.agent.preconditions import Refused
from tidegauge.agent.privacy import PrivatePairs, golden_path
from tidegauge.agent.state import Golden, StateStore
from tidegauge.camera.config import CameraConfig
from tidegauge.demo.settings import profile
from tidegauge.errors import TidegaugeError
from tidegauge.link.config import LinkConfig
from tidegauge.pipeline.messages import LossMeasured
from tidegauge.ram_folder import RamFolder
from tidegauge.tensors import TensorSpec

KEY = "5f" * 32
WORDS = ("privacy", "blur", "keep", "encrypt", "picture", "trace_folder", "debug_level")


def pair(data: bytes, *, hidden: bool = False) -> Evidence:
    return Evidence(LossMeasured(1, 0, 1, 1, -1, 0.4, (), (), "r", 0.1), "live" * 8, (data,), (), (), hidden)


class Shadow:
    """Stands for both sides: notes what it is to run, and gives the tensor back as its input."""

    def __init__(self) -> None:
        self.ran: list[tuple[Path, bytes]] = []

    async def golden(self, path: Path, index: int, deadline: float) -> Evidence:
        self.ran.append((path, path.read_bytes()))
        return pair(path.read_bytes())


class Pairs:
    def __init__(self, folder: Path, policy: Any = "full", **privacy: Any) -> None:
        config = AgentConfig(
            "d", "s", "p", CameraConfig("synthetic", "x"), LinkConfig(), capture=CaptureConfig(privacy=policy)
        )
        config = msgspec.structs.replace(config, privacy=PrivacyConfig(**privacy))
        self.model, self.store, self.shadow = profile(folder), StateStore(folder), Shadow()
        size = self.model.preprocess
        spec = TensorSpec("input", (1, 3, size.height, size.width), "float32")
        pipeline: Any = SimpleNamespace(ready=SimpleNamespace(inputs=(spec,)))
        shadow: Any = self.shadow
        self.pairs = PrivatePairs(config, self.model, self.store, pipeline, shadow)
        self.pairs.ram = RamFolder(folder, folder)
        self.live = np.random.default_rng(1).random(spec.shape, np.float32).tobytes()


def test_no_command_has_a_parameter_that_touches_privacy() -> None:
    kinds = get_args(AnyCommand)
    assert len(kinds) >= 8
    for kind in kinds:
        for field in msgspec.structs.fields(kind):
            assert not any(word in field.name for word in WORDS), f"{kind.__name__}.{field.name}"


def test_a_capture_on_command_takes_a_golden_input_where_only_those_may_be_traced(tmp_path: Path) -> None:
    made = Pairs(tmp_path, "golden")
    with pytest.raises(Refused, match="no live frame may be traced"):
        asyncio.run(made.pairs.for_capture(pair(made.live)))
    path = golden_path(tmp_path, "ab")
    path.parent.mkdir()
    path.write_bytes(b"golden")
    made.store.update(golden=(Golden(0, "ab", "d", "r"),))
    assert asyncio.run(made.pairs.for_capture(pair(made.live))).inputs == (b"golden",)
    assert [ran[0] for ran in made.shadow.ran] == [path]


def test_a_live_pair_is_hidden_and_run_anew_and_nothing_is_left(tmp_path: Path) -> None:
    made = Pairs(tmp_path, blur=0.1)
    found = asyncio.run(made.pairs.for_capture(pair(made.live)))
    assert found.hidden
    assert found.inputs[0] != made.live
    assert len(found.inputs[0]) == len(made.live)
    assert list(made.pairs.ram.path.iterdir()) == []
    again = asyncio.run(made.pairs.for_capture(found))
    assert again is found, "what is hidden is not hidden once more"


def test_without_settings_a_pair_stays_as_it_is(tmp_path: Path) -> None:
    made, live = Pairs(tmp_path), pair(b"x")
    assert asyncio.run(made.pairs.for_capture(live)) is live
    assert made.shadow.ran == []


def test_nothing_to_be_encrypted_is_traced_onto_a_disk(tmp_path: Path) -> None:
    assert "is on a disk" in Pairs(tmp_path, encrypt_to=KEY).pairs.check(Path("/proc"))
    assert Pairs(tmp_path, encrypt_to=KEY).pairs.check(Path("/dev/shm")) == ""
    assert Pairs(tmp_path).pairs.check(Path("/proc")) == ""


def test_the_folder_in_memory_is_its_owners_alone(tmp_path: Path) -> None:
    ram = RamFolder(tmp_path, tmp_path)
    assert ram.ready().stat().st_mode & 0o777 == 0o700
    ram.path.chmod(0o755)
    with pytest.raises(TidegaugeError, match="open to others"):
        ram.ready()
    ram.clear()
    ram.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TidegaugeError):
        ram.ready()
