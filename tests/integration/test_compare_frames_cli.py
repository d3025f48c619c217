"""`tidegauge compare` over several frames: stale buffers, a bad first run, the PC's run of each frame."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tidegauge.compare import Comparison, compare, exact_from_json, from_json
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.network import load_artifacts
from tidegauge.virtualboard.tracing import file_name, kinds
from unit.compare.lab import Board, build, picture


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("board"), "segmenter")


def session(board: Board, folder: Path, faults: tuple[Fault, ...], frames: int = 3) -> Path:
    """One session that runs several pictures; a folder of traces for each, with its input."""
    network = load_artifacts(board.artifacts)
    twin = Twin(network, faults)
    for number in range(frames):
        place = folder / f"frame{number}"
        place.mkdir(parents=True)
        value = picture(board.shape, 40 + number)
        tensors = twin.run({"input": value}, [layer.name for layer in network.tensors()])
        for layer in network.tensors():
            (kind,) = kinds(layer, 1)
            (place / file_name(layer, "subgraph_0", kind)).write_bytes(tensors[layer.name].tobytes())
        np.save(place / "input.npy", value)
    return folder


def answer_of(board: Board, folder: Path) -> Comparison:
    return compare(folder, model=board.model, tempdir=board.artifacts)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidegauge", "compare", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("layer", ["e2", "mask_original"])
def test_a_layer_that_repeats_the_frame_before_is_called_stale(board: Board, layer: str, tmp_path: Path) -> None:
    answer = answer_of(board, session(board, tmp_path, (Fault(layer, "stale"),)))
    assert [(c.layer, c.cause) for c in answer.culprits] == [(layer, "stale_frame")]
    assert "of the frame before" in answer.culprits[0].detail
    assert all(not item.option for item in answer.culprits[0].advice), "no option cures a stale buffer"


def test_a_tensor_that_stays_as_it_was_is_stale_and_other_faults_are_not(board: Board, tmp_path: Path) -> None:
    folder = session(board, tmp_path / "frozen", ())
    for number in (1, 2):
        for layer in ("mask_original", "mask"):
            first = board.trace_of(folder / "frame0", layer).read_bytes()
            board.trace_of(folder / f"frame{number}", layer).write_bytes(first)
    assert answer_of(board, folder).culprits[0].cause == "stale_frame"
    for kind in ("gain", "band", "channel_swap"):
        other = answer_of(board, session(board, tmp_path / kind, (Fault("e2", kind),)))
        assert other.culprits[0].layer == "e2" and other.culprits[0].cause != "stale_frame"


def test_a_fault_of_the_first_frame_alone_advises_a_warm_up_and_no_option(board: Board, tmp_path: Path) -> None:
    answer = answer_of(board, session(board, tmp_path, (Fault("e2", "first_frame"),)))
    assert [(c.layer, c.cause) for c in answer.culprits] == [("e2", "first_frame")]
    assert "run one inference" in answer.culprits[0].advice[0].why and answer.cure is None


def test_the_pcs_run_of_each_frame_is_paired_with_the_boards(board: Board, tmp_path: Path) -> None:
    device = session(board, tmp_path / "evm", (Fault("e2", "gain", 1.3),))
    host = session(board, tmp_path / "pc", ())
    for file in host.glob("*/C7x_1_*"):
        file.rename(file.with_name(file.name.removeprefix("C7x_1_")))
    bits = run("--device", device, "--host", host, "--artifacts", board.artifacts, "--json", "-")
    exact = exact_from_json(bits.stdout.encode())
    assert bits.returncode == 1 and exact.sentence.startswith("3 of 3 frames differ")
    assert exact.first is not None and exact.tensors[exact.first].name == "e2"
    done = run(
        *("--device", device, "--host", host, "--artifacts", board.artifacts, "--model", board.model),
        *("--json", "-", "--target", "30"),
    )
    answer = from_json(done.stdout.encode())
    assert done.returncode == 1 and answer.rungs is not None and answer.rungs.enters == ("device",)
    assert answer.exact is not None and answer.cure is not None and answer.cure.target_db == 30
    (host / "frame2").rename(tmp_path / "elsewhere")
    short = run("--device", device, "--host", host, "--artifacts", board.artifacts)
    assert short.returncode == 2 and "holds 2 runs, the device 3" in short.stderr


def test_the_cores_log_tells_scales_that_no_table_has(board: Board, tmp_path: Path) -> None:
    folder, lines = board.trace(), []
    for layer in load_artifacts(board.artifacts).tensors():
        values = layer.quant.values(np.fromfile(board.trace_of(folder, layer.name), layer.quant.dtype))
        numbers = f"{layer.quant.scale:15.5f} {values.min():15.5f} {values.max():15.5f}"
        lines.append(f"[C7x_1 ]     12.345678 s:  {layer.data_id:3d} {numbers} {layer.quant.element_type}\n")
    log = tmp_path / "remote.log"
    log.write_text("".join(lines))
    tempdir = tmp_path / "tempDir"
    tempdir.mkdir()
    for file in (board.artifacts / "tempDir").iterdir():
        if file.name.endswith(("layer_info.txt", "netLog.txt")):
            shutil.copy(file, tempdir)
    done = run("--device", folder, "--model", board.model, "--tempdir", tempdir, "--log", log, "--json", "-")
    assert not done.stderr
    answer = from_json(done.stdout.encode())
    assert done.returncode == 0 and answer.scale_sources["log"] >= 10 and "estimate" not in answer.scale_sources
