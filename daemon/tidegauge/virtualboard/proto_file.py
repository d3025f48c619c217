"""The file of `advanced_options:quant_params_proto_path`: written where there is none, else read.

Source: edgeai-tidl-tools docs/quantization_proto.md: one sub-graph that holds the whole model, symmetric scales.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tidegauge.errors import TidegaugeError
from tidegauge.files import write_durably
from tidegauge.tidl import quant_proto
from tidegauge.tidl.errors import FormatError
from tidegauge.tidl.quant_proto import QuantLayer
from tidegauge.virtualboard.artifacts import Compiled
from tidegauge.virtualboard.artifacts import quant_proto as text_of
from tidegauge.virtualboard.layers import Tensors, inherit
from tidegauge.virtualboard.network import DTYPES, FLOAT32, Quant
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.quantise import Float

_OPTION = "advanced_options:quant_params_proto_path"
_CURE = "correct the file, or remove it to have it written"


def apply(
    options: CompileOptions, tensors: Tensors, quants: dict[str, Quant], alone: bool
) -> tuple[dict[str, Float], tuple[str, ...]]:
    """Put the file's activations into `quants` and its ranges into `tensors`. Returns its weight scales by layer, and
    warnings. Raises `TidegaugeError` where the file is there but can't be used."""
    if not options.quant_params_proto_path:
        return {}, ()
    if not alone or options.tensor_bits == 32:
        return {}, (f"{_OPTION} is ignored: it needs one fixed-point sub-graph that holds the whole model",)
    path = Path(options.quant_params_proto_path)
    if not path.exists():
        return {}, ()
    layers = _read(path)
    owners = tensors.owners()
    missing = [name for name in quants if name not in layers]
    for name in quants.keys() & layers.keys():
        _take(path, layers[name], tensors, owners[name], quants)
    inherit(tensors, quants)
    given = {
        name: np.asarray(scales[0] if len(scales) == 1 else scales, np.float32)
        for name, layer in layers.items()
        if name in quants and layer.weights
        for scales in [[float(scale) for scale in layer.weights[0].scales]]
        if scales
    }
    return given, tuple(f"{path} says nothing of layer {name}: its calibrated range is used" for name in missing)


def _read(path: Path) -> dict[str, QuantLayer]:
    try:
        parsed = quant_proto.parse(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise TidegaugeError(f"{path} ({_OPTION}) can't be read ({error})", _CURE) from error
    except FormatError as error:
        raise TidegaugeError(f"{path} ({_OPTION}): {error.problem}", _CURE) from error
    layers: dict[str, QuantLayer] = {}
    for layer in parsed:
        layers.setdefault(layer.name, layer)  # an output's data layer repeats the name before it
    return layers


def _take(path: Path, layer: QuantLayer, tensors: Tensors, tensor: str, quants: dict[str, Quant]) -> None:
    if len(layer.outputs) != 1 or len(layer.outputs[0].scales) != 1:
        raise TidegaugeError(f"{path} ({_OPTION}): layer {layer.name} has not one output with one scale", _CURE)
    out = layer.outputs[0]
    scale = float(out.scales[0])
    if out.element not in DTYPES or out.element == FLOAT32 or not 0 < scale < float("inf"):
        raise TidegaugeError(f"{path} ({_OPTION}): layer {layer.name} has no usable element type and scale", _CURE)
    quants[layer.name] = Quant(out.element, scale, out.zero_points[0] if out.zero_points else 0)
    if out.minimum is not None and out.maximum is not None:
        tensors.ranges.low[tensor], tensors.ranges.high[tensor] = float(out.minimum), float(out.maximum)


def keep(options: CompileOptions, compiled: list[Compiled]) -> None:
    """Write the file where the option names one that isn't there."""
    if not options.quant_params_proto_path or len(compiled) != 1 or options.tensor_bits == 32:
        return
    path = Path(options.quant_params_proto_path)
    if not path.exists() and compiled[0].alone:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, text_of(compiled[0]).encode())
