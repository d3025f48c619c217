"""A figure beside its goal, and all of them as a report."""

from __future__ import annotations

from math import isfinite
from typing import Literal

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """`value` in `unit`; `goal` None where it is for information. `note` is short."""

    group: str
    name: str
    value: float
    unit: str = ""
    goal: float | None = None
    relation: Literal[">=", "<="] = ">="
    note: str = ""

    @property
    def met(self) -> bool | None:
        """None without a goal. A value that is not finite meets none."""
        if self.goal is None:
            return None
        if not isfinite(self.value):
            return False
        return self.value >= self.goal if self.relation == ">=" else self.value <= self.goal


class NotRun(msgspec.Struct, frozen=True):
    """A row that could not be measured, and what it needs."""

    group: str
    name: str
    reason: str


class Report(msgspec.Struct):
    """`seed` and `quick` are what the figures can be repeated with."""

    seed: int
    quick: bool
    figures: list[Figure]
    not_run: list[NotRun]

    @property
    def missed(self) -> list[Figure]:
        return [figure for figure in self.figures if figure.met is False]

    def groups(self) -> dict[str, list[Figure]]:
        """Figures by group, in the order in which groups first appeared."""
        found: dict[str, list[Figure]] = {}
        for figure in self.figures:
            found.setdefault(figure.group, []).append(figure)
        return found


def shown(value: float) -> str:
    """A number for people: four digits tell enough, but a count is told whole."""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) >= 10_000 else f"{value:.4g}"


def goal(figure: Figure) -> str:
    """Its goal, and whether it is met, in words; empty without one."""
    if figure.goal is None:
        return ""
    sign = "≥" if figure.relation == ">=" else "≤"
    return f"{sign} {shown(figure.goal)} {'met' if figure.met else 'MISSED'}"


def markdown(report: Report) -> str:
    """The tables of the documentation."""
    lines = []
    for group, figures in report.groups().items():
        lines += [f"**{group[0].upper()}{group[1:]}**", "", "| | measured | goal | |", "|---|---|---|---|"]
        lines += [f"| {f.name} | {shown(f.value)} {f.unit} | {goal(f)} | {f.note} |" for f in figures]
        lines.append("")
    lines += [f"{row.group}: {row.name}: {row.reason}" for row in report.not_run]
    return "\n".join(lines)
