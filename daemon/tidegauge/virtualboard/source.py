"""What the compiler needs to know of a model, whatever file it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from tidegauge.virtualboard.calibration import Ranges
from tidegauge.virtualboard.partition import Part
from tidegauge.virtualboard.plan import Step

Array = NDArray[Any]


@dataclass(frozen=True)
class Offload:
    """One sub-graph for the C7x. `name`: its files begin with it. `part.model`: in ONNX, also of a TFLite model."""

    name: str
    part: Part
    ranges: Ranges


@dataclass(frozen=True)
class Source:
    """A model, divided and calibrated. `order`: what runs when: the next of `subgraphs` where it is None, else what
    makes the CPU's step. `frames` and the float model's `outputs` for them, as the caller sees them. `total`: its
    nodes."""

    kind: Literal["onnx", "tflite"]
    subgraphs: tuple[Offload, ...]
    order: tuple[Callable[[], Step] | None, ...]
    frames: tuple[dict[str, Array], ...]
    outputs: tuple[dict[str, Array], ...]
    total: int
    warnings: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """One sub-graph holds all of it."""
        return len(self.order) == 1
