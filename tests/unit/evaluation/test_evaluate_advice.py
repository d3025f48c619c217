"""Advice applied: a small run of the evaluation, and that a miss is a miss."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from tidegauge.cli import evaluate as cli
from tidegauge.evaluation import advice
from tidegauge.evaluation.advice import Job, Outcome, figures
from tidegauge.evaluation.figures import Report

RIGHT = Outcome("rounding", "a", ("deny_list:layer_name",), 1.0, 0.1, 0.11, "")


@pytest.mark.parametrize(
    ("changed", "right"),
    [
        ({}, True),
        ({"measured": 0.119}, True),
        ({"measured": 0.121}, False),
        ({"measured": 0.079}, False),  # better than foretold is not what was foretold
        ({"measured": 0.1, "before": 0.1}, False),  # nothing fell
        ({"refused": "Invalid Layer Name  a"}, False),
        ({"measured": math.inf}, False),
        ({"predicted": math.inf}, False),
    ],
)
def test_what_counts_as_right(changed: dict[str, Any], right: bool) -> None:
    assert replace(RIGHT, **changed).right is right


def test_misses_are_counted_and_a_refused_key_alone_misses_a_goal() -> None:
    refused = Outcome("rounding", "b", ("tensor_bits",), 1.0, 0.1, 0.1, "tensor_bits is no compile option of TIDL")
    report = Report(1, True, figures([RIGHT] * 19 + [refused]), [])
    by_name = {figure.name: figure for figure in report.figures}
    assert by_name["right: accepted, and within 20 % of the figure"].value == pytest.approx(95.0)
    assert [figure.name for figure in report.missed] == ["cases with a key that was not accepted"]
    assert len(Report(1, True, figures([]), []).missed) == 1  # no case at all meets no goal


def test_a_small_run_recompiles_with_the_reports_own_text() -> None:
    outcomes = advice.measure(Job("residual", 1, 4))
    assert {outcome.group for outcome in outcomes} >= {"rounding", "a fault in one layer", "a coarse release"}
    assert not any(outcome.refused for outcome in outcomes)
    assert all(outcome.options for outcome in outcomes)
    assert sum(outcome.measured < outcome.before for outcome in outcomes) >= len(outcomes) - 1
    assert sum(outcome.right for outcome in outcomes) >= len(outcomes) - 2


def test_a_name_that_the_compile_does_not_know_is_refused(tmp_path: Path) -> None:
    board = advice._Board(tmp_path, advice.NETWORKS["residual"](tmp_path / "net.onnx"))
    pasted = {"advanced_options:output_feature_16bit_names_list": "stem,nobody"}
    board.compile("again", pasted, narrow=False)
    assert "nobody" in board.refused(pasted)
    board.compile("again", {"advanced_options:output_feature_16bit_names_list": "stem"}, narrow=False)
    assert not board.refused(pasted)


def test_the_command_exits_with_1_where_a_goal_is_missed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong = Outcome("rounding", "b", ("tensor_bits",), 1.0, 0.1, 0.5, "")
    for outcomes, code in (([RIGHT], 0), ([RIGHT, wrong], 1)):
        report = Report(3, True, figures(outcomes), [])
        monkeypatch.setattr(advice, "evaluate", lambda *_, report=report: report)
        done = CliRunner().invoke(cli.command, ["advice", "--json", str(tmp_path / "f.json")])
        assert done.exit_code == code, done.output
        assert msgspec.json.decode((tmp_path / "f.json").read_bytes())["figures"]
