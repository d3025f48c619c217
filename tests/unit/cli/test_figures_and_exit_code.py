"""`tidegauge bench budget` and its like: every figure beside its goal, the same as JSON, and the exit code."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tidegauge.cli.bench import command
from tidegauge.evaluation import budget
from tidegauge.evaluation.figures import Figure, Report

MET = (
    Figure("memory", "agent: resident", 60.0, "MB", 60.0, "<="),
    Figure("memory", "wheels", 3.0, "", 3.0, ">="),
    Figure("memory", "told without a goal", 1e9, "MB"),
)
MISSED = (
    Figure("memory", "agent: resident", 60.001, "MB", 60.0, "<="),
    Figure("memory", "wheels", 2.0, "", 3.0, ">="),
)


@pytest.mark.parametrize(("figures", "code"), [(MET, 0), ((*MET, MISSED[0]), 1), ((*MET, MISSED[1]), 1)])
def test_one_missed_goal_is_exit_code_1(
    figures: tuple[Figure, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Report(1, False, list(figures), [])
    monkeypatch.setattr(budget, "evaluate", lambda *_, **__: report)
    done = CliRunner().invoke(command, ["budget", "--quick", "--json", str(tmp_path / "figures.json")])
    assert done.exit_code == code, done.output
    assert f"{code} of {len(figures) - 1} goals missed" in done.output
    assert all(figure.name in done.output for figure in figures)
    assert msgspec.json.decode((tmp_path / "figures.json").read_bytes(), type=Report) == report
