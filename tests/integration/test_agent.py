"""The agent as a process, over the virtual board, with no broker: metrics, known answer, capture, spool, shutdown."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from needs import program
from tidegauge.bundles.reader import read_manifest
from tidegauge.demo.board import compile_demo
from tidegauge.demo.broker import free_port
from tidegauge.demo.settings import Places, agent_settings, write_toml
from tidegauge.evaluation.small_board import metrics, wait_for
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.state import BoardState, inject

LAYER = "/conv3/Relu_output_0"


class Board:
    """A compiled virtual board with its remote-log server, and agents that run on it."""

    def __init__(self, folder: Path) -> None:
        self.places = Places(folder)
        for each in (self.places.logs, self.places.traces):
            each.mkdir(parents=True)
        compile_demo(self.places, seed=5)
        BoardState(trace_folder=str(self.places.traces)).save(self.places.virtual)
        self.environment = {**os.environ, "TIDEGAUGE_VIRTUALBOARD": str(self.places.virtual)}

    def configure(self, **changes: dict[str, Any]) -> Path:
        """Write agent.toml; nobody listens on the broker's port."""
        settings = agent_settings(
            self.places,
            free_port(),
            seed=5,
            remote_log=f"remote-log {self.places.virtual}",
            remote_log_file=self.places.virtual / "remote_log.txt",
        )
        settings["golden"]["interval"] = 3.0
        for table, values in changes.items():
            settings[table] = {**settings.get(table, {}), **values}
        path = self.places.board / "agent.toml"
        write_toml(path, settings)
        return path

    @contextmanager
    def running(self, *arguments: str, log: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self.places.logs / log).open("ab") as output:
            command = [sys.executable, "-m", "tidegauge", *arguments]
            process = subprocess.Popen(command, env=self.environment, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self, name: str) -> str:
        return (self.places.logs / name).read_text(errors="replace")

    def metrics_url(self) -> str:
        ready = self.places.state / "agent.json"
        wait_for(ready.exists, 30, "agent.json")
        url: str = json.loads(ready.read_text())["metrics"]
        return url


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def query(port: int, expression: str) -> list[Any]:
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            found: list[Any] = json.load(answer)["data"]["result"]
            return found
    except OSError:
        return []


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[int]:
    binary = program("prometheus", "prometheus")
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: tidegauge, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    port = free_port()
    command = [
        binary,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(15)


@pytest.mark.timeout(400)
def test_a_fault_becomes_an_alarm_a_scrape_and_a_bundle_though_no_broker_is_there(board: Board, tmp_path: Path) -> None:
    config = board.configure()
    with (
        board.running("virtualboard", "remote-log", str(board.places.virtual), log="remote.log"),
        board.running("agent", "run", "--config", str(config), log="agent.log") as agent,
    ):
        url = board.metrics_url()
        golden = 'tidegauge_known_answer_checks_total{model="enhancer",result="ok",side="device"}'
        wait_for(lambda: metrics(url).get(golden, 0) > 0, 150, "known-answer check")
        check = subprocess.run(
            [program("promtool", "prometheus"), "check", "metrics"],
            input=urllib.request.urlopen(url, timeout=5).read(),
            capture_output=True,
            check=False,
        )
        assert (check.returncode, check.stdout + check.stderr) == (0, b"")
        mapped = Path(f"/proc/{agent.pid}/maps").read_text()
        assert not re.search(r"onnxruntime|tflite|litert|cv2", mapped), "the agent's own process loads no runtime"
        with prometheus(tmp_path, urllib.parse.urlparse(url).netloc) as port:
            expression = 'tidegauge_drift_alarm{cause="accelerator"}'
            before = wait_for(lambda: query(port, expression), 40, "scrape")
            assert before[0]["value"][1] == "0"
            inject(board.places.virtual, (Fault(LAYER, "gain"),), board.places.board / "artifacts")
            alarm = wait_for(lambda: query(port, f"{expression} == 1"), 150, "drift alarm in Prometheus")
        assert alarm[0]["metric"]["model"] == "enhancer"
        captured = 'tidegauge_captures_total{result="captured"}'
        wait_for(lambda: metrics(url).get(captured, 0) == 1, 150, "capture")
        wait_for(lambda: metrics(url)["tidegauge_spool_bundles"] == 1, 10, "bundle in the spool")
        assert metrics(url)["tidegauge_mqtt_connected"] == 0
        text = urllib.request.urlopen(url, timeout=5).read().decode()
        series = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert len(series) <= 300
        inferences = 'tidegauge_inferences_total{model="enhancer"}'
        after = metrics(url)[inferences]
        wait_for(lambda: metrics(url)[inferences] > after + 5, 30, "frames after the capture")
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(5) == 0
    assert "Traceback" not in board.log("agent.log")
    [bundle] = (board.places.state / "spool" / "bundles").iterdir()
    manifest = read_manifest(bundle)
    assert manifest.virtual
    assert (manifest.cause.verdict, manifest.cause.severity) == ("accelerator", "critical")
    assert manifest.cause.replay == "undecided", "the device has repeated its wrong answer; there is no emulator"
    assert not manifest.tracing_changed_output
    assert len(manifest.traces) > 50
    assert {trace.dtype for trace in manifest.traces} >= {"uint8", "int16", "float32"}
    assert list(board.places.traces.iterdir()) == []

    # A restart keeps the alarm latched, and takes no second capture for it.
    with board.running("agent", "run", "--config", str(config), log="again.log") as agent:
        url = board.metrics_url()
        assert metrics(url)['tidegauge_drift_alarm{cause="accelerator",model="enhancer"}'] == 1
        wait_for(
            lambda: metrics(url).get(golden, 0) + metrics(url).get(golden.replace("ok", "mismatch"), 0) > 0,
            150,
            "round",
        )
        assert metrics(url)[captured] == 0
        agent.send_signal(signal.SIGINT)
        assert agent.wait(5) == 0


@pytest.mark.timeout(400)
def test_without_a_remote_log_server_the_capture_is_refused_and_nothing_hangs(board: Board) -> None:
    config = board.configure()
    with board.running("agent", "run", "--config", str(config), log="agent.log"):
        url = board.metrics_url()
        golden = 'tidegauge_known_answer_checks_total{model="enhancer",result="ok",side="device"}'
        wait_for(lambda: metrics(url).get(golden, 0) > 0, 150, "known-answer check")
        inject(board.places.virtual, (Fault(LAYER, "zero"),), board.places.board / "artifacts")
        wait_for(lambda: metrics(url).get('tidegauge_captures_total{result="refused"}', 0) == 1, 150, "refusal")
        assert "remote-log server" in board.log("agent.log")
        inferences = 'tidegauge_inferences_total{model="enhancer"}'
        before = metrics(url)[inferences]
        wait_for(lambda: metrics(url)[inferences] > before, 30, "frames go on")


class TestRefusals:
    """One sentence that names the thing and the cure, exit code 2, no traceback."""

    def refused(self, board: Board, config: Path) -> str:
        command = [sys.executable, "-m", "tidegauge", "agent", "run", "--config", str(config)]
        done = subprocess.run(command, env=board.environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        lines = [line for line in done.stderr.splitlines() if line.startswith("tidegauge: ")]
        assert len(lines) == 1
        return lines[0]

    def test_a_busy_port(self, board: Board) -> None:
        with socket.socket() as busy:
            busy.bind(("127.0.0.1", 0))
            busy.listen()
            port = busy.getsockname()[1]
            said = self.refused(board, board.configure(metrics={"port": port}))
        assert f"127.0.0.1:{port}" in said
        assert "metrics.port" in said

    def test_an_unreadable_model(self, board: Board) -> None:
        config = board.configure()
        model = board.places.board / "model" / "enhancer.onnx"
        model.write_bytes(model.read_bytes()[:1000])
        assert "enhancer.onnx" in self.refused(board, config)

    def test_artifacts_without_their_files(self, board: Board) -> None:
        config = board.configure()
        (board.places.board / "artifacts" / "subgraph_0_tidl_io_1.bin").unlink()
        said = self.refused(board, config)
        assert "subgraph_0_tidl_io_1.bin" in said or "_tidl_io_1.bin" in said
        assert not board.places.state.exists(), "nothing half-written"

    def test_no_pictures(self, board: Board, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        config = board.configure(camera={"kind": "folder", "source": str(tmp_path / "empty")})
        said = self.refused(board, config)
        assert str(tmp_path / "empty") in said

    def test_a_missing_key(self, board: Board) -> None:
        config = board.configure()
        config.write_text(re.sub(r"^device = .*\n", "", config.read_text(), flags=re.MULTILINE))
        assert "`device` is missing" in self.refused(board, config)
