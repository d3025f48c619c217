"""`tidegauge virtualboard` as a person uses it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tidegauge.cli.virtualboard import command
from tidegauge.errors import TidegaugeError
from tidegauge.tidl import heap_stats, trace_names
from tidegauge.tidl.heap_stats import SHARED, Heap
from tidegauge.tidl.remote_log import parse
from tidegauge.virtualboard import remote_log
from tidegauge.virtualboard.core import CoreState, Held
from tidegauge.virtualboard.failures import MODES, Failure
from tidegauge.virtualboard.state import BoardState

Tensors = dict[str, np.ndarray]


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(command, [str(a) for a in arguments])
    if isinstance(result.exception, TidegaugeError):
        raise result.exception
    return result


def test_compile_layers_run(
    enhancer: Path, calibration: list[Tensors], picture: Tensors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGAUGE_VIRTUALBOARD", "")
    frames = tmp_path / "frames"
    frames.mkdir()
    for number, frame in enumerate(calibration[:-1]):
        np.save(frames / f"{number}.npy", frame["input"])
    np.savez(frames / "named.npz", input=calibration[-1]["input"])
    np.save(tmp_path / "x.npy", picture["input"])
    artifacts = tmp_path / "artifacts"
    done = call(
        *(
            "compile",
            enhancer,
            "--artifacts",
            artifacts,
            "--calibration",
            frames,
            "--16bit",
            "enhanced",
            "--16bit",
            "oops",
        ),
        *("--quantization-scale-type", 4, "--calibration-frames", 4),
    )
    assert done.exit_code == 0, done.output
    assert "Invalid Layer Name  oops" in done.output
    assert "4 calibration frames" in done.output

    listed = json.loads(call("layers", artifacts, "--json").stdout)
    assert listed[0]["name"] == "input_netFormat"
    assert "nan" in listed[-1]["faults"]
    assert "curves" in call("layers", artifacts).stdout

    out = tmp_path / "out"
    run = ("run", artifacts, "--model", enhancer, "--input", tmp_path / "x.npy", "--output", out, "--debug-level", 3)
    assert call(*run).exit_code == 0
    healthy = np.load(out / "enhanced.npy")
    names = [trace_names.parse(path.name) for path in (out / "traces").iterdir()]
    assert len(names) == len(listed)
    assert None not in names
    assert any("C7x_1" in line for line in (out / "remote_log.txt").read_text().splitlines())
    assert call(*run, "--fault", "curves:zero").exit_code == 0
    assert np.abs(np.load(out / "enhanced.npy") - healthy).max() > 0.01
    with pytest.raises(TidegaugeError, match="layers that can: enhanced"):
        call(*run, "--fault", "curves:nan")


def test_bad_files_are_named(enhancer: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.npy"
    bad.write_bytes(b"no tensor")
    for calibration, said in ((bad, r"bad\.npy can't be read as an input tensor"), (tmp_path / "e", "holds no .npy")):
        (tmp_path / "e").mkdir(exist_ok=True)
        with pytest.raises(TidegaugeError, match=said):
            call("compile", enhancer, "--artifacts", tmp_path / "a", "--calibration", calibration)
    with pytest.raises(TidegaugeError, match=r"none\.onnx can't be read"):
        call("compile", tmp_path / "none.onnx", "--artifacts", tmp_path / "a", "--calibration", bad)
    with pytest.raises(TidegaugeError, match=r"subgraph_0_tidl_net\.bin can't be read"):
        call("layers", tmp_path)


def test_init_and_inject(tmp_path: Path, artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "board"
    assert call("init", folder, "--trace-folder", tmp_path, "--trace-op-seconds", 0.01).exit_code == 0
    assert BoardState.load(folder) == BoardState(trace_folder=str(tmp_path), trace_op_seconds=0.01)
    with pytest.raises(TidegaugeError, match="is a board already"):
        call("init", folder)
    monkeypatch.setenv("TIDEGAUGE_VIRTUALBOARD", str(folder))
    assert call("inject", "relu1:gain:2", "--artifacts", artifacts).exit_code == 0
    assert BoardState.load(folder).faults[0].layer == "relu1"
    assert call("inject").exit_code == 0
    assert BoardState.load(folder).faults == ()


def test_failures_heap_and_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, traces = tmp_path / "board", tmp_path / "tmp"
    traces.mkdir()
    assert call("init", folder, "--trace-folder", traces, "--fail", "slow:3", "--fail", "semaphore_held").exit_code == 0
    monkeypatch.setenv("TIDEGAUGE_VIRTUALBOARD", str(folder))
    assert BoardState.load(folder).failures == (Failure("slow", 3), Failure("semaphore_held"))
    said = call("inject", "relu1:gain:2", "--fail", "version_mismatch:0x20240719", "--fail", "semaphore_held").stdout
    assert said == "1 faults, 2 failures\n"
    assert BoardState.load(folder).failing("version_mismatch") == 0x20240719
    with pytest.raises(TidegaugeError, match="there is no failure 'melt'"):
        call("inject", "--fail", "melt")
    assert len(BoardState.load(folder).failures) == 2  # nothing changes where something is wrong
    listed = json.loads(call("failures", "--json").stdout)
    assert [mode["name"] for mode in listed] == list(MODES)

    gone = Held(0, 1 << 22, 5, 1000, 2000)  # a pid that no process has
    CoreState(created=1, leaked_bytes=24, hung="run", sessions=(gone,)).save(folder)
    said = call("heap").stdout
    assert heap_stats.parse(said) == (
        Heap("MPU1_0", SHARED, 172 << 20, (172 << 20) - 2000),
        Heap("C7X_1", "DDR_LOCAL_MEM", 112 << 20, (112 << 20) - 1024),
    )
    assert "24 bytes of the C7x's heap leaked by failed creates" in said
    assert "dead: lost until reboot" in said
    assert "the C7x hangs since a run" in said
    (traces / "C7x_1_tidl_trace_subgraph_0_0001_0001_0001_00001_00001_00001x00001.y").write_bytes(b"1")
    (traces / "other.txt").write_text("stays")
    assert call("reboot").exit_code == 0
    assert CoreState.load(folder) == CoreState()
    assert [failure.name for failure in BoardState.load(folder).failures] == ["version_mismatch"]
    assert [path.name for path in traces.iterdir()] == ["other.txt"]
    assert call("inject").exit_code == 0
    healed = BoardState.load(folder)
    assert (healed.faults, healed.failures) == ((), ())


def test_the_remote_log_process(board: Path) -> None:
    remote_log.append(board, "before anyone reads")
    program = [sys.executable, "-m", "tidegauge", "virtualboard", "remote-log"]
    process = subprocess.Popen(program, stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 30
        while remote_log.server_pid(board) is None:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert remote_log.server_pid(board) == process.pid
        second = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 2
        assert f"(pid {process.pid})" in second.stderr
        remote_log.append(board, "first", "second")
        assert process.stdout is not None
        lines = [parse(process.stdout.readline().decode()) for _ in range(2)]
        assert [(line.core, line.text) for line in lines] == [("C7x_1", "first"), ("C7x_1", "second")]
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert remote_log.server_pid(board) is None
    finally:
        process.kill()
        process.communicate()


def test_a_dead_servers_pid_is_not_alive(board: Path) -> None:
    (board / remote_log.PID_FILE).write_text("1\n")
    assert remote_log.server_pid(board) is None


def test_a_line_is_formatted_as_on_the_board() -> None:
    # from a real log
    assert remote_log.line("CIO: Init ... Done !!!", 4.367809) == "[C7x_1 ]      4.367809 s: CIO: Init ... Done !!!\n"
