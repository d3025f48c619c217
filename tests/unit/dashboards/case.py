"""One case of the rules: what Prometheus holds, and what must fire when."""

from __future__ import annotations

from dataclasses import dataclass

from unit.dashboards.fleet_series import Target

#: Alert → the labels that tell one instance of it from another.
Fires = dict[str, list[dict[str, str]]]

DEVICE = {"device": "cam-1"}
OF_MODEL = {"device": "cam-1", "model": "enhancer"}
COLLECTOR = {"job": "collector"}
NOTHING: Fires = {}


@dataclass(frozen=True)
class Case:
    """`expected`: minute → what fires then; every alert that is not named must not. `step`: minutes between scrapes.
    `alone`: it has many boards, and its annotations are compared too.
    """

    name: str
    targets: tuple[Target, ...]
    expected: dict[int, Fires]
    step: int = 1
    alone: bool = False

    @property
    def minutes(self) -> int:
        return max(self.expected) + self.step


def fires(name: str, labels: dict[str, str]) -> Fires:
    return {f"Tidegauge{name}": [labels]}


SILENT = fires("DeviceSilent", DEVICE)
