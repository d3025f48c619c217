"""What one region's local error alone does to the network's outputs, measured.

The network below the region runs in float twice, once from the device's tensor and once from the local reference;
tensors that don't depend on the region carry the device's values. The difference at the outputs is the region's
effect: TI's rule "ignore it if the next layers recover" in numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.layers import Evaluation, Layer
from tidegauge.compare.statistics import Encoding
from tidegauge.compare.types import Effect

Array = NDArray[Any]

#: An effect this small in moved elements, and below the output's rounding noise, does not reach the output.
MOVED = 1e-3
#: Where the product names no step, a change of less than this part of the output's peak is not seen.
VISIBLE = 255.0


def output_steps(work: Evaluation, product_step: float | None) -> dict[str, float]:
    """One quantisation step of each network output; the product's own step where nothing is quantised there."""
    steps: dict[str, float] = {}
    for name in work.reference.model.outputs:
        encoding = _encoding_of(work, name)
        if encoding is not None and encoding.integer:
            steps[name] = encoding.step
        elif product_step is not None:
            steps[name] = product_step
        else:
            steps[name] = float(np.abs(work.reference.outputs[name]).max(initial=0.0)) / VISIBLE or 1.0
    return steps


def _encoding_of(work: Evaluation, name: str) -> Encoding | None:
    """The quantised tensor nearest to an output: itself, or the one that a data-convert layer reads."""
    layer = work.by_twin.get(name)
    while layer is not None and layer.encoding is not None and not layer.encoding.integer:
        if layer.operators not in (("Identity",), ("Cast",)) or len(layer.reads) != 1:
            return None
        layer = work.by_twin.get(layer.reads[0])
    return layer.encoding if layer is not None else None


def measure_effect(
    work: Evaluation,
    layer: Layer,
    local: Array,
    device_outputs: Mapping[str, Array],
    steps: Mapping[str, float],
    product_step: float | None,
) -> Effect | None:
    """The effect on the output that suffers most; None where the region reaches no output at all."""
    device = work.reference.feed(layer.twin)
    pairs = _runs(work, layer, device, local)
    effects = [
        _effect(name, bad, good, work.reference.outputs[name], device_outputs.get(name), steps[name], product_step)
        for name, (bad, good) in pairs.items()
    ]
    return max(effects, key=lambda e: (e.reaches, e.mse_steps if e.mse_steps is not None else math.inf), default=None)


def _runs(work: Evaluation, layer: Layer, device: Array, local: Array) -> dict[str, tuple[Array, Array]]:
    name = layer.twin
    pairs = {name: (device, local)} if name in work.reference.model.outputs else {}
    found = work.reference.downstream(name, work.by_twin)
    if found is None:
        return pairs
    runner, feeds = found
    spec = work.reference.specs[name]
    bad = runner.run({**feeds, name: device})
    good = runner.run({**feeds, name: local.reshape(spec.shape).astype(spec.dtype, copy=False)})
    return pairs | {output: (bad[output], good[output]) for output in bad}


def _effect(
    name: str,
    bad: Array,
    good: Array,
    reference: Array,
    device: Array | None,
    step: float,
    product_step: float | None,
) -> Effect:
    peak = float(np.abs(reference).max(initial=0.0))
    moved_step = product_step if product_step is not None else max(step, peak / VISIBLE)
    difference = bad.astype(np.float64) - good.astype(np.float64)
    broken = ~np.isfinite(difference)
    if broken.any():
        with np.errstate(invalid="ignore"):
            moved = float((broken | (np.abs(difference) > moved_step)).mean())
        return Effect(name, None, None, None, moved, moved_step, True)
    energy = float(np.sum(difference**2))
    moved = float((np.abs(difference) > moved_step).mean())
    signal = float(np.sum(np.square(good, dtype=np.float64)))
    mse_steps = energy / difference.size / (step**2 / 12.0)
    return Effect(
        output=name,
        share=_share(energy, device, reference),
        sqnr_db=10 * math.log10(signal / energy) if energy > 0 and signal > 0 else None,
        mse_steps=mse_steps,
        moved=moved,
        step=moved_step,
        reaches=mse_steps > 1.0 or moved > MOVED,
    )


def _share(energy: float, device: Array | None, reference: Array) -> float | None:
    if device is None or device.size != reference.size:
        return None
    error = device.reshape(reference.shape).astype(np.float64) - reference
    total = float(np.sum(error**2))
    return energy / total if math.isfinite(total) and total > 0 else None
