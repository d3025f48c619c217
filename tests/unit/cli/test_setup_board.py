"""What `tidegauge setup` finds on a board, and that what it writes is what the loader reads."""

from __future__ import annotations

import socket
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.agent.config import AgentConfig
from tidegauge.errors import TidegaugeError
from tidegauge.setup_board import draft, find
from tidegauge.setup_board.draft import Answers, Virtual
from tidegauge.setup_board.find import Camera

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(
    device=st.from_regex(r"\A[A-Za-z0-9_-]{1,64}\Z"),
    paths=st.tuples(TEXT, TEXT, TEXT, TEXT),
    port=st.integers(1, 65535),
    samples=st.integers(20, 5000),
    gap=st.floats(0.1, 1e5),
    virtual=st.none() | st.builds(Virtual, TEXT, TEXT, TEXT, TEXT),
)
def test_what_is_written_is_what_is_read(
    device: str, paths: tuple[str, str, str, str], port: int, samples: int, gap: float, virtual: Virtual | None
) -> None:
    state, profile, source, host = paths
    answers = Answers(device, state, profile, "rtsp", source, host, port, samples, gap, "schemas/x.json", virtual)
    text = draft.agent_toml(answers)
    config = msgspec.convert(tomllib.loads(text), AgentConfig)
    assert text.startswith("#:schema schemas/x.json\n")
    assert (config.device, config.state, config.profile) == (device, state, profile)
    assert (config.camera.kind, config.camera.source) == ("rtsp", source)
    assert (config.link.host, config.link.port) == (host, port)
    assert (config.acceptance.samples, config.shadow.gap_mean) == (samples, gap)
    assert config.shadow.gap_floor < config.shadow.gap_mean
    assert config.runtime.module == (virtual.module if virtual else "")
    if virtual is not None:
        assert (config.capture.trace_folder, config.capture.remote_log) == (virtual.trace_folder, virtual.remote_log)


@pytest.mark.parametrize(
    ("said", "kind", "source"),
    [
        ("rtsp://10.0.0.2:8554/cam", "rtsp", "rtsp://10.0.0.2:8554/cam"),
        (" /dev/video2 ", "v4l2", "/dev/video2"),
        ("v4l2src device=/dev/video2 ! jpegdec", "gstreamer", "v4l2src device=/dev/video2 ! jpegdec"),
        ("folder:/data/pictures", "folder", "/data/pictures"),
        ("synthetic:photos", "synthetic", "photos"),
    ],
)
def test_a_camera_as_a_person_writes_it(said: str, kind: str, source: str) -> None:
    assert draft.camera(said) == (kind, source)


@pytest.mark.parametrize("said", ["", "webcam", "folder:", "http://x"])
def test_no_camera(said: str) -> None:
    with pytest.raises(TidegaugeError, match="is no camera: give rtsp"):
        draft.camera(said)


def test_a_broker_as_a_person_writes_it() -> None:
    assert draft.broker("broker.example.org") == ("broker.example.org", 1883)
    assert draft.broker("10.0.0.1:8883") == ("10.0.0.1", 8883)
    assert draft.broker("[::1]:1884") == ("::1", 1884)
    for wrong in ("", ":1883", "host:port", "host:99999", "host/path", "host:0"):
        with pytest.raises(TidegaugeError, match="no broker's address"):
            draft.broker(wrong)


def test_cameras_are_the_capture_nodes_by_number(tmp_path: Path) -> None:
    names = {"video10": ("C922", "0"), "video2": ("C922", "0"), "video3": ("C922", "1"), "video0": ("wave5-dec", "0")}
    for node, (name, index) in names.items():
        entry = tmp_path / "sys/class/video4linux" / node
        entry.mkdir(parents=True)
        (entry / "name").write_text(f"{name}\n")
        (entry / "index").write_text(f"{index}\n")
    assert find.cameras(tmp_path) == [Camera("v4l2", "/dev/video2", "C922"), Camera("v4l2", "/dev/video10", "C922")]
    assert find.cameras(tmp_path / "nothing") == []


def test_artifacts_and_their_model(tmp_path: Path) -> None:
    folder = tmp_path / "zoo" / "net" / "artifacts"
    (folder / "tempDir").mkdir(parents=True)
    for place in (folder, folder / "tempDir"):
        (place / "subgraph_0_tidl_net.bin").touch()
        (place / "allowedNode.txt").touch()
    (tmp_path / "zoo" / "half").mkdir()
    (tmp_path / "zoo" / "half" / "subgraph_0_tidl_net.bin").touch()
    assert find.artifacts([tmp_path, tmp_path / "zoo", tmp_path / "not there"]) == [folder]
    assert find.model_of(folder) is None
    (folder.parent / "net.onnx").touch()
    assert find.model_of(folder) == folder.parent / "net.onnx"
    (folder.parent / "other.onnx").touch()
    assert find.model_of(folder) is None, "two: a person must say which"


def test_a_broker_is_found_where_something_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert find.broker(address) == address
    assert find.broker(address) is None


@given(st.text(max_size=80))
def test_any_host_name_gives_a_name_of_a_board(hostname: str) -> None:
    name = find.device_name(hostname)
    assert 1 <= len(name) <= 64
    assert all(letter.isascii() and (letter.isalnum() or letter in "-_") for letter in name)
