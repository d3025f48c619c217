"""The healthy noise of each layer of one model on one kind of board, as a file: it replaces the default factor.

A real board's approximations (tables for Sigmoid, 16-bit accumulators of a pooling) may lie above the noise that exact
rounding leaves, or far below the default limit; a healthy run tells which.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tidegauge.compare.types import Comparison, Share
from tidegauge.errors import TidegaugeError

BASELINE_SCHEMA = 1
#: A layer is wrong where its excess is this many times the healthy one, which counts as one at least (plain rounding).
MARGIN = 3.0

Excess = Annotated[float, Meta(ge=0.0)]


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Largest healthy excess by layer over `runs` healthy comparisons of the model with this SHA-256.

    `codes`, `ones`: the largest healthy shares of codes off by more than one, and by one, of layers that have any.
    `beyond`: the largest healthy shares of codes further off than rounding and each of `oracle.TIERS`.
    """

    model_sha256: str
    runs: Annotated[int, Meta(ge=1)]
    layers: dict[str, Excess]
    codes: dict[str, Share] = {}
    ones: dict[str, Share] = {}
    beyond: dict[str, tuple[Share, ...]] = {}
    schema: Annotated[int, Meta(ge=1, le=BASELINE_SCHEMA)] = BASELINE_SCHEMA

    def limit(self, layer: str) -> float | None:
        """The excess above which a layer is wrong; None for a layer that no healthy run had."""
        healthy = self.layers.get(layer)
        return None if healthy is None else MARGIN * max(1.0, healthy)

    def codes_allowed(self, layer: str) -> float:
        """The share of codes off by more than one that is no fault."""
        return min(1.0, MARGIN * self.codes.get(layer, 0.0))

    def ones_allowed(self, layer: str) -> float:
        """The share of codes off by one that is no fault, on top of the default."""
        return min(1.0, MARGIN * self.ones.get(layer, 0.0))


def learn(answer: Comparison, model_sha256: str, before: Baseline | None = None) -> Baseline:
    """The baseline of one more healthy comparison. Raises `TidegaugeError` where it can't be one."""
    if answer.exit_code == 3:
        raise TidegaugeError("too few layers could be compared for a baseline", "capture all layers of a healthy run")
    broken = [layer.name for layer in answer.layers if layer.status == "non_finite"]
    if broken:
        raise TidegaugeError(f"{broken[0]} is not finite, so the run is not healthy", "capture a healthy run")
    if before is not None and before.model_sha256 != model_sha256:
        raise TidegaugeError("the baseline is of another model", "name a new file for this model's baseline")
    layers = dict(before.layers) if before is not None else {}
    codes = dict(before.codes) if before is not None else {}
    ones = dict(before.ones) if before is not None else {}
    beyond = dict(before.beyond) if before is not None else {}
    for layer in answer.layers:
        if layer.name and layer.codes_beyond is not None:
            known = beyond.get(layer.name, (0.0,) * len(layer.codes_beyond))
            beyond[layer.name] = tuple(max(pair) for pair in zip(known, layer.codes_beyond, strict=True))
        if layer.name and layer.codes_off_by_more:
            codes[layer.name] = max(codes.get(layer.name, 0.0), layer.codes_off_by_more)
        if layer.name and layer.codes_off_by_one:
            ones[layer.name] = max(ones.get(layer.name, 0.0), layer.codes_off_by_one)
        if layer.name and layer.excess is not None:
            layers[layer.name] = max(layers.get(layer.name, 0.0), layer.excess)
    runs = (before.runs if before is not None else 0) + 1
    layers, codes, ones = (dict(sorted(table.items())) for table in (layers, codes, ones))
    return Baseline(model_sha256, runs, layers, codes, ones, dict(sorted(beyond.items())))


def baseline_to_json(baseline: Baseline) -> bytes:
    return msgspec.json.format(msgspec.json.encode(baseline), indent=1) + b"\n"


def baseline_from_json(data: bytes, label: str) -> Baseline:
    """Raises `TidegaugeError`."""
    try:
        return msgspec.json.decode(data, type=Baseline)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise TidegaugeError(f"{label} is no baseline ({error})", "make one with --write-baseline") from error
