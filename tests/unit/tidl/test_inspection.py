"""`inspection` over the real compile: every layer, and traces of which some are cut, missing or foreign."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegauge.tidl.inspection import Inspection, inspect
from tidegauge.tidl.io_descriptor import IoDescriptor, IoInput, pack
from tidegauge.tidl.log_report import report
from tidegauge.tidl.trace_names import TraceName, expected_bytes, format_name


@pytest.fixture(scope="module")
def contents(real_compile: Path) -> dict[str, bytes]:
    files = [path for path in real_compile.rglob("*") if path.is_file()]
    return {str(path.relative_to(real_compile)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def found(contents: dict[str, bytes]) -> Inspection:
    return inspect({name: len(data) for name, data in contents.items()}, contents)


def test_the_whole_compile(found: Inspection) -> None:
    assert found.what == ("artifacts", "tempDir", "log", "parameters")
    assert (found.offloaded_nodes, found.graph_nodes) == (271, 271)
    (network,) = found.networks
    assert (network.name, network.era, network.picture, network.giga_macs) == ("subgraph_0", "number", "svg", 13.3203)
    assert (network.descriptor_release, len(network.layers)) == ("10.0 to 11.1", 122)
    layer = network.layers[2]
    assert (layer.kind, layer.name, layer.data_id, layer.inputs) == ("TIDL_ConvolutionLayer", "1", 2, (1,))
    assert (layer.dims, layer.dtype, layer.scale, layer.source) == ((1, 1, 1, 12, 320, 320), "int16", 601.966187, "svg")
    assert (layer.minimum, layer.maximum) == (-48.651386, 48.731838)
    assert layer.weight_steps == pytest.approx(0.616, abs=0.001)
    assert (layer.weight_relative, layer.microseconds) == (0.080038, 725.8)
    assert sum(row.scale is not None for row in network.layers) == 120
    told = {finding.file: finding for finding in found.findings}
    assert "9 names" in told["run.log"].problem
    assert told["subgraph_0_tidl_net.bin"].problem == "the file is not here"
    assert not any(finding.fatal for finding in found.findings)


def test_without_tempdir_only_inputs_and_outputs_are_known(contents: dict[str, bytes]) -> None:
    board = {name: data for name, data in contents.items() if name.startswith("artifacts/")}
    found = inspect({name: len(data) for name, data in board.items()}, board)
    (network,) = found.networks
    assert found.what == ("artifacts",)
    assert network.layers == ()
    assert network.descriptor is not None
    assert [tensor.name for tensor in network.descriptor.outputs] == ["dets", "labels"]


def test_traces_against_the_table(contents: dict[str, bytes], found: Inspection) -> None:
    layers = [row for row in found.networks[0].layers if row.data_id is not None and row.kind != "TIDL_DataLayer"]
    sizes = {name: len(data) for name, data in contents.items()}
    expected: dict[int, tuple[str, int]] = {}
    for row in layers:
        assert row.dims is not None
        assert row.dtype is not None
        assert row.data_id is not None
        one, d1, d2, c, h, w = row.dims
        kind = "float" if row.dtype == "float32" else "y"
        trace = TraceName("C7x_1", "subgraph_0", row.data_id, (one, d1, d2, c, h, w), kind)
        expected[row.data_id] = (f"traces/{format_name(trace)}", expected_bytes(row.dims, row.dtype))
    sizes |= dict(expected.values())
    whole = inspect(sizes, contents)
    assert {trace.status for trace in whole.traces} == {"whole"}
    assert (len(whole.traces), whole.missing) == (119, ())
    sizes[expected[5][0]] -= 1
    sizes[expected[6][0]] += 2
    del sizes[expected[7][0]]
    stale = format_name(TraceName("C7x_1", "subgraph_0", 700, (1, 1, 1, 2, 3, 4), "y"))
    sizes[stale] = 24
    broken = inspect(sizes, contents)
    wrong = {trace.data_id: trace.status for trace in broken.traces if trace.status != "whole"}
    assert wrong == {5: "truncated", 6: "too long", 700: "unexpected"}
    assert [(item.data_id, item.name) for item in broken.missing] == [(7, "11")]


def test_traces_alone_are_never_called_whole() -> None:
    name = format_name(TraceName(None, "subgraph_0", 3, (1, 1, 1, 2, 3, 4), "y"))
    for size, status in ((24, "size unknown"), (48, "size unknown"), (23, "truncated"), (49, "too long")):
        (trace,) = inspect({name: size}, {}).traces
        assert (trace.status, trace.dtype) == (status, None)
    floats = format_name(TraceName(None, "subgraph_0", 3, (1, 1, 1, 2, 3, 4), "float"))
    assert inspect({floats: 96}, {}).traces[0].status == "whole"


def test_the_log_of_the_dump_tells_types() -> None:
    name = format_name(TraceName("C7x_1", "subgraph_0", 3, (1, 1, 1, 2, 3, 4), "y"))
    log = {"remote_log.txt": b"[C7x_1 ]      4.751024 s:   3       879.65314         0.00000        39.16554 2\n"}
    for size, status in ((48, "whole"), (24, "truncated")):
        (trace,) = inspect({name: size}, {}, logs=log).traces
        assert (trace.dtype, trace.expected, trace.status) == ("uint16", 48, status)
    twice = {"remote_log.txt": log["remote_log.txt"] + log["remote_log.txt"].replace(b"39.16554 2", b"39.16554 1")}
    assert inspect({name: 48}, {}, logs=twice).traces[0].status == "size unknown", "two networks were dumped"


def test_damage_is_found_and_the_rest_is_read(contents: dict[str, bytes]) -> None:
    broken = dict(contents)
    broken["tempDir/subgraph_0_tidl_net.bin.svg"] = b"<svg></svg>"
    broken["artifacts/subgraph_0_tidl_io_1.bin"] = broken["artifacts/subgraph_0_tidl_io_1.bin"][:-1]
    found = inspect({name: len(data) for name, data in broken.items()}, broken)
    fatal = {finding.file for finding in found.findings if finding.fatal}
    assert fatal == {"tempDir/subgraph_0_tidl_net.bin.svg", "artifacts/subgraph_0_tidl_io_1.bin"}
    assert found.networks[0].layers[2].source == "proto"
    assert found.networks[0].layers[2].scale == pytest.approx(601.966187)


def test_html_is_read_as_far_as_it_carries_the_lines(contents: dict[str, bytes]) -> None:
    svg, html = "tempDir/subgraph_0_tidl_net.bin.svg", "tempDir/subgraph_0_tidl_net.bin.html"
    rest = {name: data for name, data in contents.items() if name != svg}

    def layer(files: dict[str, bytes]) -> tuple[str, str, list[bool]]:
        found = inspect({name: len(data) for name, data in files.items()}, files)
        told = [finding.fatal for finding in found.findings if finding.file == html]
        return found.networks[0].picture, found.networks[0].layers[2].source, told

    assert layer(rest | {html: contents[svg]}) == ("html", "svg", [])
    assert layer(rest | {html: b"<html>another form</html>"}) == ("html", "proto", [False]), "unknown is not damaged"
    assert layer(contents | {html: b"<html>another form</html>"}) == ("svg", "svg", [])


def test_a_mix_of_two_compiles_is_found(contents: dict[str, bytes]) -> None:
    svg = contents["tempDir/subgraph_0_tidl_net.bin.svg"].replace(b"tensorScale=601.966187", b"tensorScale=300.983093")
    mixed = contents | {"tempDir/subgraph_0_tidl_net.bin.svg": svg}
    found = inspect({name: len(data) for name, data in mixed.items()}, mixed)
    (finding,) = [finding for finding in found.findings if finding.fatal]
    assert "tensor 1 (2) has scale 300.983 here and 601.966 in the proto" in finding.problem


def test_sub_graphs_of_every_era() -> None:
    io = pack(IoDescriptor((IoInput("a", 0, (1, 1, 1, 1, 1, 1), "int8", 1.0, 0),), (), file_size=37256))
    files = {f"{name}_tidl_io_1.bin": io for name in ("264", "detslabels", "subgraph_1")}
    found = inspect({name: len(data) for name, data in files.items()}, files)
    assert [(network.name, network.era, network.descriptor_release) for network in found.networks] == [
        ("264", "tensor_index", "8.6"),
        ("detslabels", "output_names", "8.6"),
        ("subgraph_1", "number", "8.6"),
    ]


def test_a_log_of_a_hang() -> None:
    text = (
        "[C7x_1 ]      4.100000 s: Processing Layer # -    6\n"
        "[C7x_1 ]      4.200000 s: End of Layer # -    6 with outPtrs[0] = 7002001e\n"
        "[C7x_1 ]      4.300000 s: Processing Layer # -    7\n"
        "FOPEN : Could not open file /tmp/x\nFOPEN : Could not open file /tmp/x\n"
    )
    told = report("remote_log.txt", text)
    assert (told.unfinished, told.first_seconds, told.last_seconds, told.cores) == (7, 4.1, 4.3, ("C7x_1",))
    (fault,) = told.faults
    assert (fault.cause, fault.count, fault.line) == ("trace_file", 2, 4)
    assert "free room in /tmp" in fault.cure


def test_layer_times_in_a_log(samples: Path, contents: dict[str, bytes]) -> None:
    text = (samples / "logs/remote_log_c7x_tidl_perf.txt").read_text()
    told = report("remote_log.txt", "[C7x_1 ]      4.36 s: ### CPU Frequency = 850000000 Hz\n" + text)
    assert [(row.layer, row.cycles) for row in told.cycles] == [(0, 201247), (1, 44208)]
    assert told.clock_hz == 850_000_000
    assert report("x", "Sub Graph Stats 12.500000 9000.250000 7.000000 \n").run_microseconds == (12.5, 9000.25, 7.0)
    sizes = {name: len(data) for name, data in contents.items()}
    found = inspect(sizes, contents, logs={"remote_log.txt": text.encode()})
    assert [layer.cycles for layer in found.networks[0].layers[:3]] == [201247, 44208, None]
