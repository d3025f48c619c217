"""`bench soak` and the camera's reconnects on a small scale: figures are there, and nothing grows in three minutes."""

from __future__ import annotations

import pytest

from benchmarks import bench_camera_reconnects
from tidegauge.evaluation import soak


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_grows_in_a_short_soak() -> None:
    said: list[str] = []
    report = soak.evaluate(3.0, said.append)
    values = {figure.name: figure.value for figure in report.figures}
    assert values["reconnects"] == 50
    assert values["replaced workers"] == 25
    assert values["state changes"] == 500
    assert values["the same agent to the end"] == 1
    assert [(figure.name, figure.value) for figure in report.missed] == []
    assert len(said) == 12


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_grows_while_a_camera_comes_and_goes() -> None:
    report = bench_camera_reconnects.evaluate(100, lambda _: None)
    values = {figure.name: figure.value for figure in report.figures}
    assert values["connections"] == 100
    assert values["pictures"] >= 198
    assert [(figure.name, figure.value) for figure in report.missed] == []
