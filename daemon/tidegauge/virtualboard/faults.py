"""Wrong arithmetic in one layer, for tests and demonstrations. Everything downstream sees it, nothing else changes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard.network import TwinLayer, TwinNetwork, load_all

Kind = Literal[
    "gain",
    "offset",
    "band",
    "zero",
    "saturate",
    "channel_swap",
    "nan",
    "boundary_column",
    "one_channel",
    "shear",
    "stale",
    "first_frame",
    "rounding",
    "tiny",
    "weights",
    "bias",
    "accumulator",
    "requantise",
    "coarse",
]
#: Every kind; then the kinds that the demo draws from; then the others.
ALL_KINDS: tuple[Kind, ...] = get_args(Kind)
KINDS: tuple[Kind, ...] = ALL_KINDS[:7]
MORE_KINDS: tuple[Kind, ...] = ALL_KINDS[7:]
#: Kinds that change what happens inside a convolution or inner product, before its activation and requantisation.
INSIDE: frozenset[Kind] = frozenset({"weights", "bias", "accumulator", "requantise"})
#: Stands for every layer that can have the fault and has no other.
EVERYWHERE = "*"
_DEFAULT: dict[str, float] = {
    "gain": 1.5,
    "offset": 0.1,
    "band": 0.5,
    "zero": 0.0,
    "saturate": 0.05,
    "channel_swap": 1.0,
    "nan": 8.0,
    "boundary_column": 0.5,
    "one_channel": 0.0,
    "shear": 1.0,
    "stale": 1.0,
    "first_frame": 1.0,
    "rounding": 0.1,
    "tiny": 1.0,
    "weights": 0.5,
    "bias": 2.0,
    "accumulator": 0.5,
    "requantise": 1.0,
    "coarse": 4.0,
}
_COUNTS: frozenset[Kind] = frozenset({"nan", "channel_swap", "shear", "tiny", "coarse"})
#: Kinds that act on rows, columns or channels.
_PLACED: frozenset[Kind] = frozenset({"band", "channel_swap", "boundary_column", "one_channel", "shear"})
MATRIX_LAYERS = ("TIDL_ConvolutionLayer", "TIDL_InnerProductLayer")
MIN_BAND_HEIGHT = 8


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault of one layer, or of every layer that can have it (`layer` "*").

    `amount` (None: the kind's default) means, for each kind:

    gain: values times amount (1.5). offset: plus amount times the calibrated range (0.1). band: rows from 40 % to
    55 % of the height plus amount times the range (0.5). zero: all values 0. saturate: whatever exceeds amount times
    the range becomes the top code (0.05). channel_swap: channels rotated by amount (1). nan: amount elements (8),
    spread evenly, are not a number; float layers only. boundary_column: the last column plus amount times the range
    (0.5). one_channel: channel number amount (0) is one code off, up and down as on a chess-board. shear: the pitch
    of a row is amount elements (1) too long, so that each row starts further right. stale: the values of the run
    before. first_frame: the session's first run gives random values. rounding: the share amount (0.1) of all elements
    is one code off, up or down. tiny: amount elements (1) are one code off. coarse: the lowest amount bits (4) of the
    codes are lost, as where an accumulator is shifted too early. A code of a float layer is 1/255 of its range.

    Inside convolutions and inner products: weights: times amount (0.5). bias: times amount (2). accumulator: sums
    beyond amount times the largest calibrated one (0.5) wrap round. requantise: the result is shifted amount bits (1)
    too far left.
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
    if kind not in ALL_KINDS:
        layer, _, kind = head.rpartition(":")
        try:
            amount = float(tail)
        except ValueError:
            kind = ""
    for known in ALL_KINDS:
        if kind == known and layer:
            return Fault(layer, known, amount)
    raise TidegaugeError(
        f"the fault {text!r} is not of the form layer:kind[:amount]", f"kinds are {', '.join(ALL_KINDS)}"
    )


def eligible_layers(artifacts: Path) -> dict[Kind, tuple[str, ...]]:
    """For each kind the layers of compiled artifacts on which it makes a visible difference, in execution order."""
    able: dict[Kind, tuple[str, ...]] = dict.fromkeys(ALL_KINDS, ())
    for network in load_all(artifacts).values():
        able = {kind: (*names, *eligible(network)[kind]) for kind, names in able.items()}
    return able


def eligible(network: TwinNetwork) -> dict[Kind, tuple[str, ...]]:
    """As `eligible_layers`, of a loaded network."""
    return {kind: tuple(t.name for t in network.tensors() if _reason(network, kind, t) is None) for kind in ALL_KINDS}


def _reason(network: TwinNetwork, kind: Kind, layer: TwinLayer) -> str | None:
    """Why a fault of this kind can't be seen on the layer; None if it can."""
    if kind == "nan":
        return None if layer.quant.is_float else "its output is integer codes, which can't be NaN"
    if kind in INSIDE:
        return _inside(network, kind, layer)
    if not layer.varies and kind not in ("offset", "band", "boundary_column", "rounding", "tiny", "one_channel"):
        return "its output is constant"
    return _shape_reason(kind, layer)


def _shape_reason(kind: Kind, layer: TwinLayer) -> str | None:
    _, _, _, _, height, width = layer.dims
    if layer.nhwc and kind in _PLACED:
        return "its layout is NHWC: give the fault to the layer before it"
    if kind == "band" and height < MIN_BAND_HEIGHT:
        return f"its height is {height}, a band needs {MIN_BAND_HEIGHT} rows"
    if kind == "channel_swap" and not layer.channels_differ:
        return "its channels don't differ"
    if kind in ("boundary_column", "shear", "one_channel") and len(layer.shape) < 3:
        return "it has no rows and columns"
    if kind == "boundary_column" and width < 2:
        return "it has a single column"
    if kind == "shear" and (height < 2 or width < 2):
        return f"a picture of {width}x{height} has no pitch to get wrong"
    return None


def _inside(network: TwinNetwork, kind: Kind, layer: TwinLayer) -> str | None:
    if layer.kind not in MATRIX_LAYERS or layer.name not in weighted(network.twin):
        return "it is no convolution and no inner product with weights"
    if kind == "bias" and layer.name not in biased(network.twin):
        return "it has no bias that makes a difference of one code"
    if kind == "requantise" and layer.quant.is_float:
        return "its output is float, which is never requantised"
    return None if layer.varies else "its output is constant"


@lru_cache(maxsize=4)
def weighted(twin: bytes) -> frozenset[str]:
    """The layers of a twin with constant weights: an inner product of two activations has none."""
    names = (item.name for item in onnx.ModelProto.FromString(twin).graph.initializer)
    return frozenset(name.removesuffix("::1") for name in names if name.endswith("::1"))


@lru_cache(maxsize=4)
def biased(twin: bytes) -> frozenset[str]:
    """The layers of a twin whose bias is worth a code of their output or more (float layers: isn't zero)."""
    values = {i.name: i for i in onnx.ModelProto.FromString(twin).graph.initializer}
    found = set()
    for name, proto in values.items():
        layer = name.removesuffix("::2")
        if layer == name:
            continue
        bias = np.abs(numpy_helper.to_array(proto))
        step = numpy_helper.to_array(values[f"{layer}::step"]) if f"{layer}::step" in values else 1e-6
        if np.any(bias >= step):
            found.add(layer)
    return frozenset(found)


def expand(network: TwinNetwork, faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """The faults of single layers: "*" becomes every layer that can have the fault and isn't named otherwise."""
    faults = tuple(faults)
    named = {fault.layer for fault in faults}
    single: list[Fault] = []
    for fault in faults:
        if fault.layer == EVERYWHERE:
            names = [name for name in eligible(network)[fault.kind] if name not in named]
            single += [Fault(name, fault.kind, fault.amount) for name in names]
        else:
            single.append(fault)
    return tuple(single)


def of_network(network: TwinNetwork, faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """The faults that concern this one of several networks."""
    names = {EVERYWHERE, *(layer.name for layer in network.tensors())}
    return tuple(fault for fault in faults if fault.layer in names)


def check_all(networks: Iterable[TwinNetwork], faults: Iterable[Fault]) -> None:
    """As `check`, for a model of several sub-graphs: each fault belongs to one of them."""
    networks, faults = tuple(networks), tuple(faults)
    known = {fault for network in networks for fault in of_network(network, faults)}
    for fault in faults:
        if fault not in known:
            names = ", ".join(layer.name for network in networks for layer in network.tensors())
            raise TidegaugeError(f"the network has no layer {fault.layer!r}", f"use one of {names}")
    for network in networks:
        check(network, of_network(network, faults))


def check(network: TwinNetwork, faults: Iterable[Fault]) -> None:
    """Raises `TidegaugeError`, naming the layers that can, for a fault that its layer can't have."""
    seen: set[str] = set()
    for fault in expand(network, faults):
        layer = network.layer(fault.layer)
        reason = _reason(network, fault.kind, layer)
        if reason is not None:
            able = ", ".join(eligible(network)[fault.kind]) or "none in this network"
            raise TidegaugeError(
                f"{fault.kind} is impossible on layer {fault.layer}: {reason}", f"layers that can: {able}"
            )
        if fault.layer in seen:
            raise TidegaugeError(f"layer {fault.layer} has two faults", "give a layer one fault")
        if not _usable(fault, layer):
            raise TidegaugeError(
                f"the amount {fault.strength} of {fault.kind} on {fault.layer}", "give a usable number"
            )
        seen.add(fault.layer)


def _usable(fault: Fault, layer: TwinLayer) -> bool:
    amount = fault.strength
    if not np.isfinite(amount):
        return False
    if fault.kind in _COUNTS:
        return amount >= 1
    if fault.kind == "one_channel":
        return 0 <= amount < layer.shape[-3]
    if fault.kind in ("rounding", "accumulator"):
        return 0 < amount <= 1
    return True
