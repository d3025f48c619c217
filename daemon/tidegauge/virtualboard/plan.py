"""Runs a model that is cut into parts: sub-graphs on the C7x and what is between them on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tidegauge.virtualboard.calibration import float_session
from tidegauge.virtualboard.partition import Part

Array = NDArray[Any]
Run = Callable[[list[str], Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True)
class Step:
    """One part: what it reads, what it gives, and how: `run(wanted, feeds)`."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: Run


@dataclass(frozen=True)
class Plan:
    """Steps in order."""

    steps: tuple[Step, ...]

    def run(self, wanted: Iterable[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The wanted outputs by name."""
        values: dict[str, Array] = dict(feeds)
        for step in self.steps:
            values |= step.run(list(step.outputs), {name: values[name] for name in step.inputs})
        return {name: values[name] for name in wanted}


def cpu_step(part: Part) -> Step:
    """A part in float on the CPU."""
    session = float_session(part.model, [])

    def run(wanted: list[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(wanted, session.run(wanted, dict(feeds)), strict=True))

    return Step(part.inputs, part.outputs, run)
