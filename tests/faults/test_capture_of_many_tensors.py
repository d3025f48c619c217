"""A capture of a network of 120 tensors, at the speed of a real dump: few files at a time, none left, all whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.many_tensors import COMPLETE, OPTIONS, TENSORS, WRITTEN, expected_of, many_tensors, traces_of, watching
from faults.small_board import INFERENCES, SmallBoard, frames_go_on, metrics, wait_for
from tidegauge.bundles.reader import read_manifest
from tidegauge.virtualboard.network import load_artifacts
from tidegauge.virtualboard.state import update

REAL_PAUSE = 0.01  # of the remote-log server between two operations of the C7x


@pytest.fixture
def board(tmp_path: Path) -> SmallBoard:
    return SmallBoard(tmp_path, virtual=True, network=many_tensors(), options=OPTIONS)


@pytest.mark.timeout(400)
def test_few_files_lie_in_the_trace_folder_and_every_trace_arrives_whole(board: SmallBoard) -> None:
    network = load_artifacts(board.folder / "artifacts")
    assert len(network.tensors()) == TENSORS
    tiled = [layer.data_id for layer in network.tensors() if layer.tiles > 1]
    assert len(tiled) > 9
    update(board.folder / "vb", trace_op_seconds=REAL_PAUSE)
    with board.remote_log(), board.agent(board.configure(runtime={"run_timeout": 5.0})) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[INFERENCES] > 3, 180, "device runs")
        with watching(board.traces) as seen:
            done = board.tidegauge("agent", "capture")
            assert done.returncode == 0, done.stderr + board.log()
            wait_for(lambda: not seen.there, 10, "empty trace folder")
        frames_go_on(url)
        assert not list(board.traces.iterdir())
        assert not list((board.state / "work").iterdir())
    [bundle] = (board.state / "spool" / "bundles").iterdir()
    manifest = read_manifest(bundle)
    expected = expected_of(bundle, board.folder / "artifacts")
    assert traces_of(bundle) == expected
    assert seen.created == list(expected), "each was written once, in the network's order"
    assert seen.most <= COMPLETE + WRITTEN
    assert manifest.cause.evidence["traces_missing"] == manifest.cause.evidence["traces_truncated"] == 0
    closes = {trace.data_id: seen.closes[trace.file] for trace in manifest.traces}
    assert all(closes[data_id] > closes[1] for data_id in tiled), "a super-tiled one was opened again and again"
