"""What is known of a device tensor on its way through the comparison, and of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from tidegauge.compare.given import Given
from tidegauge.compare.match import Match
from tidegauge.compare.oracle import Codes
from tidegauge.compare.raw_types import RangeUse
from tidegauge.compare.reference import Reference
from tidegauge.compare.statistics import Encoding, Sums
from tidegauge.compare.traces import DeviceTensor
from tidegauge.compare.types import Histogram, Metrics, Profiles, Status

Array = NDArray[Any]

#: A weight scheme that leaves no more than this excess explains its region; no accelerator has float weights, so these
#: must explain it as rounding alone does.
EXPLAINS, EXPLAINS_FLOAT = 1.5, 1.1
#: The label of the weights that the compile's tables tell.
STATED = "as compiled"


@dataclass
class Layer:
    """A device tensor on its way through the comparison.

    `weighted`: its region has weights; `follows`: most of its codes are those that the chosen weights give, at most
    shifted together. `bias_moved`: by how many steps calibration moved its channels, where nothing else is wrong;
    `bias_unsure`: that may be so, and can't be told.
    """

    tensor: DeviceTensor
    match: Match
    encoding: Encoding | None = None
    status: Status = "ok"
    reason: str = ""
    cumulative: Metrics | None = None
    cumulative_sums: Sums | None = None
    local: Metrics | None = None
    local_sums: Sums | None = None
    float_excess: float | None = None
    floor: float = 0.0
    limit: float | None = None
    codes_allowed: float = 0.0
    ones_allowed: float = 0.0
    oracle: Codes | None = None
    unexplained: float = 0.0
    weight_noise: float = 0.0
    range_use: RangeUse | None = None
    layout: str | None = None
    laid_otherwise: str | None = None
    clipped_share: float = 0.0
    clipping: float = 0.0
    float_clipped: float = 0.0
    weights: str = "none"
    scheme: Mapping[str, Array] | None = None
    weighted: bool = False
    follows: bool = False
    bias_moved: float | None = None
    bias_unsure: bool = False
    profiles: Profiles | None = None
    histogram: Histogram | None = None
    low_share: float | None = None
    high_share: float | None = None
    reads: tuple[str, ...] = ()
    reads_input: str = ""
    operators: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()

    @property
    def off_by_one(self) -> float | None:
        """The share of codes off the predicted ones by one; None for floats, and where nothing predicts them."""
        return self.oracle.one if self.oracle is not None and self._integer else None

    @property
    def off_by_more(self) -> float | None:
        return self.oracle.more if self.oracle is not None and self._integer else None

    @property
    def scatter(self) -> float | None:
        """The variance of the local error in units of the floor: its excess, but for a shift of the whole tensor.

        Weights that leave no scatter are the device's, whatever else is wrong; a shift by a code must not hide that.
        """
        sums = self.local_sums
        if sums is None or not sums.count or self.floor <= 0:
            return self.local.excess if self.local is not None else None
        if sums.count == 1:
            return sums.d2 / self.floor
        return max(0.0, sums.d2 - sums.d**2 / sums.count) / (sums.count - 1) / self.floor

    @property
    def weights_fit(self) -> bool:
        """Whether the weights that were chosen explain the tensor: all of it, or all but what is plainly wrong."""
        if self.local is None:
            return False
        most = EXPLAINS_FLOAT if self.weights == "float" and self.weighted else EXPLAINS
        return self.follows or (self.scatter or 0.0) <= most

    @property
    def _integer(self) -> bool:
        return self.encoding is not None and self.encoding.integer

    @property
    def twin(self) -> str:
        """The float tensor's name; only for a matched layer."""
        if self.match.tensor is None:
            raise ValueError(f"{self.tensor.name} has no float twin")
        return self.match.tensor


@dataclass
class Evaluation:
    """All layers, and the runs behind them. `by_twin`: usable layers by float tensor. `given`: float tensors of
    another run, which the device is compared with in place of the computed ones."""

    layers: list[Layer]
    reference: Reference
    by_twin: dict[str, Layer] = field(default_factory=dict)
    given: Given | None = None

    def codes(self, layer: Layer) -> Array:
        """A layer's codes in the float tensor's shape."""
        return layer.tensor.codes().reshape(self.reference.specs[layer.twin].shape)
