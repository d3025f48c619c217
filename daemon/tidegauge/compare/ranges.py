"""How the live values use the ranges that the calibration chose: a network calibrated on other pictures is told so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tidegauge.compare.layers import Evaluation, Layer
from tidegauge.compare.raw_types import RangeUse
from tidegauge.compare.types import Finding

#: An input below this share of its range, and layers whose median is below that: the calibration saw stronger ones.
DIM_INPUT, DIM_LAYERS = 0.5, 0.4
#: A tensor is called dim, or clipped, from these shares on.
DIM, CLIPPED = 0.3, 0.01
#: Clipped tensors from which on it is the calibration's matter, as a number and as a share of all.
_FEW, _MANY = 2, 0.1
#: In fewer elements a share of clipped ones says nothing.
_TELLING = 1024
_LISTED = 5


def calibration(work: Evaluation) -> Iterator[Finding]:
    """What the ranges say of the calibration as a whole, with the tensors that show it."""
    known = [(layer, layer.range_use) for layer in work.layers if layer.range_use is not None]
    if not known:
        return
    yield from _dim(known)
    yield from _clipped(known)


def _dim(known: Sequence[tuple[Layer, RangeUse]]) -> Iterator[Finding]:
    inputs = [(layer, use) for layer, use in known if layer.match.how == "input"]
    inner = [(layer, use) for layer, use in known if layer.match.how != "input"]
    if not inputs or not inner:
        return
    layer, use = min(inputs, key=lambda item: item[1].used)
    median = float(np.median([each.used for _, each in inner]))
    if use.used >= DIM_INPUT or median >= DIM_LAYERS:
        return
    faint = sorted((each.used, item.tensor.name) for item, each in inner if each.used < DIM)
    shown = ", ".join(f"{name} {used:.0%}" for used, name in faint[:_LISTED]) + (", …" if len(faint) > _LISTED else "")
    tensors = f"; {len(faint)} of {len(inner)} tensors use less than {DIM:.0%} of theirs: {shown}" if faint else ""
    yield Finding(
        "calibrated_brighter",
        "warning",
        f"The calibration saw brighter pictures: this input uses {use.used:.0%} of its calibrated range, and a tensor "
        f"{median:.0%} in the median{tensors}. What is not used of the codes is lost resolution: put frames like this "
        "one among the calibration's.",
        layer.tensor.name,
    )


def _clipped(known: Sequence[tuple[Layer, RangeUse]]) -> Iterator[Finding]:
    known = [(layer, use) for layer, use in known if layer.tensor.count >= _TELLING]
    cut = sorted(((use.clipped, layer.tensor.name) for layer, use in known if use.clipped > CLIPPED), reverse=True)
    if len(cut) < max(_FEW, _MANY * len(known)):
        return
    shown = ", ".join(f"{name} {share:.1%}" for share, name in cut[:_LISTED]) + (", …" if len(cut) > _LISTED else "")
    yield Finding(
        "calibrated_narrower",
        "warning",
        f"The calibration saw weaker pictures: {len(cut)} of {len(known)} tensors lose more than {CLIPPED:.0%} of "
        f"their values to the ends of their range: {shown}. Put frames like this one among the calibration's.",
        cut[0][1],
    )
