"""A tiny model on the virtual board or on the faulty fake accelerator, and agents that run on it as processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tidegauge.agent.control import ask
from tidegauge.agent.control_messages import GetStatus
from tidegauge.agent.status import StatusReport
from tidegauge.camera.folder import list_pictures
from tidegauge.demo.broker import free_port
from tidegauge.demo.settings import PHOTOS, write_toml
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.state import BoardState

WIDTH, HEIGHT = 32, 24
HERE = Path(__file__).parent
MODEL = "tiny"


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"no {what} within {seconds:.0f} s")


def tiny_network() -> onnx.ModelProto:
    """Two convolutions and a sigmoid: `input` → `enhanced`, float32 [1,3,24,32] in 0…1."""
    rng = np.random.default_rng(7)

    def weights(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(rng.normal(0, 0.25, shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["input", "w1", "b1"], ["raw"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["raw"], ["features"]),
        helper.make_node("Conv", ["features", "w2", "b2"], ["logits"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["logits"], ["enhanced"]),
    ]
    shape = [1, 3, HEIGHT, WIDTH]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("enhanced", TensorProto.FLOAT, shape)],
        [weights("w1", 8, 3, 3, 3), weights("b1", 8), weights("w2", 3, 8, 3, 3), weights("b2", 3)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


class SmallBoard:
    """`virtual`: on the virtual board, which can be traced; else on the faulty fake accelerator, told what to do by
    `tell`."""

    def __init__(
        self,
        folder: Path,
        *,
        virtual: bool,
        network: onnx.ModelProto | None = None,
        options: CompileOptions | None = None,
    ) -> None:
        """`network`: another one than the tiny one, with the same input and output."""
        self.folder, self.virtual = folder, virtual
        self.state, self.traces, self.faults = folder / "state", folder / "vb" / "tmp", folder / "faults"
        for each in (self.traces, self.faults):
            each.mkdir(parents=True)
        onnx.save(network or tiny_network(), folder / "tiny.onnx")
        rng = np.random.default_rng(3)
        frames = [{"input": rng.random((1, 3, HEIGHT, WIDTH), np.float32)} for _ in range(4)]
        compile_model(
            folder / "tiny.onnx", folder / "artifacts", frames, options or CompileOptions(calibration_frames=4)
        )
        shutil.rmtree(folder / "artifacts" / "tempDir")  # it usually stays on the PC
        BoardState(trace_folder=str(self.traces)).save(folder / "vb")
        self.environment = {
            **os.environ,
            "TIDEGAUGE_VIRTUALBOARD": str(folder / "vb"),
            "FAULTY_ACCELERATOR": str(self.faults),
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        }
        assert list_pictures(PHOTOS)

    @property
    def remote_log_text(self) -> str:
        return f"remote-log {self.folder / 'vb'}"

    def configure(self, **changes: dict[str, Any]) -> Path:
        module = "tidegauge.virtualboard.onnxruntime_tidl" if self.virtual else "faulty_accelerator"
        settings: dict[str, Any] = {
            "device": "small",
            "state": "state",
            "profile": "tiny.toml",
            "camera": {
                "kind": "synthetic",
                "source": str(PHOTOS),
                "width": 2 * WIDTH,
                "height": 2 * HEIGHT,
                "frames_per_second": 20.0,
                "scene_frames": 8,
                "seed": 1,
            },
            "runtime": {"module": module, "start_timeout": 20.0, "first_run_timeout": 20.0, "run_timeout": 2.0},
            "supervision": {
                "restart_first": 0.05,
                "restart_most": 0.2,
                "create_first": 0.1,
                "create_most": 0.2,
                "failed_creates": 3,
                "restarts_per_day": 50,
            },
            "shadow": {"gap_mean": 0.3, "gap_floor": 0.05, "cpu_share": 0.9, "cpu_window": 10.0},
            # The machine is no board: its load is that of whatever else it does.
            "stand_back": {"temperature": 0.0, "load": 0.0, "latency_rise": 0.0},
            "acceptance": {"samples": 400},
            "golden": {"interval": 30.0},
            "capture": {
                "trace_folder": str(self.traces),
                "remote_log": self.remote_log_text,
                "remote_log_file": str(self.folder / "vb" / "remote_log.txt"),
                "room_mib": 8,
            },
            "metrics": {"port": 0},
            "link": {"host": "127.0.0.1", "port": free_port(), "backoff_first": 20.0, "backoff_most": 20.0},
        }
        for table, values in changes.items():
            settings[table] = {**settings.get(table, {}), **values}
        scale = 1 / 255
        profile = {
            "name": MODEL,
            "runtime": "onnx",
            "model": "tiny.onnx",
            "artifacts": "artifacts",
            "preprocess": {"width": WIDTH, "height": HEIGHT, "scale": [scale, scale, scale]},
            "output": {"name": "enhanced", "kind": "image", "step": 10 / 255},
        }
        write_toml(self.folder / "tiny.toml", profile)
        path = self.folder / "agent.toml"
        write_toml(path, settings)
        return path

    @contextmanager
    def running(self, *command: str, log: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / log).open("ab") as output:
            process = subprocess.Popen([sys.executable, *command], env=self.environment, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @contextmanager
    def agent(self, config: Path, log: str = "agent.log") -> Iterator[subprocess.Popen[bytes]]:
        with self.running("-m", "tidegauge", "agent", "run", "--config", str(config), log=log) as process:
            yield process

    @contextmanager
    def remote_log(self) -> Iterator[subprocess.Popen[bytes]]:
        command = ("-m", "tidegauge", "virtualboard", "remote-log", str(self.folder / "vb"))
        with self.running(*command, log="remote.log") as process:
            yield process

    def tidegauge(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.tidegauge_plain(*arguments, "--state", str(self.state))

    def tidegauge_plain(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tidegauge", *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=False)

    def status(self) -> StatusReport:
        report = ask(self.state, GetStatus()).status
        assert report is not None
        return report

    def tell(self, *faults: str) -> None:
        for fault in faults:
            (self.faults / fault).touch()

    def heal(self) -> None:
        for path in self.faults.iterdir():
            if path.name != "creates":
                path.unlink()

    def log(self, name: str = "agent.log") -> str:
        return (self.folder / name).read_text(errors="replace")

    def url(self, agent: subprocess.Popen[bytes]) -> str:
        """Of this agent's `/metrics`."""

        def found() -> str:
            try:
                ready = json.loads((self.state / "agent.json").read_text())
            except FileNotFoundError:
                return ""
            return str(ready["metrics"]) if ready["pid"] == agent.pid else ""

        url: str = wait_for(found, 30, "agent.json")
        return url


def metrics(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=5) as answer:
        text = answer.read().decode()
    return {
        match["name"]: float(match["value"])
        for match in re.finditer(r"^(?P<name>[a-z_]+(?:\{[^}]*\})?) (?P<value>\S+)$", text, re.MULTILINE)
    }


def healthz(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url.replace("/metrics", "/healthz"), timeout=5) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()


def restarts(reason: str) -> str:
    return f'tidegauge_accelerator_restarts_total{{model="{MODEL}",reason="{reason}"}}'


INFERENCES = f'tidegauge_inferences_total{{model="{MODEL}"}}'
DOWN = f'tidegauge_accelerator_down{{model="{MODEL}"}}'
SUSPECT = f'tidegauge_accelerator_suspect{{model="{MODEL}"}}'
ALARM = f'tidegauge_drift_alarm{{cause="accelerator",model="{MODEL}"}}'


def frames_go_on(url: str, more: int = 3) -> None:
    before = metrics(url)[INFERENCES]
    wait_for(lambda: metrics(url)[INFERENCES] >= before + more, 30, "more device runs")
