"""Wrong arithmetic in one layer, for tests and demonstrations. Everything downstream sees it, nothing else changes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np

from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard.network import TwinLayer, TwinNetwork, load_artifacts

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
