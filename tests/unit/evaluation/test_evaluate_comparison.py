"""The evaluation of the comparison: sizes and sets are what they are said to be, and a miss is a miss."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.cli import evaluate as cli
from tidegauge.evaluation import comparison, trial
from tidegauge.evaluation.comparison import Board, Result, wilson
from tidegauge.evaluation.figures import Figure, Report
from tidegauge.evaluation.trial import Outcome
from tidegauge.virtualboard.faults import Fault


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 500), st.data())
def test_wilsons_interval_holds_the_share_and_solves_its_equation(cases: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, cases))
    low, high = wilson(right, cases)
    share = right / cases
    assert 0 <= low <= share + 1e-12 and share - 1e-12 <= high <= 1
    for bound in (low, high):
        if 0 < bound < 1:
            assert abs(share - bound) == pytest.approx(1.959964 * math.sqrt(bound * (1 - bound) / cases), abs=1e-7)


def test_a_miss_counts_and_what_is_too_small_does_not() -> None:
    right = Outcome("a", True, 0.5, True, True, True)
    wrong = Outcome("b", True, 0.05, True, False, False)
    small = Outcome("c", False, 1e-4, False, False, None)
    outcomes = {name: [right, wrong, small] for name in comparison.SETS}
    figures = comparison._figures([Result(Board("n", "8 bit", 3, 5, 1), outcomes, 2)])
    by_name = {(f.group, f.name): f for f in figures}
    assert by_name["Faults at outputs", "culprit right (first named)"].value == 100
    assert by_name["Faults at outputs", "layer and cause right"].met is False
    assert by_name["Two faults at once", "both named, and nothing else"].value == 50
    assert by_name["Faults at outputs", "named, 0 to 0.1 % of codes changed"].value == 0
    assert by_name["Healthy inputs", "false culprits"].met is False
    assert comparison._rate("g", "n", 0, 0, 95.0).met is False  # no case is no success


def test_a_board_is_measured_and_the_same_seed_gives_the_same_cases(tmp_path: Path) -> None:
    board = Board("residual", "8 bit", 2, 1, 5)
    result = comparison.measure(board)
    assert {name: len(found) for name, found in result.outcomes.items()} == dict.fromkeys(comparison.SETS, 2)
    assert result.false == 0 and result == comparison.measure(board)
    bench = trial.build(tmp_path / "bench", "residual", "8 bit")
    value = trial.value_of(bench, 1)
    gross = trial.try_faults(bench, [Fault("b1_c1", "gain", 1.5)], value)
    assert gross is not None and gross.detectable and gross.hit and gross.cause and gross.changed > 0.1
    one = trial.try_faults(bench, [Fault("b1_c1", "tiny", 1.0)], value)
    assert one is not None and not one.detectable
    assert trial.try_faults(bench, [Fault("b1_c1", "saturate", 2.0)], value) is None  # changes nothing
    assert bench.judge(value, bench.run(value)).culprits == ()


def test_size_is_counted_in_codes() -> None:
    class Layer:
        class quant:
            is_float = False

    healthy = np.zeros(1000, np.uint8)
    faulty = healthy.copy()
    faulty[:3], faulty[3:5] = 1, 2
    assert trial.change(Layer, healthy, faulty) == (0.005, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "code"), [(99.0, 0), (90.0, 1)])
def test_the_command_prints_the_seed_and_fails_where_a_goal_is_missed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: float, code: int
) -> None:
    seeds = []

    def fake(quick: bool, seed: int, *_: object, **__: object) -> Report:
        seeds.append(seed)
        return Report(seed, quick, [Figure("faults", "hit", value, "%", 95.0)], [])

    monkeypatch.setattr(comparison, "evaluate", fake)
    found = CliRunner().invoke(cli.command, ["comparison", "--quick", "--json", str(tmp_path / "f.json")])
    assert found.exit_code == code and f"Seed {seeds[0]}." in found.output
    assert msgspec.json.decode((tmp_path / "f.json").read_bytes(), type=Report).seed == seeds[0]
    CliRunner().invoke(cli.command, ["comparison", "--seed", "4"])
    assert seeds[1] == 4


def test_healthy_layers_with_many_ties_are_not_blamed(tmp_path: Path) -> None:
    """Many values of a HardSigmoid lie on the middle between two codes."""
    assert trial.false_culprits(trial.build(tmp_path / "bench", "inverted", "8 bit"), 2) == 0
