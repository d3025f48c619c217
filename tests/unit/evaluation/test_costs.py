"""Ratios of pairs have honest intervals; a goal is missed only where all of the interval lies beyond it."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from tidegauge.cli import bench
from tidegauge.cli import evaluate as cli
from tidegauge.evaluation import attribution, costs, first_frame
from tidegauge.evaluation.figures import Figure, Report
from tidegauge.evaluation.overhead import LOOPS, Loops, Measured, Run, Size


def test_the_interval_is_students() -> None:
    """Three pairs: t is 4.303 at two degrees of freedom."""
    ours, others = [1.1, 1.2, 1.3], [1.0, 1.0, 1.0]
    middle, low, high = costs.ratio(ours, others)
    logs = np.log(ours)
    half = 4.303 * logs.std(ddof=1) / math.sqrt(3)
    assert (middle, low, high) == pytest.approx(tuple(np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])))
    assert costs.ratio([2.0], [1.0])[1:] == (0.0, math.inf)  # one pair proves nothing
    assert costs.ratio([1.0] * 200, [2.0] * 200) == pytest.approx((0.5, 0.5, 0.5))


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        _, low, high = costs.ratio(np.exp(rng.normal(0.1, 0.2, 20)).tolist(), np.exp(rng.normal(0, 0.2, 20)).tolist())
        covered += low <= math.exp(0.1) <= high
    assert 0.92 <= covered / 400 <= 0.98


def measured(rates: dict[Loops, float], late: dict[Loops, float], spread: float) -> Measured:
    rng = np.random.default_rng(2)

    def runs(name: Loops) -> list[Run]:
        noise = np.exp(rng.normal(0, spread, (20, 2)))
        return [Run(rates[name] * a, tuple([0.03] * 95 + [late[name] * b] * 5)) for a, b in noise]

    return Measured({name: runs(name) for name in LOOPS}, 10, 0.05)


@pytest.mark.parametrize(
    ("rate", "late", "spread", "met"),
    [
        (0.99, 1.02, 0.001, (True, True)),
        (0.95, 1.20, 0.001, (False, False)),
        (0.95, 1.20, 0.500, (True, True)),  # so noisy that nothing is shown
        (1.00, 1.20, 0.001, (True, False)),
    ],
)
def test_a_goal_is_missed_where_the_whole_interval_is_beyond(
    rate: float, late: float, spread: float, met: tuple[bool, bool]
) -> None:
    rates: dict[Loops, float] = {name: 30.0 * (rate if name == "whole monitor" else 1.0) for name in LOOPS}
    lates: dict[Loops, float] = {name: 0.04 * (late if name == "whole monitor" else 1.0) for name in LOOPS}
    figures = {f.name: f for f in costs.overhead_figures(measured(rates, lates, spread), Size())}
    assert figures["whole monitor: frames a second"].met is not None
    found = tuple(figures[f"whole monitor: {what}"].met for what in ("frames a second", "latency, 99 %"))
    assert found == met
    assert figures["bare loop again: frames a second"].met is None  # how much two equal loops differ is no goal
    assert all("95 % interval" in f.note for f in figures.values() if f.group.startswith("ratio"))


@pytest.mark.parametrize(("value", "code"), [(0.99, 0), (0.9, 1)])
def test_each_command_fails_where_a_goal_is_missed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: float, code: int
) -> None:
    report = Report(1, True, [Figure("g", "n", value, goal=0.98)], [])
    sizes: list[Size] = []
    monkeypatch.setattr(costs, "evaluate", lambda size, *_: sizes.append(size) or report)
    monkeypatch.setattr(attribution, "evaluate", lambda *_: report)
    monkeypatch.setattr(first_frame, "evaluate", lambda *_: report)
    file = tmp_path / "figures.json"
    commands = (
        (bench.command, ["overhead", "--device-ms", "20", "--rounds", "7"]),
        (cli.command, ["attribution"]),
        (cli.command, ["acceptance"]),
    )
    for command, arguments in commands:
        found = CliRunner().invoke(command, [*arguments, "--json", str(file)])
        assert found.exit_code == code, found.output
        assert ("MISSED" in found.output) == bool(code)
        assert msgspec.json.decode(file.read_bytes(), type=Report) == report
        file.unlink()
    assert (sizes[0].device, sizes[0].rounds) == (0.02, 7)
