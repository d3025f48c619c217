"""Whether a wrong tensor is the one of the frame before: a buffer that was not written, or read too early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.layers import Evaluation, Layer
from tidegauge.compare.reference import Recorded, Reference
from tidegauge.compare.residual import Cause, Evidence
from tidegauge.compare.traces import DeviceTensor

Array = NDArray[Any]

#: Other pictures explain less by chance, since two frames of one scene resemble each other.
_PLAIN = 0.9


@dataclass(frozen=True)
class Before:
    """The frame before: its input tensors under the model's names, and its traces by sub-graph and data id."""

    inputs: Mapping[str, Array]
    tensors: Mapping[tuple[str, int], DeviceTensor]


def find_stale(work: Evaluation, layer: Layer, case: Evidence, before: Before | None, found: Cause) -> Cause:
    """The cause "stale frame" where it explains more than `found`; else `found`."""
    if before is None or found.name in ("non_finite", "all_zero", "constant"):
        return found
    needed = max(_PLAIN, found.explained or 0.0)
    tries = (
        (_right_before(work, layer, before), "the values are the right ones of the frame before"),
        (_held_before(layer, before), "the values are those that it had in the frame before"),
    )
    for value, words in tries:
        if value is None or value.size != case.local.size or not np.isfinite(value).all():
            continue
        explained = case.explained(case.clipped(value.reshape(case.local.shape).astype(np.float32, copy=False)))
        if explained >= needed:
            return Cause("stale_frame", explained, words)
    return found


def _right_before(work: Evaluation, layer: Layer, before: Before) -> Array | None:
    """What the layer should have put out in the frame before, given what it read then; None where that is not known."""
    if layer.twin in before.inputs:
        return before.inputs[layer.twin]
    now = work.reference
    part = now.region(layer.twin)
    if part is None or any(name not in before.inputs for name in part.reads_inputs):
        return None
    device = {}
    for name in part.reads_cut:
        recorded = _recorded(work.by_twin[name], before)
        if recorded is None:
            return None
        device[name] = recorded
    then = Reference(now.model, before.inputs, device, {}, rounding=now.rounding)
    then.cut, then.specs = set(now.cut), dict(now.specs)
    return then.local([layer.twin], layer.scheme)[layer.twin]


def _held_before(layer: Layer, before: Before) -> Array | None:
    recorded = _recorded(layer, before)
    return recorded() if recorded is not None else None


def _recorded(layer: Layer, before: Before) -> Recorded | None:
    """A layer's tensor of the frame before, if its trace can be used as this frame's can."""
    tensor = before.tensors.get((layer.tensor.subgraph, layer.tensor.data_id))
    if tensor is None or layer.encoding is None or tensor.status != "ok" or tensor.dtype != layer.tensor.dtype:
        return None
    if tensor.read is None or tensor.count != layer.tensor.count:
        return None
    return Recorded(tensor.codes, layer.encoding)
