"""Which codes each tensor gets, and the table of TIDL layers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegauge.virtualboard.calibration import Ranges
from tidegauge.virtualboard.lowering import Lowered
from tidegauge.virtualboard.network import FLOAT, Quant, TwinLayer, six_dims
from tidegauge.virtualboard.operators import keeps_quantisation
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.quantise import activation_quant
from tidegauge.virtualboard.twin import Names, net_format, original

#: Which convolutions are super-tiled, and into how many tiles: the virtual board's own rule, TIDL's isn't public.
MIN_TILED_HEIGHT, TILES = 16, 4


@dataclass(frozen=True)
class Tensors:
    """A lowered sub-graph with its names in TIDL and its ranges."""

    lowered: Lowered
    names: Names
    ranges: Ranges

    def addressable(self) -> dict[str, str]:
        """From the names a person may put into an option's list to the layer that owns the tensor."""
        inputs = self.lowered.inputs
        table = {name: net_format(name) for name in inputs} | {net_format(n): net_format(n) for n in inputs}
        for region in self.lowered.regions:
            table[region.name] = table[self.names[region.name]] = self.names[region.name]
        return table

    def owners(self) -> dict[str, str]:
        """From each quantised layer to the ONNX tensor whose range it has."""
        table = {net_format(name): name for name in self.lowered.inputs}
        return table | {self.names[region.name]: region.name for region in self.lowered.regions}


def choose_quants(tensors: Tensors, options: CompileOptions) -> dict[str, Quant]:
    """The quantisation of every layer's output, from its calibration range and the options."""
    lowered, names, ranges = tensors.lowered, tensors.names, tensors.ranges
    table = tensors.addressable()
    wide = {table[name] for name in options.output_feature_16bit_names_list if name in table}
    quants: dict[str, Quant] = {}

    def choose(tensor: str, layer: str) -> Quant:
        if options.tensor_bits == 32:
            return FLOAT
        bits = 16 if layer in wide else options.tensor_bits
        return activation_quant(ranges.low[tensor], ranges.high[tensor], bits, options.quantization_scale_type)

    for name in lowered.inputs:
        quants[net_format(name)] = choose(name, net_format(name))
    for region in lowered.regions:
        layer = names[region.name]
        quants[layer] = choose(region.name, layer)
    inherit(tensors, quants)
    return quants


def inherit(tensors: Tensors, quants: dict[str, Quant]) -> None:
    """Layers that only select values have the codes of what they read."""
    for region in tensors.lowered.regions:
        if region.activation is None and keeps_quantisation(region.node):
            quants[tensors.names[region.name]] = quants[tensors.names[region.inputs[0]]]


def make_layers(tensors: Tensors, quants: dict[str, Quant], options: CompileOptions) -> tuple[TwinLayer, ...]:
    """The layers in execution order: data, data convert, regions, data convert, output data layers."""
    lowered, names, ranges = tensors.lowered, tensors.names, tensors.ranges
    layers: list[TwinLayer] = []
    ids: dict[str, int] = {}

    def add(
        kind: str,
        name: str,
        tensor: str,
        inputs: tuple[str, ...],
        quant: Quant,
        macs: int = 0,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        shape = lowered.shapes[tensor] if shape is None else shape
        low, high = ranges.low[tensor], ranges.high[tensor]
        large = kind == "TIDL_ConvolutionLayer" and six_dims(shape)[4] >= MIN_TILED_HEIGHT
        ids[name] = len(layers)
        layers.append(
            TwinLayer(
                layer_id=len(layers),
                data_id=len(layers),
                kind=kind,
                name=name,
                inputs=tuple(ids[i] for i in inputs),
                shape=shape,
                dims=six_dims(shape),
                quant=quant,
                low=low,
                high=high,
                macs=macs,
                varies=low < high,
                channels_differ=tensor in ranges.channels_differ,
                tiles=TILES if large and options.high_resolution_optimization else 1,
                nhwc=kind == "TIDL_DataConvertLayer" and name in lowered.inner,
            )
        )

    for name in lowered.inputs:
        add("TIDL_DataLayer", name, name, (), FLOAT)
    for name, shape in lowered.inputs.items():
        layer = net_format(name)
        add("TIDL_DataConvertLayer", layer, name, (name,), quants[layer], int(np.prod(shape)))
    for region in lowered.regions:
        layer = names[region.name]
        add(region.kind, layer, region.name, tuple(names[i] for i in region.inputs), quants[layer], region.macs)
    for name, shape in lowered.outputs.items():
        add("TIDL_DataConvertLayer", name, name, (original(name),), FLOAT, int(np.prod(shape)), shape)
    none = (0, 0, 0, 0, 0, 0)
    for name in lowered.outputs:
        sink = TwinLayer(len(layers), 0, "TIDL_DataLayer", name, (ids[name],), (), none, FLOAT, 0.0, 0.0, varies=False)
        layers.append(sink)
    return tuple(layers)
