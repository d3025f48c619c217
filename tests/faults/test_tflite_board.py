"""The whole agent with a TFLite model, behind TI's delegate as the virtual board emulates it."""

from __future__ import annotations

import hashlib
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults.small_board import DOWN, HEIGHT, INFERENCES, WIDTH, SmallBoard, frames_go_on, metrics, restarts, wait_for
from tidegauge.bundles.reader import read_blob, read_manifest
from tidegauge.demo.settings import write_toml
from tidegauge.virtualboard import tracing
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.failures import Failure, FailureName
from tidegauge.virtualboard.network import load_artifacts, subgraph_names
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.state import fail, reboot
from unit.virtualboard.tflite_models import small_enhancer


class TfliteBoard(SmallBoard):
    """As its base, with a TFLite model."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, virtual=True)
        shutil.rmtree(folder / "artifacts")
        model = small_enhancer(folder / "tiny.tflite", HEIGHT, WIDTH)
        rng = np.random.default_rng(3)
        frames = [{"input": rng.random((1, HEIGHT, WIDTH, 3), np.float32)} for _ in range(4)]
        compile_model(model, folder / "artifacts", frames, CompileOptions(calibration_frames=4))
        shutil.rmtree(folder / "artifacts" / "tempDir")

    def configure(self, **changes: dict[str, Any]) -> Path:
        runtime = {"module": "tidegauge.virtualboard.tflite_runtime_tidl", "start_timeout": 60.0}
        runtime |= changes.pop("runtime", {})
        path = super().configure(runtime=runtime, **changes)
        profile = tomllib.loads((self.folder / "tiny.toml").read_text())
        profile |= {"runtime": "tflite", "model": "tiny.tflite"}
        profile["preprocess"]["layout"] = profile["output"]["layout"] = "NHWC"
        write_toml(self.folder / "tiny.toml", profile)
        return path


@pytest.fixture
def board(tmp_path: Path) -> SmallBoard:
    return TfliteBoard(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_runs_are_proven_and_a_capture_brings_every_trace_under_the_old_names(board: SmallBoard) -> None:
    with board.remote_log(), board.agent(board.configure()) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[INFERENCES] > 3, 180, "device runs")
        assert "tflite_tidl is up, offloaded to libtidl_tfl_delegate.so" in board.log()
        assert board.status().virtual
        done = board.tidegauge("agent", "capture")
        assert done.returncode == 0, done.stderr + board.log()
        frames_go_on(url)
        assert not list(board.traces.iterdir())
    [bundle] = (board.state / "spool" / "bundles").iterdir()
    manifest = read_manifest(bundle)
    [stored] = manifest.inputs
    picture = np.frombuffer(read_blob(bundle, stored.blob, 1 << 26), np.float32).reshape(stored.spec.shape)
    assert picture.shape == (1, 24, 32, 3)
    network = load_artifacts(board.folder / "artifacts")
    values = Twin(network).run({"input": picture}, [layer.name for layer in network.tensors()])
    [number] = subgraph_names(board.folder / "artifacts")
    assert number.isdigit(), "named by the index of the output tensor"
    assert {trace.file: trace.sha256 for trace in manifest.traces} == {
        tracing.file_name(layer, number, kind): hashlib.sha256(
            tracing.content(layer, values[layer.name], kind)
        ).hexdigest()
        for layer in network.tensors()
        for kind in tracing.kinds(layer, 1)
    }
    assert not manifest.tracing_changed_output
    assert manifest.loss is None or manifest.loss < 0.5
    assert "Traceback" not in board.log()


#: What the agent calls each; a create that failed is found out by its zeros.
REASONS: list[tuple[FailureName, str]] = [
    ("create_fails", "not_offloaded"),
    ("no_delegation", "not_offloaded"),
    ("exit_in_create", "exited"),
    ("invoke_fails", "failed"),
]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "reason"), REASONS)
def test_a_board_that_never_runs(board: SmallBoard, name: FailureName, reason: str) -> None:
    fail(board.folder / "vb", (Failure(name),))
    with board.agent(board.configure(supervision={"failed_creates": 2})) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[DOWN] == 1, 90, "an accelerator given up")
        found = metrics(url)
        assert found[restarts(reason)] == 2, board.log()
        assert found[INFERENCES] == 0, "no answer was published"
        fail(board.folder / "vb", ())
        assert board.tidegauge("alarm", "clear").returncode == 0
        frames_go_on(url)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hung_c7x_is_given_up_until_the_reboot(board: SmallBoard) -> None:
    config = board.configure(
        supervision={"failed_creates": 2},
        runtime={"first_run_timeout": 25.0, "run_timeout": 2.0, "kill_timeout": 0.5},
    )
    with board.agent(config) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[INFERENCES] > 3, 180, "device runs")
        fail(board.folder / "vb", (Failure("hang_in_run"),))
        wait_for(lambda: metrics(url)[DOWN] == 1, 90, "an accelerator given up")
        assert metrics(url)[restarts("hung")] == 1
        reboot(board.folder / "vb")
        fail(board.folder / "vb", ())
        assert board.tidegauge("alarm", "clear").returncode == 0
        frames_go_on(url)
