"""What can't be used is said so everywhere, and never becomes a number: statuses, cut files, strange folders."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from tidegauge.cli.compare_output import to_csv
from tidegauge.compare import Comparison, compare, from_json, rejudge, to_json
from tidegauge.compare.report import print_comparison, render_html
from tidegauge.compare.report.words import STATUSES
from tidegauge.compare.types import Status, Unmatched
from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import Board, build

LAYER, OTHER = "/Tanh_output_0", "/dec/c4/Conv_output_0"


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("board"), "enhancer")


@dataclass(frozen=True)
class Case:
    """How a trace is spoiled, the status that follows, and whether it still counts as compared."""

    status: Status
    spoil: Callable[[Board, Path], None]
    compared: bool
    layer: str = LAYER
    value: float | None = None


def terminal(answer: Comparison) -> str:
    text = io.StringIO()
    print_comparison(answer, Console(file=text, width=200))
    return text.getvalue()


def _write(layer: str, change: Callable[[bytes], bytes]) -> Callable[[Board, Path], None]:
    def spoil(board: Board, folder: Path) -> None:
        file = board.trace_of(folder, layer)
        file.write_bytes(change(file.read_bytes()))

    return spoil


def _rename(board: Board, folder: Path) -> None:
    file = board.trace_of(folder, LAYER)
    file.rename(folder / file.name.replace("00064x00048", "00032x00096"))


def _double(board: Board, folder: Path) -> None:
    file = board.trace_of(folder, LAYER)
    shutil.copy(file, folder / file.name.replace("00064x00048", "00032x00096"))


def _nan(data: bytes) -> bytes:
    values = np.frombuffer(data, "<f4").copy()
    values[7] = np.nan
    return values.tobytes()


def _nothing(board: Board, folder: Path) -> None:
    pass


CASES = [
    Case("ok", _nothing, True),
    Case("missing", lambda board, folder: board.trace_of(folder, LAYER).unlink(), False),
    Case("truncated", _write(LAYER, lambda data: data[:-1]), False),
    Case("truncated", _write(LAYER, lambda data: b""), False),
    Case("shape_mismatch", _rename, False),
    Case("non_finite", _write("enhanced", _nan), True, "enhanced"),
    Case("constant", _write(LAYER, lambda data: b"\x11" * len(data)), True),
    Case("all_zero", _write("/enc/c1/Relu_output_0", lambda data: bytes(len(data))), True, "/enc/c1/Relu_output_0"),
    Case("below_resolution", _nothing, True, "/Mul_0_output_0", 0.0),
    Case("duplicate", _double, False),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{i} {c.status}" for i, c in enumerate(CASES)])
def test_a_status_travels_to_json_page_terminal_table_and_exit_code(board: Board, case: Case) -> None:
    value = None if case.value is None else np.full(board.shape, case.value, np.float32)
    folder = board.trace(value=value)
    case.spoil(board, folder)
    answer = from_json(to_json(board.compare_folder(folder)))
    layer = next(x for x in answer.layers if x.name == case.layer)
    assert layer.status == case.status
    assert layer.reason or case.status == "ok"
    whole = answer.coverage.compared == answer.coverage.traced
    assert whole == case.compared
    assert (rejudge(answer, min_coverage=1.0).exit_code == 3) is not case.compared
    word = STATUSES[case.status]
    row = next(x for x in terminal(answer).splitlines() if x.startswith(f"{case.layer} "))
    assert word in row
    assert word in unescape(render_html(answer))
    table = to_csv(answer).decode()
    assert re.search(rf"^\d+,{re.escape(case.layer)},.*,{case.status},", table, re.MULTILINE)
    if case.status in ("missing", "truncated", "shape_mismatch", "duplicate", "non_finite"):
        assert layer.cumulative is None and layer.local is None and layer.excess is None
        if case.status != "non_finite" or case.layer != "enhanced":
            assert layer.verdict == "undecided"
        assert any(f.kind == case.status and case.layer in f.sentence for f in answer.findings)


def test_coverage_too_low_wins_over_a_culprit_and_unusable_input_over_both(board: Board) -> None:
    folder = board.trace([Fault(OTHER, "gain", 1.5)])
    assert board.compare_folder(folder).exit_code == 1
    board.trace_of(folder, LAYER).unlink()
    assert board.compare_folder(folder, min_coverage=1.0).exit_code == 3
    (folder / "input.npy").write_bytes(b"")
    with pytest.raises(TidegaugeError):  # the command exits 2
        board.compare_folder(folder, min_coverage=1.0)


# --- strange folders -------------------------------------------------------------------------------------------------


def usable(action: Callable[[], Comparison]) -> Comparison | str:
    """An answer, or the one sentence of the refusal: nothing else may come out."""
    try:
        return action()
    except TidegaugeError as error:
        text = str(error)
        assert text and "\n" not in text and "Traceback" not in text
        return text


def test_a_folder_of_unrelated_files(tmp_path: Path, board: Board) -> None:
    for name, data in (("holiday.jpg", b"\xff\xd8\xff"), ("notes.txt", b"hello"), ("tidl_trace.csv", b"1,2")):
        (tmp_path / name).write_bytes(data)
    found = usable(lambda: compare(tmp_path, model=board.model, tempdir=board.artifacts, inputs=["x.npy"]))
    assert isinstance(found, str) and "has no trace files" in found
    found = usable(lambda: compare(board.trace(), model=board.model, tempdir=tmp_path))
    assert isinstance(found, str) and "layer_info" in found


def test_files_of_no_size(tmp_path: Path, board: Board) -> None:
    """Of every kind, one after another; all traces at once are too few layers for a verdict."""
    folder = board.trace()
    whole = tmp_path / "whole"
    shutil.copytree(board.artifacts, whole)
    for place in (whole, whole / "tempDir"):
        for file in [p for p in place.iterdir() if p.is_file()]:
            held = file.read_bytes()
            file.write_bytes(b"")
            found = usable(lambda: compare(folder, model=board.model, tempdir=whole))
            file.write_bytes(held)
            # Either a sentence with the file's name, or an answer that does without the file.
            assert file.name in found if isinstance(found, str) else found.coverage.share == 1.0, file.name
    empty = tmp_path / "empty.onnx"
    empty.write_bytes(b"")
    found = usable(lambda: compare(folder, model=empty, tempdir=board.artifacts))
    assert isinstance(found, str) and "empty.onnx" in found
    for file in folder.glob("*tidl_trace*"):
        file.write_bytes(b"")
    answer = usable(lambda: compare(folder, model=board.model, tempdir=board.artifacts))
    assert answer.exit_code == 3 if isinstance(answer, Comparison) else "no traced tensor" in answer


@pytest.mark.parametrize("suffix", ["layer_info.txt", "netLog.txt", "svg", "prototxt", "io_1.bin", "onnx", "npy"])
def test_a_file_cut_at_any_place_is_a_sentence_or_an_answer_that_hides_nothing(
    board: Board, tmp_path: Path, suffix: str
) -> None:
    folder = tmp_path / "traces"
    shutil.copytree(board.trace(), folder)
    whole = tmp_path / "whole"
    shutil.copytree(board.artifacts, whole)
    model = shutil.copy(board.model, tmp_path / "net.onnx")
    file = next(p for p in tmp_path.rglob("*") if p.is_file() and p.name.endswith(suffix))
    held = file.read_bytes()
    lengths = sorted({*np.linspace(1, len(held) - 1, 5).astype(int).tolist(), len(held) - 1})
    for length in lengths:
        file.write_bytes(held[:length])
        found = usable(lambda: compare(folder, model=model, tempdir=whole))
        if isinstance(found, str):
            continue
        told = {layer.name for layer in found.layers}
        assert found.exit_code == 3 or (found.culprits == () and len(told) >= 15), (length, found.sentence)


def test_two_captures_in_one_folder_are_no_verdict(board: Board, tmp_path: Path) -> None:
    """Traces of another size of the same network: every tensor is claimed twice."""
    folder = tmp_path / "mixed"
    shutil.copytree(board.trace(), folder)
    for file in list(folder.glob("*00064x00048*")):
        (folder / file.name.replace("00064x00048", "00032x00024")).write_bytes(file.read_bytes()[: 12 * 768])
    found = usable(lambda: compare(folder, model=board.model, tempdir=board.artifacts))
    assert isinstance(found, str) and "2 files claim this tensor" in found and "traces of one run" in found
    for file in list(folder.glob("*00032x00024*"))[3:]:
        file.unlink()
    answer = compare(folder, model=board.model, tempdir=board.artifacts, min_coverage=0.9)
    assert answer.exit_code == 3 and answer.sentence.startswith("Only ")
    assert sum(x.status == "duplicate" for x in answer.layers) == 3
    assert any(f.kind == "duplicate" for f in answer.findings)
    assert (
        "3 with more than one trace" in answer.sentence
        and "More than one capture lies in the folder" in answer.sentence
    )


def test_too_little_says_what_it_lacks_and_calls_nothing_right(board: Board, tmp_path: Path) -> None:
    folder = tmp_path / "few"
    shutil.copytree(board.trace([Fault(LAYER, "gain", 1.5)], name="gained"), folder)
    for layer in (OTHER, "/dec/c3/Relu_output_0"):
        board.trace_of(folder, layer).unlink()
    answer = compare(folder, model=board.model, tempdir=board.artifacts, min_coverage=1.0)
    assert answer.exit_code == 3 and "(2 without a trace)" in answer.sentence and "capture lies" not in answer.sentence


def test_the_terminal_is_not_flooded_by_what_was_not_compared(board: Board) -> None:
    answer = board.compare()
    strange = tuple(Unmatched(f"t{i}", "device", i, "no float twin") for i in range(40))
    answer = msgspec.structs.replace(answer, unmatched=strange)
    shown, page = terminal(answer), render_html(answer)
    assert shown.count("not compared: t") == 8 and "32 more" in shown
    assert all(f"<code>t{i}</code>" in page for i in range(40)), "the page hides nothing"


def test_traces_of_board_and_pc_in_one_folder_are_told(board: Board, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    shutil.copytree(board.trace(), folder)
    for file in list(folder.glob("C7x_1_*")):
        shutil.copy(file, folder / file.name.removeprefix("C7x_1_"))
    answer = compare(folder, model=board.model, tempdir=board.artifacts)
    assert answer.exit_code == 0 and any(f.kind == "mixed_sources" for f in answer.findings)


def test_traces_of_another_network_have_other_shapes(board: Board, tmp_path: Path) -> None:
    other = build(tmp_path / "other", "segmenter")
    folder = other.trace()
    np.save(folder / "input.npy", np.zeros(board.shape, np.float32))
    answer = usable(lambda: compare(folder, model=board.model, tempdir=board.artifacts))
    assert answer.exit_code == 3 if isinstance(answer, Comparison) else "no traced tensor" in answer
