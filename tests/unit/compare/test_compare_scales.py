"""Scales from poorer sources: the C7x's log, and an estimate that says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tidegauge.compare import compare
from tidegauge.compare.compiled import read_tempdir
from tidegauge.compare.load import Source, from_folder
from tidegauge.compare.traces import device_tensors
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.network import load_artifacts
from unit.compare.lab import Board, build

ELEMENTS = {"uint8": 0, "int8": 1, "uint16": 2, "int16": 3, "float32": 6}


@pytest.fixture(scope="module", params=["8 bit per channel", "16 bit"])
def board(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Board:
    made = build(tmp_path_factory.mktemp("board"), "enhancer", request.param)
    temp = made.artifacts / "tempDir"
    for file in [*temp.glob("*.svg"), *temp.glob("*.prototxt"), made.artifacts / "subgraph_0_tidl_io_1.bin"]:
        file.unlink()
    return made


def source(board: Board, folder: Path, log: str = "") -> Source:
    made = from_folder(folder, model=board.model, tempdir=board.artifacts, inputs=[str(folder / "input.npy")])
    made.subgraphs = read_tempdir(board.artifacts, log)
    files = {p.name: p for p in folder.iterdir() if p.suffix != ".npy"}
    sizes = {name: path.stat().st_size for name, path in files.items()}
    made.tensors, _ = device_tensors(sizes, {n: p.read_bytes for n, p in files.items()}, {}, made.subgraphs)
    return made


def log_of(board: Board, folder: Path) -> str:
    """What the C7x prints while it dumps."""
    lines = []
    for layer in load_artifacts(board.artifacts).tensors():
        codes = np.fromfile(board.trace_of(folder, layer.name), layer.quant.dtype)
        values = layer.quant.values(codes)
        numbers = f"{layer.quant.scale:15.5f} {values.min():15.5f} {values.max():15.5f}"
        lines.append(f"[C7x_1 ]     12.345678 s:  {layer.data_id:3d} {numbers} {ELEMENTS[str(layer.quant.dtype)]}")
    return "\n".join(lines)


def test_scales_from_the_log(board: Board) -> None:
    folder = board.trace([Fault("/dec/c3/Relu_output_0", "gain", 1.2)])
    answer = compare(source(board, folder, log_of(board, folder)))
    assert answer.scale_sources["log"] >= 15
    assert [(c.layer, c.cause) for c in answer.culprits] == [("/dec/c3/Relu_output_0", "gain")]


def test_estimated_scales_find_a_band_and_are_marked(board: Board) -> None:
    folder = board.trace([Fault("/dec/c3/Relu_output_0", "band")])
    answer = compare(source(board, folder))
    assert answer.scale_sources["estimate"] >= 10
    assert any(f.kind == "estimated_scales" for f in answer.findings)
    assert answer.culprits[0].layer == "/dec/c3/Relu_output_0" and answer.culprits[0].cause == "row_band"


def test_a_healthy_board_with_estimated_scales_has_no_culprit(board: Board) -> None:
    answer = compare(source(board, board.trace()))
    assert answer.culprits == (), answer.sentence
