"""The reliability evaluation itself: its rows are as documented for real agents, and a missed goal is one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tidegauge.errors import TidegaugeError
from tidegauge.evaluation.reliability import Table, cells, markdown
from tidegauge.evaluation.reliability_modes import MODES, Pace, named
from tidegauge.evaluation.reliability_trial import Row
from tidegauge.virtualboard import freezer
from tidegauge.virtualboard.failures import FAILURE_NAMES, parse
from tidegauge.virtualboard.faults import parse as parse_fault

#: Not modes of a failing board: what stands for something that the layer comparison finds.
LEFT_OUT = {"trace_too_large"}


def evaluate(folder: Path, *names: str) -> tuple[int, dict[str, Any]]:
    result = folder / "rows.json"
    modes = [text for name in names for text in ("--mode", name)]
    command = [
        sys.executable,
        "-m",
        "tidegauge",
        "evaluate",
        "reliability",
        "--jobs",
        "2",
        "--json",
        str(result),
        *modes,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.exists(), done.stderr
    rows: dict[str, Any] = json.loads(result.read_text())
    return done.returncode, rows


def wrong(row: dict[str, Any]) -> list[str]:
    """The goals that a row misses, but for its time: how long it took is the command's to judge, on an idle machine."""
    return [goal for goal in row["missed"] if row["detected"] is None or not goal.startswith("detected within")]


def as_documented(folder: Path, *names: str) -> None:
    code, table = evaluate(folder, *names)
    missed = {row["mode"]["name"]: (row["saw"], wrong(row), row["problems"]) for row in table["rows"] if wrong(row)}
    assert missed == {}
    assert code == (1 if any(row["missed"] for row in table["rows"]) else 0)
    assert [row["mode"]["name"] for row in table["rows"]] == list(names)


@pytest.mark.timeout(400)
def test_a_few_modes_against_real_agents(tmp_path: Path) -> None:
    as_documented(tmp_path, "leak_by_sigkill", "wrong_numbers", "no_server")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(6))
def test_every_mode(tmp_path: Path, part: int) -> None:
    as_documented(tmp_path, *(mode.name for mode in MODES[part::6] if not skipped(mode.failures)))


def skipped(failures: tuple[str, ...]) -> bool:
    return "unkillable" in failures and freezer.why_not() != ""


def test_every_failure_of_the_virtual_board_is_a_mode_and_can_be_injected() -> None:
    met = {parse(text).name for mode in MODES for text in mode.failures}
    assert met | LEFT_OUT >= set(FAILURE_NAMES)
    for mode in MODES:
        for text in mode.faults:
            parse_fault(text)
    assert len({mode.name for mode in MODES}) == len(MODES)


def test_an_unknown_mode_is_named() -> None:
    with pytest.raises(TidegaugeError, match="no failure mode 'black_hole'"):
        named(("black_hole",))


def good(name: str) -> Row:
    [mode] = named((name,))
    return Row(mode, 10.0, "seen", ("a",), detected=1.0, reason=True, ended=True, end=2.0)


def test_goals_are_longer_where_the_machine_is_slower() -> None:
    [mode] = named(("leak_by_sigkill",))
    assert Pace.measured(3.0).within(mode) == mode.within
    assert Pace.measured(18.0).within(mode) == 3 * mode.within


class TestGoals:
    def test_all_met(self) -> None:
        assert good("hang_in_run").missed == []

    def test_each_of_them_can_be_missed(self) -> None:
        row = good("hang_in_run")
        row.detected, row.reason, row.ended, row.lost, row.before = 11.0, False, False, ["a bundle"], 1
        assert len(row.missed) == 5

    def test_never_detected_is_missed(self) -> None:
        row = good("hang_in_run")
        row.detected = None
        assert row.missed == ["detected within 10 s"]

    def test_a_silent_fault_may_give_wrong_answers_until_the_alarm_but_not_after(self) -> None:
        row = good("wrong_numbers")
        row.before = 9
        assert row.missed == []
        row.after = 1
        assert row.missed == ["no wrong answer published as a right one"]

    def test_a_missed_row_says_so_in_the_table(self) -> None:
        row = good("hang_in_run")
        row.problems.append("a traceback in the agent's log")
        assert "MISSED: a traceback" in cells(row)[-1]
        table = markdown(Table([row, good("slow")], [], Pace.measured(3.0), 1.0))
        assert "1 of 2 modes met all goals" in table
