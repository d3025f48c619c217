"""`tidegauge bench budget` and `bench soak` on a small scale: the figures are there, and nothing grows in a minute."""

from __future__ import annotations

import pytest

from tidegauge.evaluation import soak


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_grows_in_a_short_soak() -> None:
    said: list[str] = []
    report = soak.evaluate(0.4, said.append)
    values = {figure.name: figure.value for figure in report.figures}
    assert values["reconnects"] == 7
    assert values["replaced workers"] == 3
    assert values["state changes"] == 67
    assert values["the same agent to the end"] == 1
    assert [(figure.name, figure.value) for figure in report.missed] == []
    assert len(said) == 6
