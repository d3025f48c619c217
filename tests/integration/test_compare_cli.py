"""`tidegauge compare` as a person or a CI job runs it: sources, exit codes, what goes where."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tidegauge.bundles.archive import export_bundle
from tidegauge.bundles.manifest import (
    Blob,
    Cause,
    Inventory,
    Manifest,
    StoredFile,
    StoredTensor,
    Trace,
)
from tidegauge.clocks import Stamp
from tidegauge.compare import from_json, open_source, release_from_json
from tidegauge.errors import TidegaugeError
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.tensors import TensorSpec
from tidegauge.tidl import trace_names
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import Board, build


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("board"), "enhancer")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidegauge", "compare", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def folder_arguments(board: Board, folder: Path) -> list[str | Path]:
    return ["--device", folder, "--model", board.model, "--tempdir", board.artifacts, "--input", folder / "input.npy"]


def test_a_healthy_folder_exits_0(board: Board) -> None:
    done = run(*folder_arguments(board, board.trace()))
    assert done.returncode == 0 and done.stdout.startswith("FINE: ") and not done.stderr


def test_a_culprit_exits_1_with_json_alone_on_stdout_and_a_page(board: Board, tmp_path: Path) -> None:
    folder = board.trace([Fault("/dec/c3/Relu_output_0", "band")])
    done = run(*folder_arguments(board, folder), "--json", "-", "--html", tmp_path / "report.html")
    assert done.returncode == 1
    answer = from_json(done.stdout.encode())
    assert answer.exit_code == 1 and answer.culprits[0].layer == "/dec/c3/Relu_output_0"
    page = (tmp_path / "report.html").read_text()
    assert "/dec/c3/Relu_output_0" in page and [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_raw_input_and_a_json_file(board: Board, tmp_path: Path) -> None:
    folder = board.trace()
    raw = tmp_path / "input.bin"
    raw.write_bytes(np.load(folder / "input.npy").tobytes())
    done = run(
        folder,
        "--model",
        board.model,
        "--tempdir",
        board.artifacts,
        "--input",
        f"input={raw}",
        "--json",
        tmp_path / "a.json",
    )
    assert done.returncode == 0
    assert json.loads((tmp_path / "a.json").read_text())["schema"] == 1


@pytest.mark.parametrize("without", ["--model", "--tempdir", "--input"])
def test_what_is_missing_exits_2_with_a_cure(board: Board, without: str) -> None:
    folder = board.trace()
    arguments = folder_arguments(board, folder)
    if without == "--input":  # one that lies beside the traces is taken by itself
        (folder / "input.npy").rename(folder / "other.npy")
    at = arguments.index(without)
    done = run(*arguments[:at], *arguments[at + 2 :], "--json", "-")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("tidegauge: ") and without in done.stderr and "Traceback" not in done.stderr


def test_too_few_layers_exit_3_unless_asked_for_less(board: Board) -> None:
    folder = board.trace([Fault("/enc/c1/Relu_output_0", "gain")])
    for file in sorted(folder.glob("*.y"))[6:]:
        file.unlink()
    assert run(*folder_arguments(board, folder)).returncode == 3
    assert run(*folder_arguments(board, folder), "--min-coverage", "0.2").returncode == 1


def make_bundle(board: Board, traces: Path, folder: Path, net: bytes) -> Path:
    """A bundle as the agent writes it, of one traced run."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def store(data: bytes) -> Blob:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return Blob(digest, len(data), len(data), "raw")

    value = np.load(traces / "input.npy")
    spec = TensorSpec("input", value.shape, "float32")
    found = []
    for file in sorted(traces.iterdir()):
        parsed = trace_names.parse(file.name)
        if parsed is None:
            continue
        data = file.read_bytes()
        kind = "float" if parsed.kind == "float" else "y"
        sha = hashlib.sha256(data).hexdigest()
        found.append(
            Trace(
                file.name,
                "subgraph_0",
                parsed.data_id,
                kind,
                parsed.dims,
                None,
                len(data),
                sha,
                "0" * 32,
                None,
                store(data),
            )
        )
    output = np.fromfile(board.trace_of(traces, "enhanced"), "<f4").reshape(value.shape)
    stored_output = StoredTensor(TensorSpec("enhanced", value.shape, "float32"), store(output.tobytes()))
    height, width = value.shape[2:]
    manifest = Manifest(
        bundle_id="0123abcd-test",
        device="board-7",
        virtual=True,
        created=Stamp(1.8e9, "boot", 12.0),
        cause=Cause("golden", "accelerator", (), {}, "golden output changed"),
        profile=Profile(
            "enhancer", "onnx", "m.onnx", "a", Preprocess(width, height), Output("enhanced", "image", 1 / 255)
        ),
        inventory=Inventory(
            {"subgraph_0_tidl_net.bin": hashlib.sha256(net).hexdigest()}, "0" * 64, {"tidl": "11_01"}, {}
        ),
        options={"debug_level": "3"},
        benchmark={},
        inputs=(StoredTensor(spec, store(value.tobytes())),),
        device_outputs=(stored_output,),
        reference_outputs=(),
        traced_outputs=(stored_output,),
        tracing_changed_output=False,
        errors=(),
        loss=0.3,
        traces=tuple(found),
        logs=(),
        model=StoredFile("m.onnx", store(board.model.read_bytes())),
        artifacts=(),
    )
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    return folder


def test_a_bundle_as_folder_and_as_file(board: Board, tmp_path: Path) -> None:
    net = (board.artifacts / "subgraph_0_tidl_net.bin").read_bytes()
    traces = board.trace([Fault("/Tanh_output_0", "offset", 0.3)])
    bundle = make_bundle(board, traces, tmp_path / "bundle", net)
    done = run(bundle, "--tempdir", board.artifacts, "--html", tmp_path / "r.html", "--json", tmp_path / "a.json")
    assert done.returncode == 1, done.stderr
    answer = from_json((tmp_path / "a.json").read_bytes())
    assert (answer.culprits[0].layer, answer.culprits[0].cause) == ("/Tanh_output_0", "offset")
    assert answer.subject.device == "board-7" and answer.subject.virtual and answer.tracing_changed_output is False
    assert "VIRTUAL" in (tmp_path / "r.html").read_text()
    export_bundle(bundle, tmp_path / "one.tidebundle")
    packed = run(tmp_path / "one.tidebundle", "--tempdir", board.artifacts, "--json", "-")
    assert packed.returncode == 1
    assert [c.layer for c in from_json(packed.stdout.encode()).culprits] == ["/Tanh_output_0"]
    assert run(bundle).returncode == 2


def test_the_tempdir_of_another_compile_is_refused(board: Board, tmp_path: Path) -> None:
    bundle = make_bundle(board, board.trace(), tmp_path / "bundle", b"another network")
    done = run(bundle, "--tempdir", board.artifacts)
    assert done.returncode == 2 and "another compile" in done.stderr


def test_traces_that_stayed_on_the_board_are_missing(board: Board, tmp_path: Path) -> None:
    net = (board.artifacts / "subgraph_0_tidl_net.bin").read_bytes()
    bundle = make_bundle(board, board.trace(), tmp_path / "bundle", net)
    data = json.loads((bundle / "manifest.json").read_text())
    data["traces"][3]["blob"] = None
    (bundle / "blobs" / "sha256" / data["traces"][5]["blob"]["sha256"]).unlink()
    (bundle / "manifest.json").write_text(json.dumps(data))
    done = run(bundle, "--tempdir", board.artifacts, "--json", "-")
    answer = from_json(done.stdout.encode())
    missing = [layer for layer in answer.layers if layer.status == "missing"]
    assert done.returncode == 0 and len(missing) == 2 and "stayed on the board" in missing[0].reason


# --- stored answers, frames, releases, tables -----------------------------------------------------------------------


def test_a_stored_answer_is_judged_again_without_its_traces(board: Board, tmp_path: Path) -> None:
    folder = board.trace([Fault("/dec/c3/Relu_output_0", "gain", 1.2)], name="gone")
    stored, table = tmp_path / "a.json", tmp_path / "a.csv"
    done = run(*folder_arguments(board, folder), "--json", stored, "--csv", table, "--top", "2")
    assert done.returncode == 1 and done.stdout.count(" │ ") >= 2
    assert "/enc/c1/Relu_output_0" not in done.stdout  # not among the two worst
    rows = table.read_text().splitlines()
    assert rows[0].startswith("index,name,tensor,matched,") and len(rows) == 1 + len(
        from_json(stored.read_bytes()).layers
    )
    shutil.rmtree(folder)
    lenient = run("--from", stored, "--threshold", "1e6", "--layer", "/dec/c3/Relu_output_0")
    assert lenient.returncode == 0 and "local" in lenient.stdout and lenient.stdout.startswith("index")
    assert run("--from", stored, "--min-coverage", "1", "--json", "-").returncode == 1
    assert run("--from", table).returncode == 2


def test_a_folder_of_frames_and_repeated_folders(board: Board, tmp_path: Path) -> None:
    board.trace(name="f2")
    board.trace([Fault("/dec/c3/Relu_output_0", "band")], name="f1")
    rest = ["--model", board.model, "--tempdir", board.artifacts, "--json", "-"]
    done = run("--device", board.root / "f1", "--device", board.root / "f2", *rest)
    answer = from_json(done.stdout.encode())
    assert done.returncode == 1 and answer.frames is not None
    assert [frame.exit_code for frame in answer.frames.frames] == [1, 0]
    for name in ("f1", "f2"):
        (board.root / name).rename(tmp_path / name)
    again = from_json(run(tmp_path, *rest).stdout.encode())
    assert again.frames is not None and [f.exit_code for f in again.frames.frames] == [1, 0]


def test_two_releases_by_command(board: Board, tmp_path: Path) -> None:
    board.trace()
    page = tmp_path / "r.html"
    done = run("--before", board.root, "--after", board.root, "--html", page, "--json", tmp_path / "r.json")
    assert done.returncode == 0 and done.stdout.startswith("NOT MOVED: ") and not done.stderr
    assert release_from_json((tmp_path / "r.json").read_bytes()).proto.allowed
    assert "same bit by bit" in page.read_text()
    half = run("--before", board.root)
    assert half.returncode == 2 and "--after is missing" in half.stderr


def test_a_bundle_cut_at_any_place_is_refused_in_one_sentence(board: Board, tmp_path: Path) -> None:
    net = (board.artifacts / "subgraph_0_tidl_net.bin").read_bytes()
    bundle = make_bundle(board, board.trace(), tmp_path / "bundle", net)
    file = tmp_path / "x.tidebundle"
    export_bundle(bundle, file)
    held = file.read_bytes()
    manifest = (bundle / "manifest.json").read_bytes()
    for length in (0, 1, 100, len(held) // 3, len(held) // 2, len(held) - 1):
        file.write_bytes(held[:length])
        refused(file, board)
    for length in range(0, len(manifest), max(1, len(manifest) // 40)):
        (bundle / "manifest.json").write_bytes(manifest[:length])
        refused(bundle, board)


def refused(path: Path, board: Board) -> None:
    with pytest.raises(TidegaugeError) as caught, open_source(path, tempdir=board.artifacts):
        pass
    assert "\n" not in str(caught.value)
