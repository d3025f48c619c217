"""Raw sums and what several frames say of a layer: what a verdict is made from again without reading a tensor."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class RawSums(msgspec.Struct, frozen=True):
    """Sums over the finite pairs of device value v and reference f, with d = v - f and g = f - pivot.

    `d`, `d2`, `abs_d`: Σd, Σd², Σ|d|; `max_d`: the largest |d|; `g`, `g2`, `dg`: Σg, Σg², Σdg (the pivot keeps them
    from cancelling; Σf = g + n·pivot, Σf² = g2 + 2·pivot·g + n·pivot², Σfd = dg + pivot·d, Σv = Σf + Σd,
    Σv² = Σf² + 2Σfd + Σd², Σfv = Σf² + Σfd). `low`, `high`: device codes at either end of the code range.
    `channels`, `rows`, `columns`: Σd² by position; `channels_f2`, `rows_f2`: Σf²; empty where they were not taken.
    """

    count: int
    pivot: float
    d: float
    d2: float
    abs_d: float
    max_d: float
    g: float
    g2: float
    dg: float
    low: int
    high: int
    device_bad: int
    reference_bad: int
    channels: tuple[float, ...] = ()
    rows: tuple[float, ...] = ()
    columns: tuple[float, ...] = ()
    channels_f2: tuple[float, ...] = ()
    rows_f2: tuple[float, ...] = ()


class LayerSums(msgspec.Struct, frozen=True):
    """Sums against the float run and against the local reference; `floor`: the healthy mean squared local error, and
    `weight_noise` what rounding its weights adds to it, in the tensor's unit squared."""

    cumulative: RawSums | None
    local: RawSums | None
    floor: float
    weight_noise: float


class RangeUse(msgspec.Struct, frozen=True):
    """How this run uses the range that the calibration gave a tensor.

    `low`, `high`: values of the lowest and highest code; `live_low`, `live_high`: of the live tensor, all but a
    thousandth at either end; `used`: their share of the range; `clipped`: share of the float run's values outside.
    """

    low: float
    high: float
    live_low: float
    live_high: float
    used: Share
    clipped: Share


class FrameLayer(msgspec.Struct, frozen=True):
    """A layer over all frames: compared in `compared`, wrong by itself in `flagged` of them, most so in frame `worst`.

    `first_only`: wrong in the first frame and in no other, of three at least.
    """

    compared: int
    flagged: int
    worst: int
    first_only: bool


class Frame(msgspec.Struct, frozen=True):
    """One frame's own answer. `outputs`: SQNR in dB by network output."""

    source: str
    input: str
    exit_code: int
    culprits: tuple[str, ...]
    outputs: dict[str, float | None]


class Frames(msgspec.Struct, frozen=True):
    """What holds over all frames. The answer around it has sums merged over all, and the pictures of frame `worst`.

    `layers`: by name of the device layer.
    """

    frames: tuple[Frame, ...]
    worst: int
    sentence: str
    layers: dict[str, FrameLayer]
