"""The overhead is measured on the product's own workers: every loop answers, and the shadow worker measures samples."""

from __future__ import annotations

import pytest

from tidegauge.evaluation.overhead import LOOPS, WARM, Size, measure


@pytest.mark.slow
def test_every_loop_answers_and_samples_are_measured() -> None:
    said: list[str] = []
    found = measure(Size(rounds=2, frames=40, device=0.01), said.append)
    assert set(found.runs) == set(LOOPS) and len(said) == 2
    for runs in found.runs.values():
        assert len(runs) == 2
        for run in runs:
            assert 1 < run.rate <= 100.5  # a run of 10 ms allows no more
            assert len(run.latencies) >= 20 and min(run.latencies) >= 0.01
            assert len(run.latencies) <= 40 - WARM
    assert found.samples >= 1 and found.shadow_cpu > 0
