"""`tidegauge inspect` as a person calls it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tidegauge.bundles.archive import export_bundle
from tidegauge.bundles.manifest import Cause, Inventory, Manifest, StoredFile
from tidegauge.bundles.writer import BundleWriter
from tidegauge.cli.inspect import command
from tidegauge.cli.inspect_view import show
from tidegauge.clocks import Stamp
from tidegauge.errors import TidegaugeError
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.tidl import io_descriptor
from tidegauge.tidl.inspection import inspect
from tidegauge.tidl.io_descriptor import IoDescriptor, IoInput

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def samples() -> Path:
    named = os.environ.get("TIDEGAUGE_SAMPLES")
    folder = Path(named) if named else ROOT.parent / "shared" / "samples"
    if not folder.is_dir():
        pytest.skip(f"no samples of real TIDL compiles: neither TIDEGAUGE_SAMPLES nor {folder}")
    return folder


def run(*arguments: str, columns: int = 100) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(command, arguments)


def test_a_real_compile_fits_one_hundred_columns(samples: Path) -> None:
    folder = str(samples / "am62a-yolox-s-int16-tools-10_00_08")
    told = run(folder)
    assert told.exit_code == 0
    lines = told.output.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 100
    for words in (
        "tools 10_00_08_00, firmware 10_00_02_00",
        "271 on the C7x in 1 sub-graph, 0 on the CPU",
        "9 names of the 16-bit or deny lists",
        "2  Convolution       1                12x320x320  int16    602.0    -48.65   48.73    0.62 steps",
    ):
        assert words in told.output, words
    wide = run(folder, columns=160).output
    assert max(len(line.rstrip()) for line in wide.splitlines()) <= 160
    assert "725.8" in wide
    assert "Convolution" not in run(folder, "--no-layers").output


def test_json_holds_everything(samples: Path) -> None:
    told = run(str(samples / "am62a-yolox-s-int16-tools-10_00_08"), "--json")
    data = json.loads(told.output)
    assert len(data["networks"][0]["layers"]) == 122
    assert data["networks"][0]["layers"][2]["weight_relative"] == 0.080038
    assert data["simulation"]["microseconds"] == 367462.84


def test_a_temp_dir_finds_the_descriptor_beside_it(samples: Path, tmp_path: Path) -> None:
    real = samples / "am62a-yolox-s-int16-tools-10_00_08"
    (tmp_path / "tempDir").symlink_to(real / "tempDir")
    (tmp_path / "subgraph_0_tidl_io_1.bin").write_bytes((real / "artifacts/subgraph_0_tidl_io_1.bin").read_bytes())
    told = json.loads(run(str(tmp_path / "tempDir"), "--json").output)
    assert told["what"] == ["artifacts", "tempDir"]
    assert told["networks"][0]["descriptor"]["inputs"][0]["name"] == "input"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (
            "issue66_am62a_tflite_size_mismatch.txt",
            ["descriptor_size", "31 of 38 nodes in 2 sub-graphs", "compile with"],
        ),
        ("gstplugins216_onnx_start.txt", ["host ready", "no line names a fault"]),
    ],
)
def test_a_log(samples: Path, file: str, words: list[str]) -> None:
    told = run(str(samples / "logs" / file))
    assert told.exit_code == 0
    for word in words:
        assert word in told.output


def test_a_damaged_file_is_named_with_its_cure(samples: Path, tmp_path: Path) -> None:
    real = (samples / "am62a-yolox-s-int16-tools-10_00_08/artifacts/subgraph_0_tidl_io_1.bin").read_bytes()
    (tmp_path / "subgraph_0_tidl_io_1.bin").write_bytes(real[:5000])
    told = run(str(tmp_path))
    assert told.exit_code == 2
    text = " ".join(told.output.split())
    assert "damaged subgraph_0_tidl_io_1.bin: tidl_io_1.bin: 5000 bytes are no release's descriptor" in text
    assert "Copy it again, whole" in text


def test_a_truncated_trace_and_its_layer(samples: Path, tmp_path: Path) -> None:
    name = "C7x_1_tidl_trace_subgraph_0_0002_0001_0001_00001_00012_00320x00320.y"
    (tmp_path / name).write_bytes(b"")
    os.truncate(tmp_path / name, 12 * 320 * 320 * 2 - 2)
    (tmp_path / "remote_log.txt").write_text("[C7x_1 ]      4.300000 s: Processing Layer # -    3\n")
    told = run(str(tmp_path), "--artifacts", str(samples / "am62a-yolox-s-int16-tools-10_00_08"))
    assert told.exit_code == 2
    assert "1 truncated, 118 missing" in told.output
    assert "2457598   2457600  truncated" in told.output
    assert "last layer  3 3 (begun, not ended" in told.output, "layer 3 writes the tensor called 3"


def test_a_bundle_with_its_log_and_artifacts(samples: Path, tmp_path: Path) -> None:
    real = samples / "am62a-yolox-s-int16-tools-10_00_08/artifacts/subgraph_0_tidl_io_1.bin"
    writer = BundleWriter(tmp_path / "bundle")
    log = b"[C7x_1 ]      4.300000 s: FOPEN : Could not open file /tmp/x\n"
    writer.seal(
        Manifest(
            bundle_id="bundle-0001",
            device="cam-1",
            virtual=False,
            created=Stamp(1_780_000_000.0, "boot", 12.0),
            cause=Cause("loss", "accelerator", (), {}, "The loss has risen."),
            profile=Profile("m", "onnx", "m.onnx", "a", Preprocess(8, 8), Output("y", "raw", 0.1)),
            inventory=Inventory({}, "cd" * 32, {}, {}),
            options={},
            benchmark={},
            inputs=(),
            device_outputs=(),
            reference_outputs=(),
            traced_outputs=(),
            tracing_changed_output=False,
            errors=(),
            loss=None,
            traces=(),
            logs=(StoredFile("remote_log.txt", writer.add_bytes(log)),),
            model=None,
            artifacts=(StoredFile(real.name, writer.add_bytes(real.read_bytes(), "raw")),),
        )
    )
    told = run(str(tmp_path / "bundle"))
    assert told.exit_code == 0, told.output
    for words in ("found: artifacts, log", "log remote_log.txt: 1 line", "trace_file", "free room in /tmp", "dets"):
        assert words in told.output, words
    export_bundle(tmp_path / "bundle", tmp_path / "one.tidebundle")
    assert run(str(tmp_path / "one.tidebundle")).output == told.output


def test_the_same_network_or_not(samples: Path, tmp_path: Path) -> None:
    real = samples / "am62a-yolox-s-int16-tools-10_00_08"
    told = run(str(real), "--same-as", str(real / "tempDir"))
    assert (told.exit_code, told.output) == (0, "subgraph_0: the same layers, edges and shapes\n")
    text = (real / "tempDir/subgraph_0_tidl_net.bin_netLog.txt").read_text()
    (tmp_path / "subgraph_0_tidl_net.bin_netLog.txt").write_text(text.replace("|dets_det ", "|dets_cut ", 1))
    told = run(str(real), "--same-as", str(tmp_path))
    assert told.exit_code == 1
    assert "layer 117: name 'dets_det' against 'dets_cut'" in told.output
    (tmp_path / "subgraph_0_tidl_net.bin_netLog.txt").write_text(text[:3000])
    answer = run(str(real), "--same-as", str(tmp_path))
    assert isinstance(answer.exception, TidegaugeError)
    assert "netLog" in str(answer.exception)


def test_what_is_nothing_of_tidl_s(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "no file of a TIDL compile"), (tmp_path / "no", "does not exist")):
        answer = run(str(path))
        assert isinstance(answer.exception, TidegaugeError)
        assert words in str(answer.exception)
        assert answer.exception.cure


def test_a_log_is_never_read_in_part(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(b"")
    os.truncate(tmp_path / "x.log", (64 << 20) + 1)
    answer = run(str(tmp_path))
    assert isinstance(answer.exception, TidegaugeError)
    assert "tail -c" in answer.exception.cure


def test_markup_and_escapes_in_files_do_not_reach_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("VX_ZONE_ERROR: \x1b[31m[red]boom\x07\n")
    told = run(str(tmp_path))
    assert "\x1b[31m" not in told.output
    assert "\x07" not in told.output
    assert "[red]boom" in told.output


NETLOG = (
    "Num of Layer Detected : 2\n 0|TIDL_DataLayer |in | 0|-1| 1| x x | 0 | 0 0 0 0 0 0 | 1 1 1 3 8 8 | 0 |\n"
    " 2|TIDL_ConvolutionLayer |1 | 0| 1| 1| 1 x x | 2 | 1 1 1 3 8 8 | 1 1 1 12 4 4 | 33 |\nTotal Giga Macs : 13.3\n"
)
SVG = (
    "<svg><title>Layer 2: TIDL_ConvolutionLayer &quot;1&quot;\n [2] numDim=6 dims=[1,1,1,12,4,4]"
    " elementType=TIDL_SignedChar\n"
    " min/maxTensorValue=(-1e300,nan)\n tensorScale=2.000\n tensorZeroPoint=0\n</title></svg>"
)
FILES: dict[str, bytes] = {
    "subgraph_0_tidl_net.bin": b"\x21\x08\x25\x20\x04\0\0\0",
    "subgraph_0_tidl_io_1.bin": io_descriptor.pack(
        IoDescriptor((IoInput("a", 0, (1, 1, 1, 3, 8, 8), "int8", 1.0, 0),), (), file_size=37256)
    ),
    "subgraph_0_tidl_net.bin_netLog.txt": NETLOG.encode(),
    "subgraph_0_tidl_net.bin.layer_info.txt": b"0 0 in \n2 2 1 \n",
    "subgraph_0_tidl_net.bin.svg": SVG.encode(),
    "allowedNode.txt": b"1\n1\n0\n",
    "onnxrtMetaData.txt": b"numGraphNodes=1\n0:subGraphName=s\n",
    "run.log": b"|  TIDL Tools Version | 10_00_08_00 |\nInvalid Layer Name  /a/b\n| C7x | 1 | 1 |\n",
    "tidl_trace_subgraph_0_perf.csv": b"Layer, Layer Cycles,a\n 2, 201, 7,\n Sum of Layer Cycles 201 \n",
    "param.yaml": b"session:\n  input_mean:\n  - 0.0\npreprocess:\n  crop: 8\n",
    "model_qparams.prototxt": b'num_layers: 1\nlayers { layer_name: "1" outputs { scale: 2.0 element_type: 1 } }',
}
LOG = (
    b"[C7x_1 ]  4.751024 s: Processing Layer # -    2\n"
    b"    2   2.00000   0.00000   39.16554 1\nEP Error x when using y\n"
)
TRACE = "C7x_1_tidl_trace_subgraph_0_0002_0001_0001_00001_00012_00004x00004.y"


def test_the_whole_set_is_read_without_a_complaint() -> None:
    found = inspect({name: len(data) for name, data in FILES.items()} | {TRACE: 192}, FILES, logs={"x.log": LOG})
    assert [finding.file for finding in found.findings] == ["run.log"]
    assert found.traces[0].status == "whole"
    assert found.networks[0].layers[1].cycles == 201


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_the_files_hold_something_is_printed(data: st.DataObject) -> None:
    files = dict(FILES)
    for name in data.draw(st.lists(st.sampled_from(sorted(FILES)), max_size=4)):
        content = bytearray(files[name])
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
        files[name] = bytes(content)
    log = data.draw(st.binary(max_size=40)) + LOG
    found = inspect({name: len(body) for name, body in files.items()} | {TRACE: 191}, files, logs={"x.log": log})
    with Path(os.devnull).open("w") as sink:
        show(found, Console(file=sink, width=data.draw(st.sampled_from([100, 160]))))
    msgspec.json.encode(found)
