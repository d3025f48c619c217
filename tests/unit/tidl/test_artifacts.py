from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tidegauge.tidl import net_header
from tidegauge.tidl.artifacts import check, parse_allowed_nodes, parse_metadata
from tidegauge.tidl.errors import FormatError

META = "numGraphNodes=3\n0:subGraphName=subgraph_0\n0:numInputs=1\n0:numOutputs=1\n0:inDataNames=i\n0:outDataNames=o\n"


def good() -> dict[str, bytes]:
    return {
        "allowedNode.txt": b"1\n3\n0\n1\n2\n",
        "onnxrtMetaData.txt": META.encode(),
        "subgraph_0_tidl_net.bin": net_header.pack(0x20240719) + bytes(100),
        "subgraph_0_tidl_io_1.bin": bytes(94616),
    }


def problems(files: dict[str, bytes], runtime: Literal["onnx", "tflite"] = "onnx") -> dict[str, tuple[str, bool]]:
    found = check(runtime, {name: len(data) for name, data in files.items()}, files)
    assert all(problem.cure for problem in found)
    return {problem.file: (problem.problem, problem.fatal) for problem in found}


def test_real_text_files(real_compile: Path) -> None:
    folder = real_compile / "artifacts"
    (group,) = parse_allowed_nodes((folder / "allowedNode.txt").read_text())
    assert group == tuple(range(271))
    meta = parse_metadata((folder / "onnxrtMetaData.txt").read_text())
    assert meta.graph_nodes == 271
    assert [(item.name, item.inputs, item.outputs) for item in meta.subgraphs] == [
        ("subgraph_0", ("input",), ("labels", "dets"))
    ]


def test_the_real_folder_lacks_only_its_network(real_compile: Path) -> None:
    files = {file.name: file.read_bytes() for file in (real_compile / "artifacts").iterdir()}
    assert problems(files) == {"subgraph_0_tidl_net.bin": ("the file is missing", True)}


def test_a_whole_folder_has_no_problem() -> None:
    assert problems(good()) == {}


@pytest.mark.parametrize("name", ["allowedNode.txt", "subgraph_0_tidl_net.bin", "subgraph_0_tidl_io_1.bin"])
def test_a_missing_file_is_fatal_and_named(name: str) -> None:
    files = good()
    del files[name]
    assert problems(files)[name][1]


def test_each_damage_is_named() -> None:
    assert "allows no node" in problems(good() | {"allowedNode.txt": b"0\n"})["allowedNode.txt"][0]
    assert "ends inside" in problems(good() | {"allowedNode.txt": b"1\n3\n0\n"})["allowedNode.txt"][0]
    assert "not text" in problems(good() | {"onnxrtMetaData.txt": b"\xff"})["onnxrtMetaData.txt"][0]
    assert "94615" in problems(good() | {"subgraph_0_tidl_io_1.bin": bytes(94615)})["subgraph_0_tidl_io_1.bin"][0]
    assert problems(good() | {"subgraph_0_tidl_net.bin": b"cut"})["subgraph_0_tidl_net.bin"][1]


def test_files_of_two_releases_do_not_belong_together() -> None:
    told, fatal = problems(good() | {"subgraph_0_tidl_io_1.bin": bytes(93976)})["subgraph_0_tidl_net.bin"]
    assert fatal
    assert "10.0" in told
    assert "9.2" in told


def test_an_unknown_network_version_is_told_but_not_fatal() -> None:
    told, fatal = problems(good() | {"subgraph_0_tidl_net.bin": net_header.pack(0x20270101)})["subgraph_0_tidl_net.bin"]
    assert not fatal
    assert "0x20270101" in told


def test_a_network_named_only_by_the_metadata_is_missed() -> None:
    second = META + "1:subGraphName=subgraph_1\n1:inDataNames=o\n1:outDataNames=p\n"
    assert "subgraph_1_tidl_net.bin" in problems(good() | {"onnxrtMetaData.txt": second.encode()})


def test_tflite_needs_no_metadata_but_a_network() -> None:
    files = good()
    del files["onnxrtMetaData.txt"]
    assert problems(files, "tflite") == {}
    assert problems(files) == {"onnxrtMetaData.txt": ("the file is missing", False)}
    assert "*_tidl_net.bin" in problems({"allowedNode.txt": b"1\n1\n0\n"}, "tflite")


@pytest.mark.parametrize("text", ["", "x", "1", "1\n-1", "2\n1\n0\n", "1\n1\n0\n5\n", "9999999999"])
def test_allowed_nodes_refuses(text: str) -> None:
    with pytest.raises(FormatError):
        parse_allowed_nodes(text)


@pytest.mark.parametrize(
    "text", ["", "numGraphNodes=1", META.replace("=3", "=x"), META.replace("0:numInputs=1", "0:numInputs=2"), "a\n"]
)
def test_metadata_refuses(text: str) -> None:
    with pytest.raises(FormatError):
        parse_metadata(text)
