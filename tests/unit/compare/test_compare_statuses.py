"""What can't be compared is said, never turned into a number: the wrong answers of existing tools, as tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tidegauge.compare import Comparison, LayerResult, compare, open_source
from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import Board, build


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("board"), "enhancer")


def layer(answer: Comparison, name: str) -> LayerResult:
    return next(item for item in answer.layers if item.name == name)


def test_one_nan_is_a_culprit_and_no_snr(board: Board) -> None:
    answer = board.compare([Fault("enhanced", "nan", 1)])
    found = layer(answer, "enhanced")
    assert found.status == "non_finite" and found.cumulative is None and found.local is None
    assert answer.culprits[0].cause == "non_finite" and "1 of" in answer.culprits[0].detail
    assert answer.outputs[0].non_finite == 1


def test_a_truncated_trace_has_no_numbers_and_its_successors_are_still_judged(board: Board) -> None:
    folder = board.trace()
    file = board.trace_of(folder, "/enc/c2/Relu_output_0")
    file.write_bytes(file.read_bytes()[:-100])
    answer = board.compare_folder(folder)
    found = layer(answer, "/enc/c2/Relu_output_0")
    assert found.status == "truncated" and found.cumulative is None and "bytes instead of" in found.reason
    after = layer(answer, "/dec/Concat_output_0")
    # Its region now holds the truncated layer, rounded as the device rounds it.
    assert after.verdict == "healthy" and after.excess is not None and after.excess < 3
    assert after.codes_off_by_one is not None and after.codes_off_by_one < 0.01
    assert answer.coverage.compared == answer.coverage.traced - 1


def test_a_missing_trace_is_counted_and_a_fault_behind_it_says_so(board: Board) -> None:
    folder = board.trace([Fault("/dec/c3/Relu_output_0", "gain", 2.0)])
    board.trace_of(folder, "/dec/c3/Relu_output_0").unlink()
    answer = board.compare_folder(folder)
    assert layer(answer, "/dec/c3/Relu_output_0").status == "missing"
    assert [c.layer for c in answer.culprits] == ["/dec/c4/Conv_output_0"]
    assert "/dec/c3/Relu_output_0" in answer.culprits[0].sentence


def test_what_differs_and_cannot_be_judged_does_not_pass_for_right(board: Board) -> None:
    """Neither trace nor scale of a layer is known: the fault may be there or behind it, and the verdict says so."""
    hidden, behind = "/dec/c3/Relu_output_0", "/dec/c4/Conv_output_0"
    folder = board.trace([Fault(hidden, "gain", 2.0)])
    board.trace_of(folder, hidden).unlink()
    inputs = [str(folder / "input.npy")]
    with open_source(folder, model=board.model, tempdir=board.artifacts, inputs=inputs) as source:
        next(tensor for tensor in source.tensors if tensor.name == hidden).scale = None
        answer = compare(source)
    assert layer(answer, behind).verdict == "undecided" and answer.culprits == ()
    assert f"but {behind} differs and can't be judged" in answer.sentence and "all 1" not in answer.sentence


def test_a_trace_of_other_dims_is_a_shape_mismatch(board: Board) -> None:
    folder = board.trace()
    file = board.trace_of(folder, "/Tanh_output_0")
    file.rename(folder / file.name.replace("00064x00048", "00048x00064"))
    answer = board.compare_folder(folder)
    assert layer(answer, "/Tanh_output_0").status == "shape_mismatch"
    assert layer(answer, "/Tanh_output_0").cumulative is None


def test_two_files_of_one_tensor_are_a_duplicate(board: Board) -> None:
    folder = board.trace()
    file = board.trace_of(folder, "/Tanh_output_0")
    (folder / file.name.replace("00064x00048", "00032x00096")).write_bytes(file.read_bytes())
    answer = board.compare_folder(folder)
    assert layer(answer, "/Tanh_output_0").status == "duplicate"


def test_a_constant_and_an_all_zero_tensor_are_called_so(board: Board) -> None:
    folder = board.trace()
    file = board.trace_of(folder, "/enc/c1/Relu_output_0")
    file.write_bytes(bytes(len(file.read_bytes())))
    assert layer(board.compare_folder(folder), "/enc/c1/Relu_output_0").status == "all_zero"
    file.write_bytes(b"\x11" * len(file.read_bytes()))
    answer = board.compare_folder(folder)
    assert layer(answer, "/enc/c1/Relu_output_0").status == "constant"
    named = {c.layer: c.cause for c in answer.culprits}
    assert named["/enc/c1/Relu_output_0"] == "constant"  # what reads it was traced from the healthy one


def test_a_layer_below_its_resolution_has_no_sqnr(board: Board) -> None:
    """A black picture: the squared input is nothing but zero, on both sides."""
    answer = board.compare(value=np.zeros(board.shape, np.float32))
    found = layer(answer, "/Mul_0_output_0")
    assert found.status == "below_resolution" and found.cumulative is not None
    assert found.cumulative.sqnr_db is None and found.cumulative.cosine is None
    assert answer.culprits == ()


def test_coverage_too_low_wins_over_a_culprit(board: Board) -> None:
    folder = board.trace([Fault("/enc/c1/Relu_output_0", "gain")])
    for number, file in enumerate(sorted(folder.glob("*.y"))):
        if number > 4:
            file.unlink()
    answer = board.compare_folder(folder)
    assert answer.exit_code == 3 and answer.culprits
    assert answer.coverage.share < 0.8 and answer.sentence.startswith("Only ")


def test_traces_of_a_sub_graph_that_the_compile_does_not_know(board: Board) -> None:
    folder = board.trace()
    file = board.trace_of(folder, "/Tanh_output_0")
    (folder / file.name.replace("subgraph_0", "subgraph_7")).write_bytes(file.read_bytes())
    answer = board.compare_folder(folder)
    assert any(f.kind == "unknown_subgraph" and "subgraph_7" in f.sentence for f in answer.findings)
    assert answer.exit_code == 0


def test_traces_of_an_unknown_sub_graph_alone_are_said_to_be_that(board: Board) -> None:
    folder = board.trace(name="elsewhere")
    for file in list(folder.glob("*tidl_trace*")):
        file.rename(file.with_name(file.name.replace("subgraph_0", "75")))
    with pytest.raises(TidegaugeError, match="is of the sub-graph 75; the tempDir knows only subgraph_0"):
        board.compare_folder(folder)


def test_an_input_of_the_wrong_size_is_unusable(board: Board) -> None:
    folder = board.trace()
    np.save(folder / "input.npy", np.zeros((1, 3, 8, 8), np.float32))
    with pytest.raises(TidegaugeError, match="has shape"):
        board.compare_folder(folder)


def test_a_model_that_is_none(board: Board, tmp_path: Path) -> None:
    folder = board.trace()
    fake = tmp_path / "fake.onnx"
    fake.write_bytes(b"\xff\x00 this is not a model")
    broken = Board(fake, board.artifacts, board.root, board.shape)
    with pytest.raises(TidegaugeError, match=r"fake\.onnx"):
        broken.compare_folder(folder)
