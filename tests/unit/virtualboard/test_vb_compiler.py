"""What a compile writes is what TIDL's own formats say, and what it can't compile it refuses before writing."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tidegauge.errors import TidegaugeError
from tidegauge.tidl import artifacts as artifact_rules
from tidegauge.tidl import io_descriptor, layer_info, net_header, netlog, quant_proto, svg
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.network import TYPE_NAMES, TwinNetwork, load_artifacts
from tidegauge.virtualboard.options import CompileOptions

NET = "subgraph_0_tidl_net.bin"
Frames = list[dict[str, np.ndarray]]


@pytest.fixture
def network(artifacts: Path) -> TwinNetwork:
    return load_artifacts(artifacts)


def test_layers_are_fused_named_and_numbered_like_tidl(network: TwinNetwork) -> None:
    names = [layer.name for layer in network.layers]
    assert names[:6] == ["input", "input_netFormat", "relu1", "relu2", "skip", "conv3_out"]
    assert names[-3:] == ["enhanced_original", "enhanced", "enhanced"]
    assert [layer.data_id for layer in network.layers] == [*range(len(names) - 1), 0]
    assert network.layer("skip").inputs == (2, 3)
    assert network.layer("relu1").kind == "TIDL_ConvolutionLayer"
    assert network.layer("enhanced").quant.is_float
    assert not network.layer("input_netFormat").quant.is_float


def test_element_types_follow_range_and_option(network: TwinNetwork) -> None:
    quant = {layer.name: layer.quant for layer in network.tensors()}
    assert str(quant["relu1"].dtype) == "uint8"
    assert quant["relu1"].zero_point == 0
    assert str(quant["curves"].dtype) == "int8"
    assert quant["curves"].zero_point != 0
    assert str(quant["enhanced_original"].dtype) == "uint16"
    assert quant["rate0"] == quant["curves"]


def test_every_table_tells_the_same(artifacts: Path, network: TwinNetwork) -> None:
    temp = artifacts / "tempDir"
    drawn = {layer.number: layer for layer in svg.parse((temp / f"{NET}.svg").read_text())}
    rows = layer_info.parse((temp / f"{NET}.layer_info.txt").read_text())
    logged = netlog.parse((temp / f"{NET}_netLog.txt").read_text())
    proto = quant_proto.parse((temp / "model_qparams.prototxt").read_text())
    assert len(drawn) == len(rows) == len(logged.layers) == len(proto) == len(network.layers)
    for layer, row, log, written in zip(network.layers, rows, logged.layers, proto, strict=True):
        node = drawn[layer.layer_id]
        assert node.kind == log.kind == written.kind == layer.kind
        assert written.name == layer.name
        assert log.name == layer.name
        assert log.inputs == layer.inputs
        if layer.is_sink:
            assert (row.data_id, node.outputs) == (0, ())
            continue
        (out,) = node.outputs
        assert out.data_id == row.data_id == log.output == layer.data_id
        assert out.dims == log.output_dims == layer.dims
        assert out.element == TYPE_NAMES[layer.quant.element_type]
        assert float(out.scale or "nan") == pytest.approx(layer.quant.scale, abs=1e-6)
        assert out.zero_point == layer.quant.zero_point
        (quantised,) = written.outputs
        assert (quantised.element, quantised.zero_points) == (layer.quant.element_type, (layer.quant.zero_point,))
        assert [float(scale) for scale in quantised.scales] == [layer.quant.scale]
        convolution = layer.kind == "TIDL_ConvolutionLayer"
        assert len(written.weights) == len(written.bias) == convolution
        if convolution:
            assert len(written.weights[0].scales) == layer.dims[3]  # quantization_scale_type 4: one a channel


def test_layer_info_keeps_tidls_trailing_space_and_wrong_output_name(artifacts: Path) -> None:
    lines = (artifacts / "tempDir" / f"{NET}.layer_info.txt").read_text().split("\n")
    assert lines[1] == "1 1 input_netFormat "
    assert lines[-2].endswith(" 0 input ")


def test_netlog_columns_are_those_of_a_real_one(artifacts: Path) -> None:
    lines = (artifacts / "tempDir" / f"{NET}_netLog.txt").read_text().split("\n")
    # from a real AM62A compile, tools 10_00_08_00
    head = (
        "  Num|TIDL Layer Name               |Out Data Name                                     |Group |#Ins  |#Outs |"
        "Inbuf Ids                       |Outbuf Id |In NCHW                             |"
        "Out NCHW                            |MACS       |"
    )
    assert lines[2] == head
    assert lines[4].startswith("    0|TIDL_DataLayer                |input      ")
    assert "|     0|    -1|     1|  x   x   x   x   x   x   x   x |  0       |       0        0        0 " in lines[4]


def test_a_board_accepts_the_artifacts(artifacts: Path, network: TwinNetwork) -> None:
    files = [path for path in artifacts.iterdir() if path.is_file()]
    sizes = {path.name: path.stat().st_size for path in files}
    assert artifact_rules.check("onnx", sizes, {path.name: path.read_bytes() for path in files}) == ()
    head = net_header.parse((artifacts / NET).read_bytes())
    assert (head.version, head.device, head.release) == (0x20250821, 4, "11.1")
    described = io_descriptor.parse((artifacts / "subgraph_0_tidl_io_1.bin").read_bytes())
    assert [(x.name, x.dims, x.dtype, x.data_id) for x in described.inputs] == [
        ("input", (1, 1, 1, 3, 24, 32), "float32", 0)
    ]
    assert [(x.name, x.shape, x.data_id) for x in described.outputs] == [
        ("enhanced", (1, 3, 24, 32), network.layer("enhanced").data_id)
    ]


def test_the_same_compile_gives_the_same_bytes(
    artifacts: Path, enhancer: Path, calibration: Frames, tmp_path: Path
) -> None:
    options = CompileOptions(
        quantization_scale_type=4, output_feature_16bit_names_list=("enhanced",), calibration_frames=4
    )
    report = compile_model(enhancer, tmp_path / "again", calibration, options)
    for path in sorted(artifacts.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "again" / path.relative_to(artifacts)).read_bytes(), path.name
    assert report.net_sha256 == hashlib.sha256((artifacts / NET).read_bytes()).hexdigest()
    assert report.frames == 4


def test_more_bits_are_nearer_to_float(enhancer: Path, calibration: Frames, tmp_path: Path) -> None:
    def sqnr(name: str, options: CompileOptions) -> float:
        return compile_model(enhancer, tmp_path / name, calibration, options).sqnr_db["enhanced"]

    eight = sqnr("8", CompileOptions())
    wide = ("input", "curves", "bend0", "bend1", "square0", "square1", "change0", "change1", "image0", "enhanced")
    mixed = sqnr("mixed", CompileOptions(output_feature_16bit_names_list=wide))
    sixteen = sqnr("16", CompileOptions(tensor_bits=16))
    assert 25 < eight < mixed < sixteen
    assert sixteen > 70


def test_an_unknown_16_bit_name_is_only_warned_about(enhancer: Path, calibration: Frames, tmp_path: Path) -> None:
    options = CompileOptions(output_feature_16bit_names_list=("conv1_out", "relu1"), calibration_frames=4)
    report = compile_model(enhancer, tmp_path / "a", calibration, options)
    assert report.warnings == ("Invalid Layer Name  conv1_out",)  # conv1 was fused into relu1
    assert "Invalid Layer Name  conv1_out" in (tmp_path / "a" / "tempDir" / "compile.log").read_text()
    assert str(load_artifacts(tmp_path / "a").layer("relu1").quant.dtype) == "uint16"


def test_tidl_option_names() -> None:
    options = CompileOptions.from_tidl(
        {
            "tensor_bits": "16",
            "advanced_options:output_feature_16bit_names_list": "a, b",
            "advanced_options:quantization_scale_type": "4",
        }
    )
    assert options == CompileOptions(16, ("a", "b"), (), 4)
    many = CompileOptions.from_tidl(
        {"advanced_options:mixed_precision_factor": "2", "artifacts_folder": "x", "quantization_scale_type": 4}
    )
    assert many == CompileOptions(ignored=many.ignored)
    assert many.warnings() == [
        "advanced_options:mixed_precision_factor has no effect on the virtual board",
        "quantization_scale_type is no compile option of TIDL: ignored",
    ]
    with pytest.raises(TidegaugeError, match="tensor_bits"):
        CompileOptions.from_tidl({"tensor_bits": 12})
    with pytest.raises(TidegaugeError, match="advanced_options:calibration_iterations is -1"):
        CompileOptions.from_tidl({"advanced_options:calibration_iterations": "-1"})


def _one_node(op: str, dims: list[object], kind: int = onnx.TensorProto.FLOAT) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", kind, dims)],
        [helper.make_tensor_value_info("y", kind, dims)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (_one_node("Cos", [1, 3]), r"no layer for the operators Cos \(1\)"),
        (_one_node("Relu", ["batch", 3]), "x has a dynamic shape"),
        (_one_node("Relu", [1, 3], onnx.TensorProto.FLOAT16), "x is not float32"),
    ],
)
def test_what_it_cannot_compile_it_refuses_and_writes_nothing(
    model: onnx.ModelProto, said: str, tmp_path: Path
) -> None:
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(TidegaugeError, match=said):
        compile_model(tmp_path / "m.onnx", tmp_path / "a", [{"x": np.ones((1, 3), np.float32)}], CompileOptions())
    assert not (tmp_path / "a").exists()


def test_bad_calibration_is_refused(enhancer: Path, calibration: Frames, tmp_path: Path) -> None:
    bad = calibration[0]["input"].copy()
    bad[0, 1, 2, 3] = np.nan
    for given, said in (
        ([], "no calibration frame"),
        ([*calibration, {"input": bad}], "frame 4 makes .* infinite or not a number"),
        ([{"x": bad}], r"has the tensors \['x'\], the model wants \['input'\]"),
        ([{"input": bad[:, :, 1:]}], r"float32 \[1, 3, 23, 32\]"),
    ):
        with pytest.raises(TidegaugeError, match=said):
            compile_model(enhancer, tmp_path / "a", given, CompileOptions())
    assert not (tmp_path / "a").exists()


def test_a_folder_in_use_is_refused(enhancer: Path, calibration: Frames, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    with pytest.raises(TidegaugeError, match="is not empty"):
        compile_model(enhancer, tmp_path, calibration, CompileOptions())


def test_foreign_and_damaged_networks_are_refused(artifacts: Path, tmp_path: Path) -> None:
    whole = (artifacts / NET).read_bytes()
    for data, said in ((net_header.pack(0x20250821) + b"\0" * 99, "not written by"), (whole[:-5], "truncated")):
        (tmp_path / NET).write_bytes(data)
        with pytest.raises(TidegaugeError, match=said):
            load_artifacts(tmp_path)
