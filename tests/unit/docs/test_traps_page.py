"""Every trap on the page names a test that is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from unit.docs.generators import ROOT

PAGE = (ROOT / "docs" / "traps.md").read_text()


@cache
def collected_from(path: Path) -> frozenset[str]:
    """What pytest collects of a module: functions, also of its test classes."""
    found = set[str]()
    for node in ast.parse(path.read_text()).body:
        inside = node.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test") else [node]
        found |= {each.name for each in inside if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return frozenset(name for name in found if name.startswith("test_"))


def test_every_trap_has_its_test() -> None:
    before_brokers, brokers = PAGE.split("## What brokers limit")
    rows = [line for line in before_brokers.splitlines() if re.match(r"\| (?!trap|hidden)", line)]
    assert len(rows) >= 45
    for row in rows:
        cells = row.strip("|").split(" | ")
        assert len(cells) == 3, row
        assert re.search(r"`tests/[\w/]+\.py::test_\w+`", cells[2]), f"no test: {row}"
    named = re.findall(r"`(tests/[^`:]+)::([^`]+)`", PAGE)
    assert len(named) >= 60
    assert len(re.findall(r"`tests/", PAGE)) == len(named) + PAGE.count("`tests/unit/docs/test_traps_page.py`")
    for path, name in named:
        assert name in collected_from(ROOT / path), f"{path} has no {name}"
    assert brokers.count("*run*:") == 2, "a broker is said to be run by the tests that run it"
