"""Streams of losses in [0, 1] whose mean is known exactly, many at once: time × streams.

Each kind is stationary from its first sample. A stream can be dropped once it is no longer needed, the others go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import exp, log, pi, sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

#: Spread of the log of an autoregressive or heavy-tailed loss: a 95 % range of a factor of 50 for the tail.
AUTOREGRESSIVE_SIGMA, HEAVY_SIGMA = 0.8, 1.5
#: NMSE of a healthy output, and the spread of its log from scene to scene.
TELLS_NOTHING, ERROR_SIGMA = 1e-4, 0.8
#: Nodes of the quadrature that gives the mean of a clipped log-normal law; its error is below 1e-9.
NODES = 20_001


class Stream(ABC):
    """`count` streams; `take(n)` gives the next n samples of each, an array n × streams."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.count, self.rng = count, rng

    @abstractmethod
    def take(self, samples: int) -> Floats:
        """The next `samples` of each stream."""

    def take_with_errors(self, samples: int) -> tuple[Floats, Floats]:
        """As `take`, and beside each loss the NMSE of its output: one that tells nothing, where not said otherwise."""
        return self.take(samples), np.full((samples, self.count), TELLS_NOTHING)

    def keep(self, kept: Flags) -> None:
        """Go on with these streams only."""
        self.count = int(np.count_nonzero(kept))


Maker = Callable[[int, np.random.Generator], Stream]


class Bernoulli(Stream):
    """Independent losses of 0 and 1."""

    def __init__(self, mean: float, count: int, rng: np.random.Generator) -> None:
        super().__init__(count, rng)
        self.mean = mean

    def take(self, samples: int) -> Floats:
        return (self.rng.random((samples, self.count)) < self.mean).astype(np.float64)


class Beta(Stream):
    """Independent, beta-distributed with a first parameter of 0.5: most are near 0."""

    def __init__(self, mean: float, count: int, rng: np.random.Generator) -> None:
        super().__init__(count, rng)
        self.second = 0.5 * (1 - mean) / mean

    def take(self, samples: int) -> Floats:
        return self.rng.beta(0.5, self.second, (samples, self.count))


class Alternating(Stream):
    """0 and twice the mean, in turns."""

    def __init__(self, mean: float, count: int, rng: np.random.Generator) -> None:
        super().__init__(count, rng)
        self.mean = mean
        self.phase = rng.integers(0, 2, count)

    def take(self, samples: int) -> Floats:
        turns = (np.arange(samples)[:, None] + self.phase) % 2
        self.phase = (self.phase + samples) % 2
        return np.asarray(2.0 * self.mean * turns, np.float64)

    def keep(self, kept: Flags) -> None:
        super().keep(kept)
        self.phase = self.phase[kept]


class LogNormal(Stream):
    """A log-normal law clipped at 1; `coefficient` of the autoregression of its logarithm, 0 for independent ones."""

    def __init__(self, mean: float, coefficient: float, sigma: float, count: int, rng: np.random.Generator) -> None:
        super().__init__(count, rng)
        self.coefficient, self.sigma = coefficient, sigma
        self.location = _location(mean, sigma)
        self.value = rng.standard_normal(count)

    def take(self, samples: int) -> Floats:
        fresh = self.rng.standard_normal((samples, self.count))
        if self.coefficient > 0:
            fresh *= sqrt(1 - self.coefficient**2)
            value = self.value
            for row in fresh:
                row += self.coefficient * value
                value = row
            self.value = value.copy()
        fresh *= self.sigma
        fresh += self.location
        losses: Floats = np.minimum(np.exp(fresh, out=fresh), 1.0, out=fresh)
        return losses

    def keep(self, kept: Flags) -> None:
        super().keep(kept)
        self.value = self.value[kept]


class Sticky(Stream):
    """Scenes that stay: with probability `persistence` the last loss again, else a new one of `draw(n)`."""

    def __init__(self, persistence: float, draw: Callable[[int], Floats], count: int, rng: np.random.Generator) -> None:
        super().__init__(count, rng)
        self.persistence, self.draw = persistence, draw
        self.value = draw(count)

    def take(self, samples: int) -> Floats:
        return self._take(samples)[0]

    def take_with_errors(self, samples: int) -> tuple[Floats, Floats]:
        """Each scene has a tensor error of its own, whatever its loss."""
        found, rows = self._take(samples)
        errors = TELLS_NOTHING * np.exp(self.rng.normal(0, ERROR_SIGMA, (samples + 1, self.count)))
        return found, np.take_along_axis(errors, rows, axis=0)

    def _take(self, samples: int) -> tuple[Floats, NDArray[np.int32]]:
        """The losses, and where each scene began: row 0 for the one under way."""
        new = self.rng.random((samples, self.count)) >= self.persistence
        values = np.empty((samples + 1, self.count))
        values[0] = self.value
        values[1:][new] = self.draw(int(np.count_nonzero(new)))
        rows = np.zeros((samples + 1, self.count), np.int32)
        np.multiply(new, np.arange(1, samples + 1, dtype=np.int32)[:, None], out=rows[1:])
        began = np.maximum.accumulate(rows, axis=0)
        found = np.take_along_axis(values, began, axis=0)[1:]
        self.value = found[-1].copy()
        return found, began[1:]

    def keep(self, kept: Flags) -> None:
        super().keep(kept)
        self.value = self.value[kept]


def _location(mean: float, sigma: float) -> float:
    """The log-normal law's location for which the mean of min(value, 1) is `mean`."""
    z = np.linspace(-9, 9, NODES)
    weight = np.exp(-z * z / 2) / sqrt(2 * pi) * (z[1] - z[0])
    low, high = log(mean) - sigma * sigma, 3.0
    for _ in range(60):
        middle = (low + high) / 2
        found = float(np.sum(np.minimum(exp(middle) * np.exp(sigma * z), 1.0) * weight))
        low, high = (middle, high) if found < mean else (low, middle)
    return (low + high) / 2


def makers(mean: float) -> dict[str, tuple[bool, Maker]]:
    """By name: whether its samples are independent (given the past, of that mean), and how to make streams of it."""
    return {
        "Bernoulli": (True, lambda n, rng: Bernoulli(mean, n, rng)),
        "beta": (True, lambda n, rng: Beta(mean, n, rng)),
        "alternating 0, 2 m0": (False, lambda n, rng: Alternating(mean, n, rng)),
        "heavy tail, clipped": (True, lambda n, rng: LogNormal(mean, 0.0, HEAVY_SIGMA, n, rng)),
        "AR(0.5)": (False, lambda n, rng: LogNormal(mean, 0.5, AUTOREGRESSIVE_SIGMA, n, rng)),
        "AR(0.9)": (False, lambda n, rng: LogNormal(mean, 0.9, AUTOREGRESSIVE_SIGMA, n, rng)),
        "sticky scenes, smooth": (False, lambda n, rng: Sticky(0.9, lambda k: Beta(mean, k, rng).take(1)[0], n, rng)),
        "sticky scenes, 0 or 1": (
            False,
            lambda n, rng: Sticky(0.9, lambda k: Bernoulli(mean, k, rng).take(1)[0], n, rng),
        ),
        "scenes of half an hour, 0 or 1": (
            False,
            lambda n, rng: Sticky(0.97, lambda k: Bernoulli(mean, k, rng).take(1)[0], n, rng),
        ),
    }
