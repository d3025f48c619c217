"""The installed agent under real systemd: what `make board-test` prints, asserted, but for its longest steps."""

from __future__ import annotations

import os

import pytest

from board.run import QUICK_STEPS, measure, tools_missing


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_installed_agent_on_a_booted_tree() -> None:
    lacking = tools_missing()
    if lacking:
        assert not os.environ.get("CI"), f"this machine lacks {lacking}"
        pytest.skip(f"this machine lacks {lacking}")
    report = measure("bookworm", QUICK_STEPS)
    assert [(figure.group, figure.name, figure.value, figure.note) for figure in report.missed] == []
    assert len(report.figures) > 30
