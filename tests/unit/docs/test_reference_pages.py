"""docs/cli.md, metrics.md and events.md are what the code generates, and leave nothing out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tidegauge.cli import COMMANDS
from unit.docs.generators import ROOT, tool


@pytest.mark.parametrize("page", ["cli", "metrics", "events"])
def test_the_page_is_current(page: str) -> None:
    made = tool(f"{page}_reference").reference()
    assert (ROOT / "docs" / f"{page}.md").read_text() == made, "run `make docs`"
    assert str(Path.home()) not in made


def test_every_command_and_every_option_of_one_is_on_the_page() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    assert set(re.findall(r"^## tidegauge (\S+)$", page, re.MULTILINE)) == set(COMMANDS)
    section = page.partition("## tidegauge virtualboard compile\n")[2].partition("\n## ")[0]
    for option in ("--artifacts", "--calibration", "--tensor-bits [8\\|16\\|32]"):
        assert option in section


def test_every_metric_that_rules_and_dashboards_use_is_on_the_page() -> None:
    listed = set(re.findall(r"^\| `(tidegauge_\w+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))
    used: set[str] = set()
    for path in (ROOT / "dashboards" / "prometheus").glob("*.yml"):
        used |= set(re.findall(r"(?<![\w:])tidegauge_\w+(?![\w:])", path.read_text()))
    bare = {re.sub(r"_(bucket|count|sum)$", "", name) for name in used}
    assert len(bare & listed) > 30
    assert {name for name in bare if name.startswith("tidegauge_") and name not in listed} <= {"tidegauge_dashboards"}


def names_of_alarms() -> set[str]:
    """What stands where an alarm's detector is named, as text; of a name that is put together its first part."""
    found = set()
    for path in (ROOT / "daemon" / "tidegauge").rglob("*.py"):
        if "evaluation" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Alarm":
                named = [word.value for word in node.keywords if word.arg == "detector"]
                first = (node.args or named)[0]
                if isinstance(first, ast.JoinedStr):
                    first = first.values[0]
                if isinstance(first, ast.Constant):
                    found.add(str(first.value))
    return found


def test_every_detector_has_its_line() -> None:
    from tidegauge.agent import supervision, verdicts

    described = set(tool("events_reference").DETECTORS)
    found = names_of_alarms()
    assert {"camera_", "known_answer_", "invariant"} <= found
    undescribed = [name for name in found if not any(each.startswith(name) for each in described)]
    assert undescribed == []
    assert described >= supervision.NAMES | verdicts.PAIRED
