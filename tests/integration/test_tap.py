"""Applications that run the model themselves, watched through the tap by a real agent on the virtual board."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from needs import unless
from tidegauge.bundles.reader import read_manifest
from tidegauge.demo.settings import PHOTOS
from tidegauge.evaluation.small_board import INFERENCES, VIRTUAL_MODULE, SmallBoard, healthz, metrics, wait_for

APPLICATIONS = Path(__file__).parents[2] / "agent_config" / "applications"
#: Where Debian's own Python keeps GStreamer's bindings, built for the same minor version or not at all.
SYSTEM_PACKAGES = Path("/usr/lib/python3/dist-packages")
SAMPLES = 'tidegauge_shadow_samples_total{model="tiny",result="ok"}'


@pytest.fixture
def board(tmp_path: Path) -> SmallBoard:
    board = SmallBoard(tmp_path)
    board.build()
    return board


def tapped(board: SmallBoard, **changes: dict[str, object]) -> Path:
    camera = {"kind": "tap", "source": "tap.socket", "frames_per_second": 10.0, "read_timeout": 20.0}
    return board.configure(camera=camera, golden={"interval": 5.0}, **changes)


@contextmanager
def application(
    board: SmallBoard, script: str, source: str, *options: str, **more: str
) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(APPLICATIONS / script), "--model", str(board.folder / "tiny.onnx")]
    command += ["--artifacts", str(board.folder / "artifacts"), "--runtime", VIRTUAL_MODULE]
    command += ["--socket", str(board.folder / "tap.socket"), "--source", source, *options]
    with (board.folder / "application.log").open("ab") as log:
        process = subprocess.Popen(command, env={**board.environment, **more}, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_an_application_is_watched_and_closes_its_session_for_a_capture(board: SmallBoard) -> None:
    config = tapped(board)
    with board.remote_log(), board.agent(config) as agent:
        url = board.url(agent)
        wait_for(
            lambda: healthz(url)[1].startswith("no_camera: no application"), 60, "agent that waits for an application"
        )
        assert healthz(url)[0] == 200
        with application(board, "onnxruntime_loop.py", str(PHOTOS)) as loop:
            wait_for(lambda: metrics(url).get(SAMPLES, 0) > 3, 90, "shadow samples of the application's frames")
            done = board.tidegauge("agent", "capture")
            assert done.returncode == 0, done.stderr + board.log() + board.log("application.log")
            (folder,) = (board.state / "spool" / "bundles").iterdir()
            manifest = read_manifest(folder)
            assert manifest.virtual
            assert len(manifest.traces) > 3
            assert "tracing changed the output" not in done.stdout
            before = metrics(url)[INFERENCES]
            wait_for(lambda: metrics(url)[INFERENCES] > before + 20, 60, "frames after the capture")
            assert loop.poll() is None
        wait_for(
            lambda: healthz(url)[1].startswith("no_camera: no application"), 60, "agent that waits for an application"
        )
        with application(board, "onnxruntime_loop.py", str(PHOTOS)):
            before = metrics(url)[INFERENCES]
            wait_for(lambda: metrics(url)[INFERENCES] > before + 5, 60, "frames of an application that came again")
        assert agent.poll() is None


@pytest.mark.slow
def test_a_capture_of_an_application_that_keeps_its_session_is_taken_before_its_next_one(board: SmallBoard) -> None:
    config = tapped(board)
    kept = ("onnxruntime_loop.py", str(PHOTOS), "--keep-session")
    bundles = board.state / "spool" / "bundles"
    with board.remote_log(), board.agent(config) as agent:
        url = board.url(agent)
        with application(board, *kept):
            wait_for(lambda: metrics(url).get(SAMPLES, 0) > 3, 90, "shadow samples of the application's frames")
            asked = board.tidegauge("agent", "capture")
            assert asked.returncode != 0
            assert "does not close it for a capture" in asked.stderr
            assert "put off until its next start" in asked.stderr
            before = metrics(url)[INFERENCES]
            wait_for(lambda: metrics(url)[INFERENCES] > before + 20, 60, "frames of an application left alone")
        assert list(bundles.glob("*")) == []
        with application(board, *kept):
            before = metrics(url)[INFERENCES]
            wait_for(lambda: metrics(url)[INFERENCES] > before + 20, 120, "frames of the session that was held")
            (folder,) = bundles.iterdir()
            manifest = read_manifest(folder)
            assert manifest.virtual
            assert len(manifest.traces) > 3
            left = [path for path in board.traces.iterdir() if "tidl_trace" in path.name]
            assert left == [], "the application's own session dumps nothing"
        with application(board, *kept):
            before = metrics(url)[INFERENCES]
            wait_for(lambda: metrics(url)[INFERENCES] > before + 20, 60, "frames of a start that nothing waits for")
        assert len(list(bundles.iterdir())) == 1, "it is taken once"
        assert agent.poll() is None


@pytest.mark.slow
@unless((SYSTEM_PACKAGES / "gi").is_dir(), "needs python3-gi")
def test_a_gstreamer_application_is_watched(board: SmallBoard, tmp_path: Path) -> None:
    beside = tmp_path / "bindings"
    beside.mkdir()
    (beside / "gi").symlink_to(SYSTEM_PACKAGES / "gi")
    environment = {"PYTHONPATH": str(beside)}
    tried = subprocess.run(
        [sys.executable, "-c", "import gi"], env={**os.environ, **environment}, capture_output=True, check=False
    )
    if tried.returncode != 0:
        pytest.skip("the system's GStreamer bindings are for another Python")
    config = tapped(board)
    with board.agent(config) as agent:
        url = board.url(agent)
        source = "videotestsrc is-live=true pattern=ball ! videoconvert"
        with application(board, "gstreamer_appsink.py", source, **environment):
            try:
                wait_for(lambda: metrics(url).get(SAMPLES, 0) > 1, 90, "shadow samples of the application's frames")
            except TimeoutError:
                pytest.fail(board.log() + board.log("application.log"))
