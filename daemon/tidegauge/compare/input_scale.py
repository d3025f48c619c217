"""The recorded input against the range of the calibration: a division by 255 that is missing, or applied twice.

Device and float run may both have been fed wrong; then no layer differs, and only the calibrated range tells. A night
picture fills a fifth of its range, so a factor of 255 hides in its largest value; what it can't hide are its levels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.layers import Evaluation, Layer
from tidegauge.compare.types import INPUT_FACTOR, Finding

#: Share of an input's codes at one end of the range that means the input does not fit it.
CLIPPED_INPUT = 0.02
#: An input below this share of its calibrated range is told, whatever it is.
DIM = 1 / 32
#: Levels of a picture that was divided once too often lie within one of its codes; of a dark one, no more than a few.
FEW_LEVELS = 8
#: A factor of 255 shows by itself within this share, if the picture is as bright as the calibration's.
_ALIKE = 1.25
#: The calibrated range of pixels from 0 to 1, and of normalised ones, ends below this.
_SCALED = 8.0

Array = NDArray[Any]


def input_scale(work: Evaluation) -> Iterator[Finding]:
    """A finding for each input that does not fit its calibrated range; `INPUT_FACTOR` where it is off by 255."""
    for layer in work.layers:
        if layer.match.how != "input" or layer.tensor.low is None or layer.tensor.high is None or not layer.reads_input:
            continue
        value = work.reference.inputs[layer.reads_input]
        span = max(abs(layer.tensor.low), abs(layer.tensor.high))
        given = float(np.abs(value).max(initial=0.0))
        if span <= 0 or (not _clipped(layer) and given > span * DIM):
            continue
        words = (
            f"The input spans {float(value.min()):.4g} to {float(value.max()):.4g}, the calibration saw "
            f"{layer.tensor.low:.4g} to {layer.tensor.high:.4g}"
        )
        factor = factor_of_255(value, span)
        yield Finding(INPUT_FACTOR if factor else "input_range", "warning", f"{words}{factor}.", layer.tensor.name)


def factor_of_255(value: Array, span: float) -> str:
    """What was done once too often or left out, in words that follow a sentence; empty where nothing says so.

    `span`: the largest magnitude that the calibration saw.
    """
    given = float(np.abs(value).max(initial=0.0))
    if given == 0.0 or np.unique(value).size <= FEW_LEVELS:
        return ""  # darkness, or a picture of one colour
    if given * 255 < span * _ALIKE:
        if given * 255 > span / _ALIKE:
            return ": the division by 255 is applied twice"
        return ", and all its levels lie within a single code: the division by 255 is applied twice"
    if given / 255 > span / _ALIKE:
        return ": ×255 is applied twice, or the division by 255 is missing" if given / 255 < span * _ALIKE else ""
    if given <= 2 * span or given > 255 or span > _SCALED or value.min() < 0 or not _whole(value):
        return ""
    return ", and all its values are whole numbers as pixels are: the division by 255 is missing"


def _whole(value: Array) -> bool:
    return bool(np.all(value == np.round(value)))


def _clipped(layer: Layer) -> bool:
    """Whether the float values really go past the code range: a picture may hold white without clipping."""
    beyond = layer.cumulative is not None and (layer.cumulative.max_steps or 0.0) > 2.0
    return beyond and max(layer.low_share or 0.0, layer.high_share or 0.0) > CLIPPED_INPUT
