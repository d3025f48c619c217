"""Wrong arithmetic in one layer, for tests and demonstrations. Everything downstream sees it, nothing else changes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np
import onnx

from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard.network import TwinLayer, TwinNetwork, load_artifacts
from tidegauge.virtualboard.twin import Graph

Kind = Literal["gain", "offset", "band", "zero", "saturate", "channel_swap", "nan"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_DEFAULT: dict[str, float] = {
    "gain": 1.5,
    "offset": 0.1,
    "band": 0.5,
    "zero": 0.0,
    "saturate": 0.05,
    "channel_swap": 1.0,
    "nan": 8.0,
}
BAND = (0.40, 0.55)
MIN_BAND_HEIGHT = 8


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault of one layer's output. `amount` (None: the kind's default) means, for each kind:

    gain: values times amount (1.5). offset: plus amount times the calibrated range (0.1). band: rows from 40 % to
    55 % of the height plus amount times the range (0.5). zero: all values 0. saturate: whatever exceeds amount times
    the range becomes the top code (0.05). channel_swap: channels rotated by amount (1). nan: amount elements (8),
    spread evenly, are not a number; float layers only.
    """

    layer: str
    kind: Kind
    amount: float | None = None

    @property
    def strength(self) -> float:
        return _DEFAULT[self.kind] if self.amount is None else self.amount


def parse(text: str) -> Fault:
    """`layer:kind[:amount]`; the layer's name may itself contain colons. Raises `TidegaugeError`."""
    head, _, tail = text.rpartition(":")
    layer, kind, amount = head, tail, None
    if kind not in KINDS:
        layer, _, kind = head.rpartition(":")
        try:
            amount = float(tail)
        except ValueError:
            kind = ""
    for known in KINDS:
        if kind == known and layer:
            return Fault(layer, known, amount)
    raise TidegaugeError(f"the fault {text!r} is not of the form layer:kind[:amount]", f"kinds are {', '.join(KINDS)}")


def eligible_layers(artifacts: Path) -> dict[Kind, tuple[str, ...]]:
    """For each kind the layers of compiled artifacts on which it makes a visible difference, in execution order."""
    return eligible(load_artifacts(artifacts))


def eligible(network: TwinNetwork) -> dict[Kind, tuple[str, ...]]:
    """As `eligible_layers`, of a loaded network."""
    return {kind: tuple(t.name for t in network.tensors() if _fits(kind, t) is None) for kind in KINDS}


def _fits(kind: Kind, layer: TwinLayer) -> str | None:
    """Why a fault of this kind can't be seen on the layer; None if it can."""
    if kind == "nan":
        return None if layer.quant.is_float else "its output is integer codes, which can't be NaN"
    if not layer.varies and kind not in ("offset", "band"):
        return "its output is constant"
    if kind == "band" and layer.dims[4] < MIN_BAND_HEIGHT:
        return f"its height is {layer.dims[4]}, a band needs {MIN_BAND_HEIGHT} rows"
    if kind == "channel_swap" and not layer.channels_differ:
        return "its channels don't differ"
    return None


def check(network: TwinNetwork, faults: Iterable[Fault]) -> None:
    """Raises `TidegaugeError`, naming the layers that can, for a fault that its layer can't have."""
    seen: set[str] = set()
    for fault in faults:
        layer = network.layer(fault.layer)
        reason = _fits(fault.kind, layer)
        if reason is not None:
            able = ", ".join(eligible(network)[fault.kind]) or "none in this network"
            raise TidegaugeError(
                f"{fault.kind} is impossible on layer {fault.layer}: {reason}", f"layers that can: {able}"
            )
        if fault.layer in seen:
            raise TidegaugeError(f"layer {fault.layer} has two faults", "give a layer one fault")
        if not np.isfinite(fault.strength) or (fault.kind in ("nan", "channel_swap") and fault.strength < 1):
            raise TidegaugeError(
                f"the amount {fault.strength} of {fault.kind} on {fault.layer}", "give a usable number"
            )
        seen.add(fault.layer)


def insert(model: onnx.ModelProto, network: TwinNetwork, faults: Iterable[Fault]) -> None:
    """Change the twin in place: after each faulty layer's healthy output comes its fault."""
    faults = tuple(faults)
    check(network, faults)
    for fault in faults:
        _insert(model, network.layer(fault.layer), fault)


def _insert(model: onnx.ModelProto, layer: TwinLayer, fault: Fault) -> None:
    healthy = f"{layer.name}::healthy"
    position = next(i for i, node in enumerate(model.graph.node) if layer.name in node.output)
    producer = model.graph.node[position]
    producer.output[list(producer.output).index(layer.name)] = healthy
    graph = Graph({})
    prefix = f"{layer.name}::fault"
    quant = layer.quant
    value = healthy if quant.is_float else graph.dequantise(healthy, quant, 1.0 / quant.scale, f"{prefix}::in")
    value = _apply(graph, value, layer, fault, prefix)
    if quant.is_float:
        graph.add("Identity", [value], layer.name)
    else:
        graph.quantise(value, quant, np.asarray(1.0 / quant.scale, np.float32), f"{prefix}::out")
        graph.add("Identity", [f"{prefix}::out"], layer.name)
    model.graph.initializer.extend(graph.initializers.values())
    following = list(model.graph.node)[position + 1 :]
    del model.graph.node[position + 1 :]
    model.graph.node.extend([*graph.nodes, *following])


def _apply(graph: Graph, value: str, layer: TwinLayer, fault: Fault, prefix: str) -> str:
    amount, span = fault.strength, _span(layer)
    if fault.kind in ("gain", "zero"):
        factor = amount if fault.kind == "gain" else 0.0
        return graph.add("Mul", [value, graph.const(f"{prefix}::by", np.float32(factor))], prefix)
    if fault.kind == "offset":
        return graph.add("Add", [value, graph.const(f"{prefix}::by", np.float32(amount * span))], prefix)
    if fault.kind == "band":
        return graph.add("Add", [value, graph.const(f"{prefix}::by", _band(layer, amount * span))], prefix)
    if fault.kind == "saturate":
        top = layer.high if layer.quant.is_float else layer.quant.value_range[1]
        bound = graph.const(f"{prefix}::bound", np.float32(min(layer.low, 0.0) + amount * span))
        above = graph.add("Greater", [value, bound], f"{prefix}::above")
        return graph.add("Where", [above, graph.const(f"{prefix}::top", np.float32(top)), value], prefix)
    if fault.kind == "channel_swap":
        axis = len(layer.shape) - 3
        order = np.roll(np.arange(layer.shape[axis]), int(amount)).astype(np.int64)
        return graph.add("Gather", [value, graph.const(f"{prefix}::order", order)], prefix, axis=axis)
    mask = np.zeros(layer.shape, np.bool_)
    mask.ravel()[np.linspace(0, mask.size - 1, min(int(amount), mask.size)).astype(np.int64)] = True
    where = graph.const(f"{prefix}::where", mask)
    return graph.add("Where", [where, graph.const(f"{prefix}::nan", np.float32(np.nan)), value], prefix)


def _span(layer: TwinLayer) -> float:
    span = max(layer.high, 0.0) - min(layer.low, 0.0)
    return span if span > 0 else 1.0


def _band(layer: TwinLayer, by: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    height = layer.dims[4]
    rows = np.zeros((height, 1), np.float32)
    rows[int(BAND[0] * height) : max(int(BAND[1] * height), int(BAND[0] * height) + 1)] = by
    return rows
