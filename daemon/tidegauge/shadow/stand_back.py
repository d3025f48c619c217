"""When the shadow stands back though its budget allows a sample: heat, load, a latency rise of the product. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Literal

import msgspec

Reason = Literal["temperature", "load", "latency"]

#: Frames whose median is the present latency, and how many such medians make the usual one.
WINDOW, MEMORY = 32, 60
#: Medians before anything is judged.
FEWEST = 4


class Limits(msgspec.Struct, frozen=True):
    """`temperature` in °C, `load` in ready processes a core, `latency_rise` as a factor; 0 switches one off."""

    temperature: float
    load: float
    latency_rise: float


class Readings(msgspec.Struct, frozen=True):
    """Of the board now; `temperature` None where it has no sensor."""

    temperature: float | None
    load: float


class LatencyRise:
    """Whether the product's answers come later than they usually do.

    A rise that stays becomes the usual after some thirty windows: sampling must not end for ever because the product
    was given more to do.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._medians: deque[float] = deque(maxlen=MEMORY)
        self._count = 0

    def update(self, seconds: float) -> None:
        """One frame, from its capture to its answer. Raises ValueError for a negative or non-finite time."""
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"a latency of {seconds} s")
        self._recent.append(seconds)
        self._count += 1
        if self._count % WINDOW == 0:
            self._medians.append(median(self._recent))

    @property
    def factor(self) -> float | None:
        """The present median over the usual one; None while too little is known."""
        if len(self._medians) < FEWEST:
            return None
        usual = median(self._medians)
        return median(self._recent) / usual if usual > 0 else None


def why(limits: Limits, readings: Readings, latency: float | None) -> Reason | None:
    """The first limit that is exceeded; None while the shadow may work. `latency` as of `LatencyRise.factor`."""
    if limits.temperature and readings.temperature is not None and readings.temperature > limits.temperature:
        return "temperature"
    if limits.load and readings.load > limits.load:
        return "load"
    if limits.latency_rise and latency is not None and latency > limits.latency_rise:
        return "latency"
    return None
