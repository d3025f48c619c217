"""The files around a compile, real ones read in full: YAML, weight errors, simulated and measured times, its log."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegauge.tidl import artifacts, compile_log, csv_tables, file_names, layer_info, netlog, param_yaml, plain_yaml
from tidegauge.tidl.errors import FormatError

PERF = """Layer,   Layer Cycles,kernelOnlyCycles, coreLoopCycles,
     0,         201247,         171496,         173177,
     1,          44208,          17603,          18221,
 Sum of Layer Cycles 245455 
"""  # noqa: W291


def test_real_yaml_is_read_as_pyyaml_reads_it(samples: Path) -> None:
    yaml = pytest.importorskip("yaml")
    files = sorted(samples.glob("*/*.yaml"))
    assert len(files) == 6
    for file in files:
        text = file.read_text()
        assert plain_yaml.parse(text) == yaml.safe_load(text), file


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1e-5\nb: 1.0e-05\nc: -3\nd: 'it''s'\ne: []\nf: {}\n", None),
        ("- - 1\n  - 2\n- a: 1\n  b:\n  - 3\n-\n  x\n", None),
        ('a: "x\\n\\u00e9"\nb: long text\n  goes on\nc: http://x:80/y\nd: tensor(float)\n', None),
        ("a: '' # c\nb: # none\n- 1\nc: x # y\nd: no\ne: 'no'\n", None),
        ("", None),
        ("x: .5\ny: .inf\nz: ~\n", None),
    ],
)
def test_the_subset_means_what_yaml_means(text: str, value: object) -> None:
    yaml = pytest.importorskip("yaml")
    assert plain_yaml.parse(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: !!python/object/apply:os.system ['x']", r"line 1: yaml: a tag"),
        ("a: 1\nb: &x\n- 1", r"line 2: yaml: an anchor"),
        ("b: *x", "an alias"),
        ("b: [1, 2]", "a flow list"),
        ("b: |\n  text", "a block scalar"),
        ("a: 1\n---\nb: 2", "line 2: yaml: a second document"),
        ("a: 1\na: 2", "line 2: yaml: the key 'a' comes twice"),
        ("a: 0x10", "a number in a form"),
        ("a:\n\tb: 1", "a tab"),
        ("a: 1\n   b: 2", "line 2|a mapping inside"),
        ("a: 'x", "no end"),
        ("- " * 40 + "x", "nested deeper"),
    ],
)
def test_what_the_tools_do_not_write_is_refused(text: str, told: str) -> None:
    with pytest.raises(FormatError, match=told):
        plain_yaml.parse(text)


def test_param_yaml(real_compile: Path) -> None:
    told = param_yaml.parse((real_compile / "param.yaml").read_text())
    assert (told.task, told.runtime, told.model_path) == ("detection", "onnx", "model/model.onnx")
    assert (told.resize, told.crop, told.keep_aspect, told.layout) == ((640, 640), (640, 640), True, "NCHW")
    assert told.channel_order == "BGR", "TI's tools read pictures as RGB and reverse them"
    assert (told.reverse_channels, told.mean, told.scale) == (True, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    assert told.inputs == (param_yaml.TensorDetail("input", (1, 3, 640, 640), "float32"),)
    assert [(tensor.name, tensor.dtype) for tensor in told.outputs] == [("dets", "float32"), ("labels", "int64")]
    assert (told.options["tensor_bits"], told.options["advanced_options:quantization_scale_type"]) == ("16", "4")
    with pytest.raises(FormatError, match="no `session`"):
        param_yaml.parse("task_type: detection\npreprocess:\n  crop: 3\n")


def test_weight_quantisation_errors(real_compile: Path) -> None:
    rows = csv_tables.parse_param_debug((real_compile / "tempDir/subgraph_0_tidl_net.bin_paramDebug.csv").read_text())
    assert len(rows) == 168
    assert [(row.layer, row.role) for row in rows[:4]] == [(2, "bias"), (2, "weights"), (3, "bias"), (3, "weights")]
    assert (rows[1].max_difference, rows[1].scale, rows[1].mean_relative) == (0.000002, 308206.6875, 0.080038)
    assert rows[1].steps == pytest.approx(0.616, abs=0.001)
    assert max(row.steps for row in rows) < 1.1, "rounding alone: no parameter is clipped at 16 bits"


def test_simulated_times(real_compile: Path) -> None:
    told = csv_tables.parse_perfsim((real_compile / "tempDir/perfsim.csv").read_text())
    assert (told.release, told.microseconds, told.mega_cycles) == ("TI_NETWORK_COMPILER_10.00.00", 367462.84, 367.46)
    assert (told.ddr_read, told.ddr_write, told.ddr_total, told.clock_mhz) == (119.27, 68.32, 187.58, 1000)
    assert len(told.layers) == 122
    assert sum(layer.microseconds for layer in told.layers) == pytest.approx(told.microseconds, abs=1)


def test_measured_times() -> None:
    told = csv_tables.parse_perf(PERF)
    assert [(row.layer, row.cycles) for row in told.layers] == [(0, 201247), (1, 44208)]
    assert told.total == 245455
    assert csv_tables.parse_perf("Network Cycles 6294273\n" + PERF).network_cycles == 6294273
    cut = csv_tables.parse_perf(PERF[: PERF.index(" Sum")])
    assert cut.total is None
    with pytest.raises(FormatError, match="245454 cycles, the last line says 245455"):
        csv_tables.parse_perf(PERF.replace("44208", "44207"))


def test_the_log_of_the_compile(real_compile: Path) -> None:
    told = compile_log.parse((real_compile / "run.log").read_text())
    assert (told.tools, told.firmware, told.runtime) == ("10_00_08_00", "10_00_02_00", "1.14.0+10000005")
    assert (told.opset, told.c7x_nodes, told.cpu_nodes, told.subgraphs, told.compiled) == (17, 271, 0, 1, 1)
    # 9 names, 241 times each; one of the lines is torn by the progress bar.
    assert sorted(told.invalid_names) == sorted(
        f"/multi_level_conv_{part}.{level}/Conv_output_0" for part in ("obj", "reg", "cls") for level in (0, 1, 2)
    )
    assert len(told.warnings) == 1
    with pytest.raises(FormatError, match="no line of a TIDL compile"):
        compile_log.parse("hello\n")


@pytest.mark.parametrize(
    ("name", "role", "subgraph", "era"),
    [
        ("264_tidl_net.bin", "net", "264", "tensor_index"),
        ("264_tidl_net.bin.layer_info.txt", "layer_info", "264", "tensor_index"),
        ("detslabels_tidl_io_1.bin", "io", "detslabels", "output_names"),
        ("_backbone_a_output_0_tidl_net.bin", "net", "_backbone_a_output_0", "output_names"),
        ("subgraph_10_tidl_io_1.bin", "io", "subgraph_10", "number"),
        ("subgraph_0_tidl_net.bin_netLog.txt", "netlog", "subgraph_0", "number"),
        ("subgraph_0_tidl_net.bin.svg", "picture", "subgraph_0", "number"),
        ("subgraph_0_tidl_net.bin.html", "picture", "subgraph_0", "number"),
        ("subgraph0_net.bin", "net", "subgraph0", "tvm"),
        ("enhancer_tidl_net.bin", "net", "enhancer", "output_names"),
    ],
)
def test_names_of_every_era(name: str, role: str, subgraph: str, era: str) -> None:
    found = file_names.identify(name)
    assert found is not None
    assert (found.role, found.subgraph, file_names.era(subgraph)) == (role, subgraph, era)


def test_other_names() -> None:
    roles = {
        "C7x_1_tidl_trace_subgraph_0_0009_0001_0001_00001_00064_00128x00128.y": "trace",
        "tidl_trace0007_00001_00001_01600x00001_float.bin": "trace",
        "tidl_trace_subgraph_0_perf.csv": "perf",
        "model_qparams.prototxt": "proto",
        "subgraph_0_tidl_net_quant_params.prototxt": "proto",
        "run.log": "compile_log",
        "onnxrtMetaData.txt": "metadata",
    }
    for name, role in roles.items():
        found = file_names.identify(name)
        assert found is not None
        assert found.role == role, name
    for name in ("runtimes_visualization.svg", "model.prototxt", "../x_tidl_net.bin", "", "net.bin"):
        assert file_names.identify(name) is None
    assert file_names.subgraphs(["subgraph_10_tidl_net.bin", "subgraph_2_tidl_io_1.bin", "x"]) == (
        "subgraph_2",
        "subgraph_10",
    )


def test_the_same_network(real_netlog: str) -> None:
    first = netlog.parse(real_netlog)
    assert netlog.differences(first, netlog.parse(real_netlog)) == ()
    row = next(line for line in real_netlog.split("\n") if "TIDL_ConvolutionLayer" in line)
    changed = netlog.parse(real_netlog.replace(row, re.sub(r"320( +)320", r"320\g<1>321", row)))
    (told,) = netlog.differences(first, changed)
    assert told.startswith("layer 2: shape")
    assert "(1, 1, 1, 12, 320, 321)" in told


PARSERS: dict[str, Callable[[str], object]] = {
    "param.yaml": param_yaml.parse,
    "tempDir/perfsim.csv": csv_tables.parse_perfsim,
    "tempDir/subgraph_0_tidl_net.bin.layer_info.txt": layer_info.parse,
    "artifacts/allowedNode.txt": artifacts.parse_allowed_nodes,
    "artifacts/onnxrtMetaData.txt": artifacts.parse_metadata,
}


@pytest.mark.parametrize("file", PARSERS)
def test_cut_at_every_byte(real_compile: Path, file: str) -> None:
    text = (real_compile / file).read_text()
    whole, refused = PARSERS[file](text), 0
    step = 1 if len(text) < 1500 else len(text) // 300  # every byte of the small files
    for end in range(0, len(text), step):
        try:
            PARSERS[file](text[:end])
        except FormatError as error:
            assert error.problem
            refused += 1
    assert refused
    assert PARSERS[file](text) == whole


def test_the_tables_cut_at_every_byte() -> None:
    for end in range(len(PERF)):
        try:
            told = csv_tables.parse_perf(PERF[:end])
        except FormatError:
            continue
        assert told.total is None or end >= PERF.index("245455") + 6
