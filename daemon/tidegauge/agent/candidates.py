"""Which shadow samples become golden tensors: the first, the darkest and the brightest input. Pure."""

from __future__ import annotations

import numpy as np

from tidegauge.agent.events import Evidence


class GoldenCandidates:
    """Holds the candidates while acceptance runs."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[float, Evidence]] = {}

    def consider(self, evidence: Evidence) -> bool:
        """Take one pair into account. True for the very first: it guards at once."""
        level = _level(evidence)
        if not self._held:
            self._held = {"first": (level, evidence), "low": (level, evidence), "high": (level, evidence)}
            return True
        if level < self._held["low"][0]:
            self._held["low"] = (level, evidence)
        if level > self._held["high"][0]:
            self._held["high"] = (level, evidence)
        return False

    def chosen(self, count: int) -> list[Evidence]:
        """At most `count` different pairs."""
        chosen: list[Evidence] = []
        for _, evidence in self._held.values():
            if evidence not in chosen:
                chosen.append(evidence)
        return chosen[:count]


def _level(evidence: Evidence) -> float:
    """How bright an input is: the mean of its bytes' most significant parts is enough to choose by."""
    data = np.frombuffer(evidence.inputs[0], np.uint8)
    return float(data[3::4].mean()) if data.size >= 4 else float(data.mean())
