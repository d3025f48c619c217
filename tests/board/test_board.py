"""The installed agent under real systemd, step by step: what `make board-test` prints, asserted."""

from __future__ import annotations

import os

import pytest

from board.run import measure, tools_missing


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_installed_agent_on_a_booted_tree() -> None:
    lacking = tools_missing()
    if lacking:
        assert not os.environ.get("CI"), f"this machine lacks {lacking}"
        pytest.skip(f"this machine lacks {lacking}")
    report = measure("bookworm")
    assert [(figure.group, figure.name, figure.value, figure.note) for figure in report.missed] == []
    assert len(report.figures) > 30
