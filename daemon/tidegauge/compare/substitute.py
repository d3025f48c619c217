"""What could stand in the place of a node of the float model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class Substitute:
    """`words`: what is computed instead; `nodes` stand in the node's place, the last writes its output; `constants`:
    weights that they need."""

    words: str
    nodes: tuple[Any, ...]
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)
