"""The agent's state, configuration and traces on a real file system."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tidegauge.agent.config import load
from tidegauge.agent.limits import Taken
from tidegauge.agent.state import StateStore
from tidegauge.agent.traces import TraceCollector, stale_traces
from tidegauge.board import processes_matching, tidl_holders
from tidegauge.configuration import ConfigurationError


class TestState:
    def test_survives_a_restart(self, tmp_path: Path) -> None:
        StateStore(tmp_path).update(session=7, captures=(Taken(1.0, "loss"),))
        again = StateStore(tmp_path).state
        assert (again.session, again.captures) == (7, (Taken(1.0, "loss"),))

    @pytest.mark.parametrize("content", [b"", b"{", b'{"version": 2}', b'{"session": "many"}', b"\xff\x00"])
    def test_what_cannot_be_read_is_set_aside_and_start_up_goes_on(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "state.json").write_bytes(content)
        store = StateStore(tmp_path)
        assert store.state.session == 0
        aside = list(tmp_path.glob("state.json.corrupt-*"))
        assert [path.read_bytes() for path in aside] == [content]
        store.update(session=1)
        assert StateStore(tmp_path).state.session == 1


GOOD = """
device = "cam-1"
state = "state"
profile = "model.toml"
[camera]
kind = "folder"
source = "pictures"
[link]
host = "127.0.0.1"
ca = "ca.pem"
"""
PROFILE = """
name = "enhancer"
runtime = "onnx"
model = "model.onnx"
artifacts = "artifacts"
[preprocess]
width = 32
height = 16
[output]
name = "enhanced"
kind = "image"
step = 0.01
"""


class TestConfiguration:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "agent.toml").write_text(GOOD)
        (tmp_path / "model.toml").write_text(PROFILE)
        (tmp_path / "model.onnx").write_bytes(b"onnx")
        (tmp_path / "artifacts").mkdir()
        (tmp_path / "pictures").mkdir()
        return tmp_path

    def test_paths_become_absolute(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tidegauge.runtimes.artifact_folder.require", lambda runtime, path: None)
        loaded = load(folder / "agent.toml")
        assert loaded.state == folder / "state"
        assert loaded.profile.model == str(folder / "model.onnx")
        assert loaded.config.camera.source == str(folder / "pictures")
        assert (loaded.config.link.ca, loaded.config.link.key) == (str(folder / "ca.pem"), "")

    @pytest.mark.parametrize(
        ("change", "named", "cure"),
        [
            (("device =", "devise ="), "`devise`", "did you mean `device`"),
            (('kind = "folder"', 'kind = "floppy"'), "camera.kind", "floppy"),
            (('host = "127.0.0.1"', 'hots = "127.0.0.1"'), "`link.hots`", "did you mean `host`"),
            (('state = "state"\n', ""), "`state` is missing", "add it"),
            (("[camera]", "[camera"), "not valid TOML", "line"),
            (('device = "cam-1"', 'device = "cam 1"'), "`device`", "matching regex"),
        ],
    )
    def test_errors_name_file_key_and_cure(self, folder: Path, change: tuple[str, str], named: str, cure: str) -> None:
        path = folder / "agent.toml"
        path.write_text(GOOD.replace(*change))
        with pytest.raises(ConfigurationError) as error:
            load(path)
        text = str(error.value)
        assert str(path) in text
        assert named in text
        assert cure in text

    def test_missing_files_are_named_with_their_key(self, folder: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"nowhere\.toml does not exist"):
            load(folder / "nowhere.toml")
        (folder / "model.onnx").unlink()
        with pytest.raises(ConfigurationError, match=r"key `model` names .*model\.onnx"):
            load(folder / "agent.toml")

    def test_an_artifacts_folder_without_its_files_is_refused(self, folder: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"model\.toml: artifacts folder .*allowedNode\.txt"):
            load(folder / "agent.toml")

    def test_no_camera_at_the_path(self, folder: Path) -> None:
        (folder / "pictures").rmdir()
        with pytest.raises(ConfigurationError, match=r"agent\.toml: key `camera\.source` names .*pictures"):
            load(folder / "agent.toml")

    def test_a_floor_above_the_mean_gap_is_refused(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tidegauge.runtimes.artifact_folder.require", lambda runtime, path: None)
        path = folder / "agent.toml"
        path.write_text(GOOD + "[shadow]\ngap_mean = 5.0\ngap_floor = 5.0\n")
        with pytest.raises(ConfigurationError, match=r"shadow\.gap_floor"):
            load(path)


def name(data_id: int) -> str:
    return f"C7x_1_tidl_trace_subgraph_0_{data_id:04d}_0001_0001_00001_00003_00008x00004.y"


class TestTraces:
    def test_moves_each_trace_when_the_next_opens_and_the_rest_at_the_end(self, tmp_path: Path) -> None:
        source, target = tmp_path / "tmp", tmp_path / "work"
        source.mkdir()
        asyncio.run(self._dump(source, target))

    async def _dump(self, source: Path, target: Path) -> None:
        collector = TraceCollector(source, target)
        collector.start()
        for data_id in range(3):
            path = source / name(data_id)
            path.open("wb").close()  # TIDL opens, closes, and appends to it later
            await asyncio.sleep(0)
            with path.open("ab") as file:
                file.write(bytes([data_id]) * 96)
            if data_id == 1:
                await self._until((target / name(0)).exists)
                assert (source / name(1)).exists(), "the newest is still being written"
        (source / "tidl_trace_subgraph_0_perf.csv").write_text("not a trace")
        found = await collector.finish()
        assert [path.name for path in found] == [name(0), name(1), name(2)]
        assert [path.read_bytes() for path in found] == [bytes([i]) * 96 for i in range(3)]
        assert [path.name for path in source.iterdir()] == ["tidl_trace_subgraph_0_perf.csv"]

    @staticmethod
    async def _until(condition: object) -> None:
        async with asyncio.timeout(10):
            while not condition():  # type: ignore[operator]  # noqa: ASYNC110 - a file sets no event
                await asyncio.sleep(0.005)

    def test_stale_traces_are_told_from_other_files(self, tmp_path: Path) -> None:
        (tmp_path / name(5)).touch()
        (tmp_path / "other.y").touch()
        assert stale_traces(tmp_path) == [tmp_path / name(5)]


class TestBoard:
    @pytest.fixture
    def proc(self, tmp_path: Path) -> Path:
        for pid, command, state, maps in (
            ("11", b"/opt/vx_app_arm_remote_log.out\0", "S", ""),
            ("12", b"/opt/vx_app_arm_remote_log.out\0", "Z", ""),
            ("13", b"/usr/bin/python3\0app.py\0", "S", "7f00-7f01 r-xp /usr/lib/libvx_tidl_rt.so.1.0\n"),
        ):
            folder = tmp_path / pid
            folder.mkdir()
            (folder / "cmdline").write_bytes(command)
            (folder / "stat").write_text(f"{pid} (a (b) c) {state} 1 1")
            (folder / "maps").write_text(maps)
            (folder / "cgroup").write_text("0::/system.slice/product.service\n")
            (folder / "comm").write_text("python3\n")
        (tmp_path / "self").mkdir()
        return tmp_path

    def test_a_zombie_is_no_server(self, proc: Path) -> None:
        assert processes_matching("vx_app_arm_remote_log.out", proc) == [11]

    def test_holders_of_a_session_are_named_by_unit(self, proc: Path) -> None:
        assert tidl_holders(set(), proc) == [(13, "product.service")]
        assert tidl_holders({13}, proc) == []

    def test_the_real_proc_can_be_read(self) -> None:
        assert os.getpid() not in processes_matching("")
        tidl_holders(set())
