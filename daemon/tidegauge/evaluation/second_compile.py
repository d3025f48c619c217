"""Another toolchain's compile of a model, as tables and traces: other data ids and order, other fusing, other names.

The layers and their tables are the virtual board's; what is shuffled is drawn. Which float tensor each device tensor is
remains known, which is what a matching is measured against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tidegauge.compare.compiled import Subgraph, WeightScales, read_tempdir
from tidegauge.compare.traces import DeviceTensor, device_tensors
from tidegauge.virtualboard import artifacts
from tidegauge.virtualboard.calibration import float_session
from tidegauge.virtualboard.lowering import Lowered, Region, fold_constants, lower
from tidegauge.virtualboard.network import FLOAT32, INT8, UINT8, Quant, TwinLayer, six_dims
from tidegauge.virtualboard.svg import document
from tidegauge.virtualboard.tracing import content, file_name, kinds
from tidegauge.virtualboard.twin import net_format, original

Array = NDArray[Any]
#: `kept`: the model's names; `prefix`: another prefix before each; `numbers`: numbers in no order.
Naming = Literal["kept", "prefix", "numbers"]


@dataclass
class SecondCompile:
    """Tables and traces of one compile. `truth`: the float tensor (with TIDL's aliases) of each device tensor."""

    subgraph: Subgraph
    tensors: list[DeviceTensor]
    truth: dict[int, str]


@dataclass(frozen=True)
class _Piece:
    """One layer to be: the float tensor it ends at, with aliases, what it reads (with aliases), and its kind."""

    tensor: str
    alias: str
    inputs: tuple[str, ...]
    kind: str
    main: str


def make(
    model: Path,
    folder: Path,
    random: np.random.Generator,
    *,
    naming: Naming,
    split: float,
    feeds: Mapping[str, Array] | None = None,
    weights: bool = False,
    faulty: float = 0.0,
) -> SecondCompile:
    """Write a tempDir to `folder`, and traces of the run on `feeds` where they are given. `split`: the share of fused
    operators that this compile does not fuse. `weights`: whether the scales of the weights are known. `faulty`: the
    share of tensors whose trace is noise."""
    proto = onnx.load(model)
    lowered = lower(proto)
    pieces = _pieces(lowered, random, split)
    ordered = _shuffled(pieces, random)
    ids = dict(zip([p.alias for p in ordered], random.permutation(len(ordered)).tolist(), strict=True))
    names = _names([p.alias for p in ordered], naming, random)
    values = _run(proto, {p.tensor for p in pieces}, feeds) if feeds is not None else {}
    for name in sorted(values):
        if random.random() < faulty:
            values[name] = np.abs(random.normal(0, 1, values[name].shape)).astype(np.float32)
    layers = _layers(ordered, ids, names, lowered, values)
    temp = folder / "tempDir"
    temp.mkdir(parents=True)
    stem = "subgraph_0_tidl_net.bin"
    (temp / f"{stem}.layer_info.txt").write_text(artifacts.layer_info(layers))
    (temp / f"{stem}_netLog.txt").write_text(artifacts.net_log(layers))
    (temp / f"{stem}.svg").write_text(document(stem, {layer.layer_id: [] for layer in layers}, layers))
    subgraph = read_tempdir(temp)["subgraph_0"]
    if weights:
        subgraph.weights = _weights(proto, ordered, names)
    truth = {ids[p.alias]: p.alias for p in ordered}
    return SecondCompile(subgraph, _traces(folder, subgraph, layers, ordered, values), truth)


def _pieces(lowered: Lowered, random: np.random.Generator, split: float) -> list[_Piece]:
    entry = {name: net_format(name) for name in lowered.inputs}
    leave = {name: original(name) for name in lowered.outputs}

    def alias(name: str) -> str:
        return leave.get(name, entry.get(name, name))

    found = [_Piece(name, name, (), "TIDL_DataLayer", name) for name in lowered.inputs]
    found += [_Piece(n, entry[n], (n,), "TIDL_DataConvertLayer", n) for n in lowered.inputs]
    for region in lowered.regions:
        found += _cut(region, alias, random, split)
    found += [_Piece(n, n, (leave[n],), "TIDL_DataConvertLayer", n) for n in lowered.outputs]
    return found


def _cut(region: Region, alias: Any, random: np.random.Generator, split: float) -> list[_Piece]:
    """The region's layer, and a layer for each operator that is not fused into it."""
    ends = [i for i in range(len(region.fused) - 1) if random.random() < split] + [len(region.fused) - 1]
    found, reads, kind = [], tuple(alias(name) for name in region.inputs), region.kind
    for end in ends:
        name = region.fused[end]
        found.append(_Piece(name, alias(name), reads, kind, region.fused[0]))
        reads, kind = (alias(name),), "TIDL_BatchNormLayer"
    return found


def _shuffled(pieces: list[_Piece], random: np.random.Generator) -> list[_Piece]:
    """Another order of execution: any that respects the edges."""
    waiting, done, ordered = list(pieces), set[str](), list[_Piece]()
    while waiting:
        ready = [p for p in waiting if all(name in done for name in p.inputs)]
        chosen = ready[int(random.integers(len(ready)))]
        waiting.remove(chosen)
        ordered.append(chosen)
        done.add(chosen.alias)
    return ordered


def _names(aliases: list[str], naming: Naming, random: np.random.Generator) -> dict[str, str]:
    if naming == "kept":
        return {name: name for name in aliases}
    if naming == "prefix":
        return {name: f"/export/body/{name.removeprefix('/')}" for name in aliases}
    numbers = random.permutation(len(aliases))
    return {name: str(number) for name, number in zip(aliases, numbers, strict=True)}


def _run(proto: Any, wanted: set[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
    names = sorted(wanted - set(feeds))
    session = float_session(proto, names)
    return dict(feeds) | dict(zip(names, session.run(names, dict(feeds)), strict=True))


def _layers(
    ordered: list[_Piece],
    ids: Mapping[str, int],
    names: Mapping[str, str],
    lowered: Lowered,
    values: Mapping[str, Array],
) -> tuple[TwinLayer, ...]:
    layers = []
    shapes = {**lowered.shapes, **lowered.inputs, **lowered.outputs}
    for place, piece in enumerate(ordered):
        floats = piece.kind == "TIDL_DataLayer" or piece.alias in lowered.outputs
        quant, low, high = _quant(values.get(piece.tensor), floats)
        shape = shapes[piece.tensor]
        inputs = tuple(ids[name] for name in piece.inputs)
        layers.append(
            TwinLayer(
                layer_id=place,
                data_id=ids[piece.alias],
                kind=piece.kind,
                name=names[piece.alias],
                inputs=inputs,
                shape=shape,
                dims=six_dims(shape),
                quant=quant,
                low=low,
                high=high,
                macs=prod(shape),
            )
        )
    none = (0, 0, 0, 0, 0, 0)
    for name in lowered.outputs:
        end = Quant(FLOAT32)
        layers.append(TwinLayer(len(layers), 0, "TIDL_DataLayer", names[name], (ids[name],), (), none, end, 0.0, 0.0))
    return tuple(layers)


def _quant(value: Array | None, floats: bool) -> tuple[Quant, float, float]:
    if value is None:
        return Quant(FLOAT32) if floats else Quant(INT8, 32.0), 0.0, 1.0
    low, high = float(value.min()), float(value.max())
    if floats:
        return Quant(FLOAT32), low, high
    peak = max(abs(low), abs(high), 1e-6)
    return (Quant(UINT8, 255 / peak) if low >= 0 else Quant(INT8, 127 / peak)), low, high


def _weights(proto: Any, ordered: list[_Piece], names: Mapping[str, str]) -> dict[str, WeightScales]:
    """One scale a layer, of its first operator's weights, as a compile that fuses no batch norm states them."""
    constants = {item.name: numpy_helper.to_array(item) for item in fold_constants(proto).graph.initializer}
    producer = {name: node for node in proto.graph.node for name in node.output}
    found = {}
    for piece in ordered:
        node = producer.get(piece.tensor if piece.kind == "TIDL_BatchNormLayer" else piece.main)
        weight = constants.get(node.input[1]) if node is not None and len(node.input) > 1 else None
        if weight is not None and weight.ndim > 1 and piece.kind.endswith(("ConvolutionLayer", "InnerProductLayer")):
            found[names[piece.alias]] = WeightScales((127 / max(float(np.abs(weight).max()), 1e-9),), 8)
    return found


def _traces(
    folder: Path,
    subgraph: Subgraph,
    layers: tuple[TwinLayer, ...],
    ordered: list[_Piece],
    values: Mapping[str, Array],
) -> list[DeviceTensor]:
    """Device tensors of all layers; with the values of the float run, quantised, where there are values."""
    files: dict[str, bytes] = {}
    for layer, piece in zip(layers, ordered, strict=False):
        if piece.tensor in values:
            value = values[piece.tensor]
            low, high = layer.quant.code_range if not layer.quant.is_float else (0, 0)
            codes = value if layer.quant.is_float else np.clip(np.rint(value * layer.quant.scale), low, high)
            (kind,) = kinds(layer, 1)
            files[file_name(layer, "subgraph_0", kind)] = content(layer, codes.astype(layer.quant.dtype), kind)
    readers = {name: (lambda data=data: data) for name, data in files.items()}
    found, _ = device_tensors({n: len(d) for n, d in files.items()}, readers, {}, {"subgraph_0": subgraph})
    return found
