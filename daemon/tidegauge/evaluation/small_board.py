"""A tiny model on the virtual board, and agents that run on it as processes: for evaluations and for tests.

What is known of an agent comes from what anybody can see: its metrics page, its control socket, the results socket, the
state folder.
"""

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tidegauge.demo.broker import free_port
from tidegauge.demo.settings import PHOTOS, write_toml
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.state import BoardState

WIDTH, HEIGHT = 32, 24
MODEL = "tiny"
VIRTUAL_MODULE = "tidegauge.virtualboard.onnxruntime_tidl"
STOP_SECONDS = 15.0
#: For an agent to say where its metrics are, on a machine that is busy with much else.
START_SECONDS = 90.0


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Afterwards it is ended by SIGTERM, and by SIGKILL where it doesn't listen."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """What `condition` returned once it was true. Raises TimeoutError after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise TimeoutError(f"no {what} within {seconds:.0f} s")


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
    """A folder with a model, its artifacts (without tempDir: it usually stays on the PC), a virtual board and the
    configuration of an agent."""

    module = VIRTUAL_MODULE

    def __init__(self, folder: Path) -> None:
        """Of a folder that `build` or `copy` has filled."""
        self.folder = folder
        self.state, self.virtual_folder, self.traces = folder / "state", folder / "vb", folder / "vb" / "tmp"

    def build(self, network: onnx.ModelProto | None = None, options: CompileOptions | None = None) -> None:
        """Compile `network` (the tiny one, or one with the same input and output) for a new board."""
        self.traces.mkdir(parents=True)
        onnx.save(network or tiny_network(), self.folder / "tiny.onnx")
        rng = np.random.default_rng(3)
        frames = [{"input": rng.random((1, 3, HEIGHT, WIDTH), np.float32)} for _ in range(4)]
        artifacts = self.folder / "artifacts"
        compile_model(self.folder / "tiny.onnx", artifacts, frames, options or CompileOptions(calibration_frames=4))
        shutil.rmtree(artifacts / "tempDir")
        BoardState(trace_folder=str(self.traces)).save(self.virtual_folder)

    def copy(self, folder: Path) -> SmallBoard:
        """The same model, state and spool in a new folder, on a virtual board that was just switched on."""
        folder.mkdir(parents=True)
        shutil.copyfile(self.folder / "tiny.onnx", folder / "tiny.onnx")
        shutil.copytree(self.folder / "artifacts", folder / "artifacts")
        if self.state.exists():
            gone = shutil.ignore_patterns("logs", "work", "*.socket", "agent.json", "agent.lock")
            shutil.copytree(self.state, folder / "state", ignore=gone)
        other = SmallBoard(folder)
        other.traces.mkdir(parents=True)
        BoardState(trace_folder=str(other.traces)).save(other.virtual_folder)
        return other

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "TIDEGAUGE_VIRTUALBOARD": str(self.virtual_folder)}

    @property
    def remote_log_text(self) -> str:
        return f"remote-log {self.virtual_folder}"

    def configure(self, **changes: Mapping[str, Any]) -> Path:
        """Write agent.toml and the profile; deadlines and pauses are short. Nobody listens on the broker's port."""
        settings = self.settings()
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

    def settings(self) -> dict[str, Any]:
        return {
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
            "runtime": {"module": self.module, "start_timeout": 20.0, "first_run_timeout": 20.0, "run_timeout": 2.0},
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
                "remote_log_file": str(self.virtual_folder / "remote_log.txt"),
                "room_mib": 8,
            },
            "metrics": {"port": 0},
            "link": {"host": "127.0.0.1", "port": free_port(), "backoff_first": 20.0, "backoff_most": 20.0},
        }

    @contextmanager
    def running(self, *command: str, log: str) -> Iterator[subprocess.Popen[bytes]]:
        """A Python program, `ended` after it."""
        with (self.folder / log).open("ab") as output:
            process = subprocess.Popen([sys.executable, *command], env=self.environment, stdout=output, stderr=output)
        with ended(process):
            yield process

    @contextmanager
    def agent(self, config: Path, log: str = "agent.log") -> Iterator[subprocess.Popen[bytes]]:
        with self.running("-m", "tidegauge", "agent", "run", "--config", str(config), log=log) as process:
            yield process

    @contextmanager
    def remote_log(self) -> Iterator[subprocess.Popen[bytes]]:
        command = ("-m", "tidegauge", "virtualboard", "remote-log", str(self.virtual_folder))
        with self.running(*command, log="remote.log") as process:
            yield process

    def tidegauge(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command to the agent of this board."""
        return self.tidegauge_plain(*arguments, "--state", str(self.state))

    def tidegauge_plain(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tidegauge", *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=False)

    def log(self, name: str = "agent.log") -> str:
        return (self.folder / name).read_text(errors="replace")

    def url(self, agent: subprocess.Popen[bytes]) -> str:
        """Of this agent's `/metrics`, once it is there."""

        def found() -> str:
            try:
                ready = json.loads((self.state / "agent.json").read_text())
            except FileNotFoundError:
                return ""
            return str(ready["metrics"]) if ready["pid"] == agent.pid else ""

        url: str = wait_for(found, START_SECONDS, "agent.json")
        return url


def metrics(url: str) -> dict[str, float]:
    """The page's samples by name and labels. It may be a second old."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        text = answer.read().decode()
    return {
        match["name"]: float(match["value"])
        for match in re.finditer(r"^(?P<name>[a-z_]+(?:\{[^}]*\})?) (?P<value>\S+)$", text, re.MULTILINE)
    }


def healthz(url: str) -> tuple[int, str]:
    """Status code and text."""
    try:
        with urllib.request.urlopen(url.replace("/metrics", "/healthz"), timeout=5) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()


def restarts(reason: str) -> str:
    """Name and labels of the counter of replaced pipeline workers."""
    return f'tidegauge_accelerator_restarts_total{{model="{MODEL}",reason="{reason}"}}'


INFERENCES = f'tidegauge_inferences_total{{model="{MODEL}"}}'
DOWN = f'tidegauge_accelerator_down{{model="{MODEL}"}}'
SUSPECT = f'tidegauge_accelerator_suspect{{model="{MODEL}"}}'
ALARM = f'tidegauge_drift_alarm{{cause="accelerator",model="{MODEL}"}}'
