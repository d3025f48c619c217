"""Cameras that hang and die, by the hundred: the TIDL session isn't touched. A camera or an accelerator that is gone
for long: the agent lives, reports, uploads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from faults.small_board import DOWN, INFERENCES, SmallBoard, frames_go_on, healthz, metrics, wait_for
from integration.link_peer import DEVICE, Mosquitto, TinyCollector, link
from tidegauge.agent.status import WorkerStatus
from tidegauge.bundles.reader import read_manifest
from tidegauge.demo.settings import PHOTOS
from tidegauge.virtualboard.core import CoreState, process_start
from tidegauge.virtualboard.failures import Failure
from tidegauge.virtualboard.state import fail, reboot

#: A process is started for each: a thousand take a quarter of an hour of an idle core.
HANGS = int(os.environ.get("TIDEGAUGE_CAMERA_HANGS", "40"))
CAMERA_DOWN = 'tidegauge_camera_problem{problem="down"}'
KILLS = int(os.environ.get("TIDEGAUGE_CAMERA_KILLS", "15"))
#: Deadlines that a busy machine keeps: here the camera hangs, not the accelerator.
PATIENT = {"start_timeout": 90.0, "first_run_timeout": 60.0, "run_timeout": 30.0}
#: Deadlines that find an accelerator that hangs soon.
HURRIED = {"start_timeout": 40.0, "first_run_timeout": 40.0, "run_timeout": 5.0, "kill_timeout": 0.5}
#: An hour, and every pause and deadline of the agent, shortened to this part.
SCALE = 1 / 120
HOUR = 3600 * SCALE


@pytest.fixture
def board(tmp_path: Path) -> SmallBoard:
    return SmallBoard(tmp_path, virtual=True)


def worker(board: SmallBoard, name: str) -> WorkerStatus:
    return next(each for each in board.status().workers if each.name == name)


def url_of(board: SmallBoard, agent: subprocess.Popen[bytes]) -> str:
    """Of the agent's metrics, however busy the machine is."""
    for _ in range(10):
        with contextlib.suppress(TimeoutError, AssertionError):
            return board.url(agent)
    raise AssertionError("no agent.json")


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def children(pid: int) -> set[int]:
    return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


class SilentCamera:
    """A network camera that takes each connection and never says a word."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.taken = 0
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # closed
            self.taken += 1
            self._held.append(connection)
            if len(self._held) > 20:
                self._held.pop(0).close()

    @contextmanager
    def serving(self) -> Iterator[None]:
        self._thread.start()
        yield
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(5)
        for connection in self._held:
            connection.close()


def one_session(board: SmallBoard) -> None:
    """One create since the board was switched on, held by the first pipeline worker; nothing leaked."""
    now, pipeline = CoreState.load(board.folder / "vb"), worker(board, "pipeline")
    assert pipeline.generation == 1
    assert (now.created, now.failed_creates, now.leaked_bytes) == (1, 0, 0)
    [held] = now.sessions
    assert (held.pid, held.started) == (pipeline.pid, process_start(held.pid))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_camera_that_hangs_again_and_again_costs_no_session(board: SmallBoard) -> None:
    camera = SilentCamera()
    config = board.configure(
        camera={
            "kind": "rtsp", "source": f"rtsp://127.0.0.1:{camera.port}/live", "open_timeout": 0.2, "read_timeout": 0.2,
        },
        runtime=PATIENT,
        supervision={"restart_first": 0.01, "restart_most": 0.02},
    )  # fmt: skip
    with camera.serving(), board.agent(config) as agent:
        url = url_of(board, agent)
        wait_for(lambda: camera.taken >= 3 and worker(board, "pipeline").state == "running", 300, "hung cameras")
        files = open_files(agent.pid)
        wait_for(lambda: camera.taken >= HANGS, 4 * HANGS + 60, f"{HANGS} hangs")
        assert worker(board, "camera").generation >= HANGS
        one_session(board)
        wait_for(lambda: abs(open_files(agent.pid) - files) <= 4, 20, f"as few open files as {files}")
        wait_for(lambda: len(children(agent.pid)) <= 3, 20, "no more than its three workers")
        assert healthz(url)[0] == 200
    assert "Traceback" not in board.log()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_camera_worker_that_is_killed_again_and_again_costs_no_session(board: SmallBoard) -> None:
    with board.agent(board.configure(runtime=PATIENT)) as agent:
        url = url_of(board, agent)
        wait_for(lambda: metrics(url)[INFERENCES] > 3, 300, "device runs")
        files = open_files(agent.pid)
        for number in range(1, KILLS + 1):
            pid = worker(board, "camera").pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP if number % 10 == 0 else signal.SIGKILL)  # every tenth hangs as a whole

            def renewed(number: int = number) -> bool:
                camera = worker(board, "camera")
                return camera.generation == number + 1 and camera.state == "running"

            wait_for(renewed, 60, "new camera worker")
        frames_go_on(url)
        one_session(board)
        wait_for(lambda: abs(open_files(agent.pid) - files) <= 4, 20, f"as few open files as {files}")
    assert "Traceback" not in board.log()


def scaled(board: SmallBoard, broker: Mosquitto, pictures: Path, runtime: dict[str, float]) -> Path:
    """A configuration in which an hour takes half a minute."""
    config = board.configure(
        camera={"kind": "folder", "source": str(pictures), "read_timeout": 5 * SCALE + 1},
        runtime=runtime,
        supervision={"restart_first": 1 * SCALE, "restart_most": 60 * SCALE},
        golden={"interval": 900 * SCALE},
        link={"port": broker.port, "backoff_first": 0.05, "backoff_most": 60 * SCALE},
    )
    config.write_text(config.read_text().replace('device = "small"', f'device = "{DEVICE}"'))
    return config


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("gone", ["camera", "accelerator"])
def test_gone_for_an_hour(board: SmallBoard, gone: str) -> None:
    """The bundle of an earlier capture, which nobody took so far, is uploaded meanwhile."""
    pictures, broker, virtual = board.folder / "pictures", Mosquitto(board.folder), board.folder / "vb"
    shutil.copytree(PHOTOS, pictures)
    config = scaled(board, broker, pictures, PATIENT if gone == "camera" else HURRIED)
    with board.remote_log(), board.agent(config) as agent:
        url = url_of(board, agent)
        wait_for(lambda: metrics(url)[INFERENCES] > 3, 300, "device runs")
        captured = board.tidegauge("agent", "capture")
        assert captured.returncode == 0, captured.stderr
        [bundle] = [read_manifest(path).bundle_id for path in (board.state / "spool" / "bundles").iterdir()]
        if gone == "camera":
            pictures.rename(board.folder / "elsewhere")
            wait_for(lambda: metrics(url)[CAMERA_DOWN] == 1, 60, "a camera that is missed")
        else:
            fail(virtual, (Failure("hang_in_run"),))
            wait_for(lambda: metrics(url)[DOWN] == 1, 300, "an accelerator given up")
        generation = worker(board, "pipeline").generation
        # Alarms are not retained: whoever is to get them listens before the board connects.
        os.kill(agent.pid, signal.SIGSTOP)
        broker.start()
        try:
            asyncio.run(an_hour(url, broker, bundle, gone, lambda: os.kill(agent.pid, signal.SIGCONT)))
        finally:
            broker.kill()
        assert agent.poll() is None
        if gone == "camera":
            assert worker(board, "pipeline").generation == generation
            (board.folder / "elsewhere").rename(pictures)
        else:
            reboot(virtual)
            fail(virtual, ())
            assert board.tidegauge("alarm", "clear").returncode == 0
        before = metrics(url)[INFERENCES]
        wait_for(lambda: metrics(url)[INFERENCES] > before, 300, "device runs again")
    assert "Traceback" not in board.log()


async def an_hour(url: str, broker: Mosquitto, bundle: str, gone: str, listening: Callable[[], None]) -> None:
    """`listening` is called when the collector has subscribed."""
    collector = TinyCollector(link(broker.port))
    try:
        await collector.start()
    finally:
        listening()
    try:
        until = time.monotonic() + HOUR
        await collector.until(lambda: bundle in collector.final, 60)
        await collector.until(lambda: bool(collector.status), 60)
        while time.monotonic() < until:
            code, said = await asyncio.to_thread(healthz, url)
            assert code == 200, said
            await asyncio.sleep(1.0)
        assert collector.status[-1].state == "online"
        wanted = "no_camera" if gone == "camera" else "stopped_alarmed"
        assert wanted in (await asyncio.to_thread(healthz, url))[1]
        if gone == "accelerator":
            wanted_alarms = {"accelerator_hung", "accelerator_down"}
            await collector.until(lambda: {alarm.detector for alarm in collector.alarms} >= wanted_alarms, 60)
    finally:
        await collector.stop()
