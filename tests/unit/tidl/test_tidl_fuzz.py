"""Whatever a file holds, a parser answers with a struct or with FormatError, and soon."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.tidl import (
    artifacts,
    compile_log,
    csv_tables,
    file_names,
    io_descriptor,
    layer_info,
    net_header,
    netlog,
    param_yaml,
    plain_yaml,
    remote_log,
    tensor_table,
    trace_names,
)
from tidegauge.tidl.errors import FormatError

SVG = (
    "<svg><title>Layer 0: TIDL_ConvolutionLayer &quot;a b&quot;\n &#160;Outputs:\n"
    " [1] numDim=6 dims=[1,1,1,3,8,8] &#160;elementType=TIDL_SignedChar\n"
    " min/maxValue=(0,0) min/maxTensorValue=(-1.0,2.0)\n tensorScale=2.000\n tensorZeroPoint=0\n</title>"
    "<title>Layer 1: TIDL_DataLayer &quot;a&quot;\n</title></svg>"
)
PROTO = (
    'num_layers: 1\nlayers { layer_name: "a" bit_depth: 1'
    " outputs { min: -1 scale: 2.5e1 element_type: 1 zero_point: 0 } }"
)
NETLOG = (
    "Num of Layer Detected : 1\n----\n"
    "  2|TIDL_ConvolutionLayer |1 | 0| 1| 1| 1 x x | 2 | 1 1 1 3 8 8 | 1 1 1 12 4 4 | 33 |\n"
    "Total Giga Macs : 13.3203\n"
)
META = "numGraphNodes=3\n0:subGraphName=s\n0:numInputs=1\n0:numOutputs=1\n0:inDataNames=i\n0:outDataNames=o\n"
LOG = "[C7x_1 ]      4.751024 s:   3       879.65314         0.00000        39.16554 2\n"
YAML = (
    "session:\n  session_name: onnxrt\n  input_mean:\n  - 0.0\n  - 'a''b'\npreprocess:\n  resize: 64\n  x: \"a\\n\"\n"
)
PARAM_YAML = YAML.replace("'a''b'", "1.5")
PARAM_DEBUG = (
    "LayerId , meanDifference, maxDifference, meanOrigFloat, meanRelDifference, orgmax, quantizedMax,orgAtmaxDiff,"
    " quantizedAtMaxDiff,maxRelDifference, Scale , , , , Hist \n2,0.1,0.2,1.2,0.01,3.2,3.2,-0.04,-0.04,0.06,99.7,,,1\n"
)
PERFSIM = (
    " lyrNum , LyrType,procTime(us),dataFlow,\n 0,TIDL_DataLayer, 0.00, 3,\n---Network summary---\n"
    "Release version = TI_10.00.00\nTotal Network Cycles (mega) = 367.46\nTotal network Time (us) = 367462.84\n"
)
PERF = "Layer, Layer Cycles,kernelOnlyCycles\n 0, 201, 7,\n 1, 9, 7,\n Sum of Layer Cycles 210 \n"
COMPILE = "|  TIDL Tools Version | 10_00_08_00 |\n| C7x | 271 | 1 |\nInvalid Layer Name  /a/b\n"
PARSERS: dict[str, tuple[Callable[[str], object], str]] = {
    "svg": (tensor_table.from_svg, SVG),
    "proto": (tensor_table.from_quant_proto, PROTO),
    "log": (tensor_table.from_remote_log, LOG),
    "line": (remote_log.parse, LOG),
    "cause": (remote_log.cause, "VX_ZONE_ERROR: EP Error x when using y"),
    "netlog": (netlog.parse, NETLOG),
    "layer_info": (layer_info.parse, "0 0 input \n1 1 a b \n"),
    "allowed": (artifacts.parse_allowed_nodes, "1\n3\n0\n1\n2\n"),
    "meta": (artifacts.parse_metadata, META),
    "yaml": (plain_yaml.parse, YAML),
    "param_yaml": (param_yaml.parse, PARAM_YAML),
    "param_debug": (csv_tables.parse_param_debug, PARAM_DEBUG),
    "perfsim": (csv_tables.parse_perfsim, PERFSIM),
    "perf": (csv_tables.parse_perf, PERF),
    "compile_log": (compile_log.parse, COMPILE),
    "file_name": (file_names.identify, "subgraph_0_tidl_net.bin_paramDebug.csv"),
    "name": (trace_names.parse, "C7x_1_tidl_trace_s_0_0009_0001_0001_00001_00064_00128x00128.y"),
}
_PIECES = st.text(max_size=6) | st.sampled_from(
    [
        "-",
        "9" * 5000,
        "{",
        "}",
        '"',
        "|",
        "\n",
        "\0",
        "nan",
        "1e999",
        "<title>",
        "٣",
        "²",
        "- ",
        ": ",
        "'",
        "&a",
        "  ",
        ",",
        "\xa0",
        ":",
        "&#0;",
        "\ud800",
    ]
)


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(_PIECES) + text[at + draw(st.integers(0, 8)) :]
    return text


@pytest.mark.parametrize("format_", PARSERS)
@settings(max_examples=120, deadline=2000)
@given(data=st.data())
def test_text(format_: str, data: st.DataObject) -> None:
    parser, good = PARSERS[format_]
    parser(good)
    text = data.draw(damaged(good) | st.text(max_size=40))
    try:
        parser(text)
    except FormatError as error:
        assert error.problem
        assert error.cure


@settings(max_examples=20, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, io_descriptor.SIZE - 1), st.integers(0, 255)), max_size=12)
    | st.lists(st.tuples(st.integers(0, 31), st.integers(0, 255)), max_size=12)
)
@pytest.mark.parametrize("size", io_descriptor.KNOWN_SIZES)
def test_descriptor(size: int, changes: list[tuple[int, int]]) -> None:
    item = io_descriptor.IoInput("a", 0, (1, 1, 1, 1, 1, 1), "int8", 1.0, 0)
    data = bytearray(io_descriptor.pack(io_descriptor.IoDescriptor((item,), (), file_size=size)))
    for offset, value in changes:
        data[offset % size] = value
    try:
        parsed = io_descriptor.parse(bytes(data))
        assert io_descriptor.parse(io_descriptor.pack(parsed)) == parsed
    except FormatError as error:
        assert error.problem


@settings(max_examples=60)
@given(st.binary(max_size=64))
def test_bytes_of_any_size(data: bytes) -> None:
    for parser in (io_descriptor.parse, net_header.parse):
        try:
            parser(data)
        except FormatError as error:
            assert error.problem


@settings(max_examples=80)
@given(
    st.dictionaries(
        st.sampled_from(["allowedNode.txt", "onnxrtMetaData.txt", "s_tidl_net.bin", "s_tidl_io_1.bin", "x"]),
        st.binary(max_size=30) | st.sampled_from([b"1\n1\n0\n", META.encode(), b"\x19\x07\x24\x20\x04\0\0\0"]),
    )
)
def test_a_folder(files: dict[str, bytes]) -> None:
    for runtime in ("onnx", "tflite"):
        found = artifacts.check(runtime, {name: len(data) for name, data in files.items()}, files)
        assert found, "no such folder is whole: the descriptor is never of the right size"
        assert all(problem.problem and problem.cure for problem in found)


@pytest.mark.parametrize("format_", PARSERS)
def test_large_nonsense_is_refused_or_read_within_seconds(format_: str) -> None:
    parser, _ = PARSERS[format_]
    for piece in (
        "a",
        " ",
        "0 0 ",
        "[1] numDim=",
        "Layer 0: ",
        "{",
        "&",
        "<title>Layer ",
        '"',
        "1|",
        "_0001",
        "- ",
        "a: ",
        "- a\n ",
        "x\n",
        "'\n ",
        "1,",
        "C7x_",
    ):
        try:
            parser(piece * 100_000)
        except FormatError as error:
            assert len(str(error)) < 2000
