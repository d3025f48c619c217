"""The local residual of a faulty tensor, arranged for the hypotheses about its cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.statistics import Encoding, planes
from tidegauge.compare.types import CauseName

Array = NDArray[Any]
Float = NDArray[np.float32]

#: A value this near to the middle between two codes, in codes, may be rounded to either.
TIE = 0.05


@dataclass(frozen=True)
class Cause:
    """A cause, the share of the residual's energy that it explains, its numbers in words, and its one key number."""

    name: CauseName
    explained: float | None
    detail: str
    value: float | None = None


@dataclass
class Evidence:
    """A faulty tensor: device values, device codes and local reference, all as (channels, height, width).

    `exact`: the local reference predicts healthy codes. Then only codes that it does not predict count as residual, and
    predictions are rounded as the device rounds, so that a fault of one code stands out from the rounding.
    """

    device: Float
    codes: Array
    local: Float
    encoding: Encoding
    floor: float
    exact: bool = False

    def __post_init__(self) -> None:
        self.exact = self.exact and self.encoding.integer
        #: Device minus local values, rounding included: what a fit of numbers needs.
        self.error = self.device - self.local
        self.residual = self._unexplained() if self.exact else self.error
        self.energy = float(np.sum(np.square(self.residual, dtype=np.float64)))
        self.noise = 0.0 if self.exact else min(self.floor * self.residual.size, 0.5 * self.energy)

    def _unexplained(self) -> Float:
        low, high = self.encoding.code_range
        scaled = self.local.astype(np.float64) * self.encoding.scale + self.encoding.zero_point
        scaled = np.clip(scaled, low, high)
        apart = self.codes.astype(np.float64) - np.rint(scaled)
        apart[np.abs(self.codes - scaled) <= 0.5 + TIE] = 0.0
        if not apart.any():  # nothing but ties: better them than nothing
            apart = self.codes.astype(np.float64) - np.rint(scaled)
        found: Float = (apart * self.encoding.step).astype(np.float32)
        return found if found.any() else self.error

    def explained(self, prediction: Array) -> float:
        """The share of the residual's energy above the noise that a prediction of the device's tensor removes.

        No more than its share of the device's own energy: "times zero" removes much of any residual and says nothing.
        """
        if self.exact:
            prediction = self.encoding.values(self.encoding.codes(prediction))
        left = float(np.sum(np.square(self.device - prediction, dtype=np.float64)))
        left = max(0.0, left - self.noise)
        own = float(np.sum(np.square(self.device, dtype=np.float64)))
        return 1.0 - left / max(min(self.energy - self.noise, own), 1e-300)

    def clipped(self, values: Array) -> Array:
        """Values clipped to what the tensor's codes can hold."""
        return np.clip(values, *self.encoding.value_range)


def evidence(codes: Array, local: Array, encoding: Encoding, floor: float, exact: bool = False) -> Evidence:
    """Arrange a tensor of any rank for the hypotheses."""
    shape = planes(local.shape)
    codes = codes.reshape(shape)
    values = local.reshape(shape).astype(np.float32, copy=False)
    return Evidence(encoding.values(codes), codes, values, encoding, floor, exact)
