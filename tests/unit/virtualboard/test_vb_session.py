"""TI's call shapes, and the ways in which TI's stack fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from tidegauge.errors import TidegaugeError
from tidegauge.tidl import offload, remote_log, tensor_table, trace_names
from tidegauge.tidl.remote_log import LogCause
from tidegauge.virtualboard import onnxruntime_tidl as ort
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.network import load_artifacts
from tidegauge.virtualboard.state import FILE, VARIABLE, BoardState, board_folder, inject

Tensors = dict[str, np.ndarray]
TIDL_FIRST = ["TIDLExecutionProvider", "CPUExecutionProvider"]


def open_session(model: Path, folder: Path, level: int = 0, **options: str) -> Any:
    chosen = {"artifacts_folder": str(folder), "debug_level": str(level), **options}
    return ort.InferenceSession(
        str(model), providers=TIDL_FIRST, provider_options=[chosen, {}], sess_options=ort.SessionOptions()
    )


def test_it_runs_on_the_device_and_proves_it(board: Path, enhancer: Path, artifacts: Path, picture: Tensors) -> None:
    session = open_session(enhancer, artifacts)
    assert [(i.name, i.shape, i.type) for i in session.get_inputs()] == [("input", [1, 3, 24, 32], "tensor(float)")]
    first = session.run(None, picture)[0]
    second = session.run(["enhanced"], picture)[0]
    assert first.tobytes() == second.tobytes() == open_session(enhancer, artifacts).run(None, picture)[0].tobytes()
    proof = offload.prove_onnx(session.get_providers(), session.get_TI_benchmark_data(), virtual=ort.VIRTUAL)
    assert proof.subgraphs == ("subgraph_0",)
    stamps = session.get_TI_benchmark_data()
    order = ["ts:run_start", *(f"ts:subgraph_subgraph_0_{k}" for k in ("copy_in_start", "copy_in_end", "proc_start"))]
    order += [f"ts:subgraph_subgraph_0_{k}" for k in ("proc_end", "copy_out_start", "copy_out_end")] + ["ts:run_end"]
    assert [stamps[k] for k in order] == sorted(stamps[k] for k in order)
    assert {"ddr:read_start", "ddr:read_end", "ddr:write_start", "ddr:write_end"} <= set(stamps)
    reference = ort.InferenceSession(str(enhancer), providers=["CPUExecutionProvider"]).run(None, picture)[0]
    difference = np.abs(first - reference)
    assert 0 < difference.max() < 0.1


def test_a_bad_artifacts_folder_falls_back_to_the_cpu_in_silence(
    board: Path, enhancer: Path, tmp_path: Path, picture: Tensors, capfd: pytest.CaptureFixture[str]
) -> None:
    session = open_session(enhancer, tmp_path / "none")
    said = capfd.readouterr().out
    assert "ERROR : artifacts_folder not a directory" in said
    assert remote_log.cause(next(x for x in said.splitlines() if x.startswith("EP Error"))) is LogCause.CPU_FALLBACK
    assert "Falling back to ['CPUExecutionProvider'] and retrying." in said
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.run(None, picture)[0].shape == (1, 3, 24, 32)
    assert offload.subgraphs(session.get_TI_benchmark_data()) == ()


def test_a_wrong_priority_falls_back_too(
    board: Path, enhancer: Path, artifacts: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert open_session(enhancer, artifacts, priority="9").get_providers() == ["CPUExecutionProvider"]
    assert "Please provide priority betweeen 0-7 ... exiting" in capfd.readouterr().out


def test_without_allowed_nodes_the_cpu_runs_under_tidls_name(
    board: Path, enhancer: Path, artifacts: Path, tmp_path: Path, picture: Tensors, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(artifacts, tmp_path / "copy")
    (tmp_path / "copy" / "allowedNode.txt").unlink()
    session = open_session(enhancer, tmp_path / "copy")
    assert "Entire model will run on ARM without any delegation" in capfd.readouterr().out
    session.run(None, picture)
    assert session.get_providers() == TIDL_FIRST
    with pytest.raises(offload.NotOffloaded):
        offload.prove_onnx(session.get_providers(), session.get_TI_benchmark_data())


def test_the_cpu_first_takes_everything(board: Path, enhancer: Path, artifacts: Path, picture: Tensors) -> None:
    session = ort.InferenceSession(
        str(enhancer), providers=TIDL_FIRST[::-1], provider_options=[{}, {"artifacts_folder": str(artifacts)}]
    )
    session.run(None, picture)
    assert offload.subgraphs(session.get_TI_benchmark_data()) == ()


def test_another_releases_descriptor_fails_the_create(
    board: Path, enhancer: Path, artifacts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(artifacts, tmp_path / "copy")
    (tmp_path / "copy" / "subgraph_0_tidl_io_1.bin").write_bytes(b"\0" * 93976)
    with pytest.raises(Fail, match="Create state function failed"):
        open_session(enhancer, tmp_path / "copy")
    said = "Config file size (93976 bytes) does not match size of sTIDL_IOBufDesc_t (94616 bytes)"
    assert said in capfd.readouterr().out


def test_another_releases_network_fails_the_create(board: Path, enhancer: Path, artifacts: Path) -> None:
    BoardState(firmware_version=0x20241120).save(board)
    with pytest.raises(Fail, match="Create state function failed"):
        open_session(enhancer, artifacts)
    line = remote_log.parse((board / "remote_log.txt").read_text())
    assert line.core == "C7x_1"
    assert "Network version - 0x20250821, Expected version - 0x20241120" in line.text


def test_artifacts_of_another_model_are_refused(board: Path, artifacts: Path, tmp_path: Path) -> None:
    import onnx
    from onnx import helper

    made = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", made[:1], made[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "other.onnx"
    )
    with pytest.raises(Fail, match="belong to a model with inputs"):
        open_session(tmp_path / "other.onnx", artifacts)


def test_start_up_lines_only_from_debug_level_1(
    board: Path, enhancer: Path, artifacts: Path, picture: Tensors, capfd: pytest.CaptureFixture[str]
) -> None:
    open_session(enhancer, artifacts).run(None, picture)
    assert capfd.readouterr().out == ""
    open_session(enhancer, artifacts, 1).run(None, picture)
    said = capfd.readouterr().out
    nodes = load_artifacts(artifacts).nodes
    assert f"Final number of subgraphs created are : 1, - Offloaded Nodes - {nodes}, Total Nodes - {nodes}" in said
    assert "Sub Graph Stats " in said
    assert "Alg Init for Layer # -" in (board / "remote_log.txt").read_text()


def traces(board: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in Path(BoardState.load(board).trace_folder).iterdir()}


def test_level_3_dumps_codes_and_float_outputs(
    board: Path, log_server: BytesIO, enhancer: Path, artifacts: Path, picture: Tensors
) -> None:
    plain = open_session(enhancer, artifacts).run(None, picture)[0]
    output = open_session(enhancer, artifacts, 3).run(None, picture)[0]
    assert output.tobytes() == plain.tobytes()
    found = {trace_names.parse(name): data for name, data in traces(board).items()}
    network = load_artifacts(artifacts)
    assert None not in found
    by_id = {name.data_id: (name, data) for name, data in found.items() if name is not None}
    assert sorted(by_id) == [layer.data_id for layer in network.tensors()]
    table = {info.data_id: info for info in tensor_table.from_remote_log((board / "remote_log.txt").read_text())}
    for layer in network.tensors():
        name, data = by_id[layer.data_id]
        assert (name.cpu, name.subgraph, name.dims) == ("C7x_1", "subgraph_0", layer.dims)
        assert name.kind == ("float" if layer.quant.is_float else "y")
        assert len(data) == trace_names.expected_bytes(layer.dims, str(layer.quant.dtype))
        assert table[layer.data_id].scale == pytest.approx(layer.quant.scale, abs=1e-5)
        assert table[layer.data_id].dtype == str(layer.quant.dtype)
    assert by_id[network.layer("enhanced").data_id][1] == output.astype("<f4").tobytes()


def test_level_4_adds_the_values(
    board: Path, log_server: BytesIO, enhancer: Path, artifacts: Path, picture: Tensors
) -> None:
    open_session(enhancer, artifacts, 4).run(None, picture)
    network = load_artifacts(artifacts)
    found = traces(board)
    assert len(found) == 2 * len(network.tensors()) - 1
    layer = network.layer("curves")
    stem = next(name for name in found if f"_{layer.data_id:04d}_0001_" in name and name.endswith(".y")).removesuffix(
        ".y"
    )
    codes = np.frombuffer(found[f"{stem}.y"], "<i1").astype(np.float32)
    values = np.frombuffer(found[f"{stem}_float.bin"], "<f4")
    assert np.array_equal(values, (codes - layer.quant.zero_point) / np.float32(layer.quant.scale))


def test_a_traced_session_poisons_others_until_the_next_create(
    board: Path, log_server: BytesIO, enhancer: Path, artifacts: Path, picture: Tensors
) -> None:
    production = open_session(enhancer, artifacts)
    production.run(None, picture)
    assert not traces(board)
    debug = open_session(enhancer, artifacts, 3)
    del debug  # closing it changes nothing
    production.run(None, picture)
    assert traces(board)
    for name in traces(board):
        (Path(BoardState.load(board).trace_folder) / name).unlink()
    open_session(enhancer, artifacts)
    production.run(None, picture)
    assert not traces(board)


def test_without_a_remote_log_server_a_traced_run_hangs_until_there_is_one(
    board: Path, enhancer: Path, artifacts: Path, picture: Tensors
) -> None:
    from tidegauge.virtualboard import remote_log as server

    session = open_session(enhancer, artifacts, 3)
    done = threading.Event()
    runner = threading.Thread(target=lambda: (session.run(None, picture), done.set()), daemon=True)
    runner.start()
    assert not done.wait(0.5)
    assert not traces(board)
    stop = threading.Event()
    serving = threading.Thread(target=server.serve, args=(board, BytesIO(), stop))
    serving.start()
    try:
        assert done.wait(20)
    finally:
        stop.set()
        serving.join(5)
    assert traces(board)


def test_a_dump_opens_closes_and_reopens_each_file(
    board: Path, log_server: BytesIO, enhancer: Path, artifacts: Path, picture: Tensors
) -> None:
    from watchdog.events import FileClosedEvent, FileOpenedEvent, FileSystemEvent, FileSystemEventHandler
    from watchdog.observers import Observer

    seen: list[tuple[str, str]] = []
    finished = threading.Event()
    network = load_artifacts(artifacts)

    class Watch(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            if isinstance(event, FileOpenedEvent | FileClosedEvent) and not event.is_directory:
                seen.append((Path(os.fsdecode(event.src_path)).name, event.event_type))
                if sum(kind == "closed" for _, kind in seen) == 2 * len(network.tensors()):
                    finished.set()

    observer = Observer()
    observer.schedule(Watch(), BoardState.load(board).trace_folder)
    observer.start()
    try:
        open_session(enhancer, artifacts, 3).run(None, picture)
        assert finished.wait(10)
    finally:
        observer.stop()
        observer.join()
    names = list(dict.fromkeys(name for name, _ in seen))
    ids = [found.data_id for name in names if (found := trace_names.parse(name)) is not None]
    assert ids == [layer.data_id for layer in network.tensors()]
    for name in names:
        assert [kind for each, kind in seen if each == name] == ["opened", "closed", "opened", "closed"]


def test_an_unwritable_trace_folder_hangs_and_floods_the_log(
    board: Path, log_server: BytesIO, enhancer: Path, artifacts: Path, picture: Tensors, tmp_path: Path
) -> None:
    session = open_session(enhancer, artifacts, 3)
    missing = tmp_path / "missing"
    BoardState(trace_folder=str(missing), trace_write_level=1).save(board)
    done = threading.Event()
    threading.Thread(target=lambda: (session.run(None, picture), done.set()), daemon=True).start()
    assert not done.wait(0.3)
    causes = {remote_log.cause(line) for line in (board / "remote_log.txt").read_text().splitlines()}
    assert LogCause.TRACE_FILE in causes
    missing.mkdir()
    assert done.wait(20)


def test_a_running_session_gets_faults_and_heals(
    board: Path, enhancer: Path, artifacts: Path, picture: Tensors
) -> None:
    session = open_session(enhancer, artifacts)
    healthy = session.run(None, picture)[0]
    inject(board, [Fault("curves", "gain", 3.0)], artifacts)
    sick = session.run(None, picture)[0]
    assert np.abs(sick - healthy).max() > 0.05
    assert open_session(enhancer, artifacts).run(None, picture)[0].tobytes() == sick.tobytes()
    inject(board, [])
    assert session.run(None, picture)[0].tobytes() == healthy.tobytes()


def test_an_impossible_fault_is_refused_at_injection(board: Path, artifacts: Path) -> None:
    with pytest.raises(TidegaugeError, match="layers that can: enhanced"):
        inject(board, [Fault("relu1", "nan")], artifacts)
    assert BoardState.load(board).faults == ()


def test_no_board_is_said_clearly(
    enhancer: Path, artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(TidegaugeError, match=f"{VARIABLE} is not set.*virtualboard init"):
        open_session(enhancer, artifacts)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(TidegaugeError, match=r"is no virtual board: there is no board\.json"):
        board_folder()
    (tmp_path / FILE).write_text('{"version": 2}')
    with pytest.raises(TidegaugeError, match=r"board\.json is damaged"):
        open_session(enhancer, artifacts)


def test_the_agents_runtime_takes_it_for_tis(board: Path, enhancer: Path, artifacts: Path, picture: Tensors) -> None:
    script = """
import sys, numpy as np, msgspec
from tidegauge.profile import Profile, Preprocess, Output
from tidegauge.runtimes.onnx_tidl import OnnxTidlSession
profile = Profile("p", "onnx", sys.argv[1], sys.argv[2], Preprocess(32, 24), Output("enhanced", "image", 1 / 255))
session = OnnxTidlSession(profile, "tidegauge.virtualboard.onnxruntime_tidl")
session.run({"input": np.zeros((1, 3, 24, 32), np.float32)})
proof = session.offload()
assert proof.virtual and proof.subgraphs == ("subgraph_0",), proof
session.close()
"""
    subprocess.run([sys.executable, "-c", script, str(enhancer), str(artifacts)], check=True, timeout=60)
