"""Writes what a TIDL compile leaves behind: the artifacts folder and its tempDir, in TIDL's names and grammar.

Source: a real AM62A compile of tools 10_00_08_00 (layer_info, netLog, svg, proto, allowedNode, onnxrtMetaData).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np

from tidegauge.tidl import io_descriptor
from tidegauge.virtualboard.lowering import Lowered, Region
from tidegauge.virtualboard.network import INT8, INT16, UINT8, Dims, Quant, TwinLayer, TwinNetwork, six_dims
from tidegauge.virtualboard.operators import Activation, attribute
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.svg import document
from tidegauge.virtualboard.twin import Names, Weights


@dataclass(frozen=True)
class Compiled:
    """All that the files of one sub-graph are written from. `nodes`: indices of its nodes in the model. `alone`: it
    holds the whole model."""

    lowered: Lowered
    names: Names
    layers: tuple[TwinLayer, ...]
    weights: dict[str, Weights]
    options: CompileOptions
    net: bytes
    warnings: tuple[str, ...]
    model: str
    subgraph: str
    nodes: tuple[int, ...]
    network: TwinNetwork
    alone: bool

    @property
    def net_file(self) -> str:
        return f"{self.subgraph}_tidl_net.bin"


def write(
    subgraphs: list[Compiled], total: int, warnings: tuple[str, ...], artifacts: Path, kind: Literal["onnx", "tflite"]
) -> None:
    """Write the folder and its tempDir. The networks come last: a folder without one is an unfinished compile.

    A compile of a TFLite model leaves no onnxrtMetaData.txt.
    """
    temp = artifacts / "tempDir"
    temp.mkdir(parents=True)
    for one in subgraphs:
        (temp / f"{one.net_file}.layer_info.txt").write_text(layer_info(one.layers))
        (temp / f"{one.net_file}_netLog.txt").write_text(net_log(one.layers))
        (temp / f"{one.net_file}.svg").write_text(document(one.net_file, _tooltips(one), one.layers))
        if one.options.tensor_bits != 32:
            proto = "model_qparams.prototxt" if one.alone else f"{one.subgraph}_qparams.prototxt"
            (temp / proto).write_text(quant_proto(one))
    (temp / "compile.log").write_text(compile_log(subgraphs, total, warnings))
    groups = [number for one in subgraphs for number in (len(one.nodes), *one.nodes)]
    (artifacts / "allowedNode.txt").write_text("".join(f"{number}\n" for number in (len(subgraphs), *groups)))
    if kind == "onnx":
        (artifacts / "onnxrtMetaData.txt").write_text(metadata(subgraphs, total))
    for one in subgraphs:
        (artifacts / f"{one.subgraph}_tidl_io_1.bin").write_bytes(io_descriptor.pack(descriptor(one)))
    for one in subgraphs:
        (artifacts / one.net_file).write_bytes(one.net)


def layer_info(layers: tuple[TwinLayer, ...]) -> str:
    """Layer id, data id, name, and TIDL's trailing space. Output data layers carry data id 0 and its wrong name."""
    first = layers[0].name
    rows = (f"{x.layer_id} {x.data_id} {first if x.is_sink else x.name} \n" for x in layers)
    return "".join(rows)


_RULE = "-" * 188
_NONE: Dims = (0, 0, 0, 0, 0, 0)


def net_log(layers: tuple[TwinLayer, ...]) -> str:
    """The table of layers and edges."""
    head = (
        f"{'Num':>5}|{'TIDL Layer Name':<30}|{'Out Data Name':<50}|{'Group':<6}|{'#Ins':<6}|{'#Outs':<6}|"
        f"{'Inbuf Ids':<32}|{'Outbuf Id':<10}|{'In NCHW':<36}|{'Out NCHW':<36}|{'MACS':<11}|"
    )
    dims = {layer.data_id: layer.dims for layer in layers if not layer.is_sink}
    rows = [_net_row(layer, dims) for layer in layers]
    giga = sum(layer.macs for layer in layers) / 1e9
    lines = [f"Num of Layer Detected : {len(layers):3d} ", _RULE, head, _RULE, *rows, _RULE]
    return "\n".join([*lines, f"Total Giga Macs : {giga:.4f}", _RULE]) + "\n"


def _net_row(layer: TwinLayer, dims: dict[int, Dims]) -> str:
    ids = " ".join(f"{layer.inputs[i]:3d}" if i < len(layer.inputs) else "  x" for i in range(8))
    ins = len(layer.inputs) if layer.inputs else -1
    outs = -1 if layer.is_sink else 1
    source = dims[layer.inputs[0]] if layer.inputs else _NONE
    target = _NONE if layer.is_sink else layer.dims
    return (
        f"{layer.layer_id:5d}|{layer.kind:<30}|{layer.name:<50}|{0:6d}|{ins:6d}|{outs:6d}|{ids} |"
        f"{layer.data_id:3d}       |"
        f"{_eights(source)} |{_eights(target)} |{layer.macs:10d} |"
    )


def _eights(dims: Dims) -> str:
    return " ".join(f"{d:8d}" for d in dims)


def metadata(subgraphs: list[Compiled], total: int) -> str:
    lines = [f"numGraphNodes={total}"]
    for index, one in enumerate(subgraphs):
        lowered = one.lowered
        lines += [
            f"{index}:subGraphName={one.subgraph}",
            f"{index}:numInputs={len(lowered.inputs)}",
            f"{index}:numOutputs={len(lowered.outputs)}",
            *(f"{index}:inputIdx={i}" for i in range(len(lowered.inputs))),
            f"{index}:inDataNames={','.join(lowered.inputs)}",
            f"{index}:outDataNames={','.join(lowered.outputs)}",
        ]
    return "\n".join(lines) + "\n"


def descriptor(compiled: Compiled) -> io_descriptor.IoDescriptor:
    """The graph's inputs and outputs: float32, as the data-convert layers take and give them."""
    by_name = {x.name: x for x in compiled.layers if not x.is_sink}
    lowered = compiled.lowered
    inputs = [by_name[name] for name in lowered.inputs]
    outputs = [by_name[name] for name in lowered.outputs]
    dims = {name: six_dims(lowered.shapes[name]) for name in (*lowered.inputs, *lowered.outputs)}
    return io_descriptor.IoDescriptor(
        inputs=tuple(
            io_descriptor.IoInput(
                x.name,
                x.data_id,
                dims[x.name],
                "float32",
                1.0,
                0,
                (0,) * 5,
                prod(dims[x.name][4:]),
                prod(x.shape),
                int(x.name in lowered.inner),
                resize=(dims[x.name][5], dims[x.name][4]),
            )
            for x in inputs
        ),
        outputs=tuple(
            io_descriptor.IoOutput(
                *(x.name, x.data_id, dims[x.name], "float32", 1.0, 0, (0, 0, 0, 0, 0), prod(dims[x.name][4:])),
                *(prod(x.shape), int(x.name in lowered.inner)),
                valid_dims=len(x.shape),
            )
            for x in outputs
        ),
    )


def quant_proto(compiled: Compiled) -> str:
    """The quantisation proto, in protobuf's text format."""
    per_channel = compiled.options.quantization_scale_type == 4
    symmetric = all(layer.quant.zero_point == 0 for layer in compiled.layers)
    lines = [
        f"num_layers: {len(compiled.layers)}",
        f"quant_type: {'SYMMETRIC' if symmetric else 'ASYMMETRIC'}",
        f"calib_type: {'PERCHANNEL' if per_channel else 'PERTENSOR'}",
    ]
    for layer in compiled.layers:
        lines += [
            "layers {",
            f'  layer_name: "{layer.name}"',
            f'  layer_type: "{layer.kind}"',
            f"  bit_depth: {4 if layer.quant.is_float and not layer.is_sink else layer.quant.dtype.itemsize}",
            *_proto_output(layer),
            *(_proto_weights(compiled.weights[layer.name]) if layer.name in compiled.weights else ()),
            "}",
        ]
    return "\n".join(lines) + "\n"


def _proto_output(layer: TwinLayer) -> list[str]:
    quant = Quant(UINT8) if layer.is_sink else layer.quant
    return _block("outputs", layer.low, layer.high, 1, quant.element_type, (quant.scale,), quant.zero_point)


def _proto_weights(weights: Weights) -> list[str]:
    element = INT8 if weights.bits == 8 else INT16
    scales = tuple(float(s) for s in np.atleast_1d(weights.scale))
    lines = _block("weights", weights.low, weights.high, len(scales), element, scales, 0)
    if weights.bias is not None:
        low, high = float(weights.bias.min()), float(weights.bias.max())
        bias_scales = tuple(float(s) for s in np.atleast_1d(weights.bias_scale))
        block = _block("bias", low, high, weights.bias.size, 0, bias_scales, 0)
        lines += [*block[:-1], *(f"    value: {float(v):.17g}" for v in weights.bias.ravel()), block[-1]]
    return lines


def _block(
    name: str, low: float, high: float, size: int, element: int, scales: tuple[float, ...], zero: int
) -> list[str]:
    return [
        f"  {name} {{",
        f"    min: {low:.9g}",
        f"    max: {high:.9g}",
        f"    size: {size}",
        f"    element_type: {element}",
        *(f"    scale: {scale:.17g}" for scale in scales),
        *(f"    zero_point: {zero}" for _ in scales),
        "  }",
    ]


def compile_log(subgraphs: list[Compiled], total: int, warnings: tuple[str, ...]) -> str:
    """Versions, options, warnings, in the words of TIDL's own log."""
    compiled = subgraphs[0]
    nodes = sum(len(one.nodes) for one in subgraphs)
    options = compiled.options
    return "\n".join(
        [
            "========================= [Model Compilation Started] =========================",
            "",
            "Compiled by Tidegauge's virtual board (a fixed-point twin), not by TI's tools.",
            "",
            "============================== [Version Summary] ==============================",
            "-" * 79,
            f"|{'TIDL Tools Version':^38}|{'11_01_06_00':^38}|",
            "-" * 79,
            f"|{'C7x Firmware Version':^38}|{'11_01_06_00':^38}|",
            "-" * 79,
            f"|{'Model Opset Version':^38}|{compiled.lowered.opset:^38}|",
            "-" * 79,
            "",
            f"model : {compiled.model}",
            f"tensor_bits : {options.tensor_bits}",
            f"advanced_options:quantization_scale_type : {options.quantization_scale_type}",
            "advanced_options:output_feature_16bit_names_list : " + ",".join(options.output_feature_16bit_names_list),
            "advanced_options:params_16bit_names_list : " + ",".join(options.params_16bit_names_list),
            f"advanced_options:calibration_frames : {options.calibration_frames}",
            f"advanced_options:calibration_iterations : {options.calibration_iterations}",
            f"accuracy_level : {options.accuracy_level}",
            "deny_list:layer_name : " + ",".join(options.deny_list_layer_name),
            "",
            "------------------------- Subgraph Information Summary -------------------------",
            "-" * 79,
            f"|{'Core':^25}|{'No. of Nodes':^25}|{'Number of Subgraphs':^25}|",
            "-" * 79,
            f"| C7x                     |{nodes:>24} |{len(subgraphs):>24} |",
            f"| CPU                     |{total - nodes:>24} |{'x':>24} |",
            "-" * 79,
            *warnings,
            "======================== [Model Compilation Completed] ========================",
            "",
        ]
    )


def _tooltips(compiled: Compiled) -> dict[int, list[str]]:
    """The lines of each layer's tooltip between its heading and its outputs."""
    regions = {compiled.names[region.name]: region for region in compiled.lowered.regions}
    lines: dict[int, list[str]] = {}
    for layer in compiled.layers:
        weights = compiled.weights.get(layer.name)
        bits = weights.bits if weights else (32 if layer.kind == "TIDL_DataConvertLayer" else layer.quant.bits)
        text = [
            f"weightsElementSizeInBits={bits}",
            "multiCoreMode=TIDL_NOT_MULTI_CORE",
            "strideOffsetMethod=TIDL_StrideOffsetTopLeft",
        ]
        if layer.kind == "TIDL_DataConvertLayer":
            way = "OUTPUT" if layer.name in compiled.lowered.outputs else "INPUT"
            other = "NHWC" if layer.name.removesuffix("_netFormat") in compiled.lowered.inner else "NCHW"
            ins, outs = ("NCHW", other) if way == "OUTPUT" else (other, "NCHW")
            text += [f"dataConvertType=TIDL_DC_TYPE_{way}", f"inLayout=TIDL_LT_{ins}", f"outLayout=TIDL_LT_{outs}"]
        region = regions.get(layer.name) if not layer.is_sink else None
        if region is not None:
            text += _attributes(region, weights)
        lines[layer.layer_id] = [*text, *_activation(region.activation if region else None)]
    return lines


def _attributes(region: Region, weights: Weights | None) -> list[str]:
    node, lines = region.node, []
    if node.op_type == "Conv":
        kernel = region.consts[node.input[1]].shape
        groups = attribute(node, "group", 1)
        pairs = {"stride": "strides", "dilation": "dilations"}
        spatial = [f"kernelH/W=[{','.join(map(str, kernel[2:]))}]"]
        for short, name in pairs.items():
            spatial.append(f"{short}H/W=[{','.join(map(str, attribute(node, name, [1] * (len(kernel) - 2))))}]")
        pads = attribute(node, "pads", [0] * (2 * (len(kernel) - 2)))[: len(kernel) - 2]
        spatial.insert(2, f"padH/W=[{','.join(map(str, pads))}]")
        counts = f"numInChannels={kernel[1] * groups} numOutChannels={kernel[0]} numGroups={groups}"
        lines = [f"convolutionType=0 {counts}", " ".join(spatial)]
    elif region.kind == "TIDL_EltWiseLayer":
        word = {"Add": "Sum", "Sub": "Sub", "Mul": "Product"}[node.op_type]
        lines = [f"numChannels=0 eltWiseType=TIDL_EltWise{word} numInData=0"]
    if weights is not None:
        scale, bias = float(np.max(weights.scale)), float(np.max(weights.bias_scale))
        lines.append(f"weightScale={scale:f} biasScale={bias:f}")
    return lines


def _activation(activation: Activation | None) -> list[str]:
    kind, slope, low, high = "NoAct", 0.0, 0.0, 0.0
    if activation is not None:
        kind = {"relu": "RelU", "clip": "Clip", "leaky": "PRelU"}[activation.kind]
        slope = activation.slope
        if activation.kind == "clip":
            low, high = activation.low, activation.high
    return [
        "actParams:",
        f"   actType=TIDL_{kind}",
        f"   slopeScale={slope:f} clipMin/Max=({low:f},{high:f})",
    ]
