"""One strike: non-finite, constant, wrong size."""

from __future__ import annotations

import numpy as np
import pytest

from tidegauge.detectors.invariants import check
from tidegauge.losses.output_stats import output_stats


def stats(values: list[float], name: str = "y"):  # type: ignore[no-untyped-def]
    return output_stats(name, np.array(values, np.float32), 0, 1)


def test_a_possible_answer_raises_nothing() -> None:
    assert check([stats([0.1, 0.2]), stats([0.0, 1.0], "z")], {"y": 2, "z": 2}) is None
    assert check([stats([0.5])]) is None  # one number can't vary
    assert check([]) is None


@pytest.mark.parametrize(
    ("values", "word"),
    [([0.1, float("nan")], "non-finite"), ([0.3, 0.3, 0.3], "everywhere"), ([float("inf")] * 3, "non-finite")],
)
def test_an_impossible_answer_raises_at_once(values: list[float], word: str) -> None:
    alarm = check([stats([0.1, 0.2], "ok"), stats(values, "bad")])
    assert alarm is not None
    assert alarm.detector == "invariant"
    assert "bad" in alarm.message
    assert word in alarm.message
    assert all(np.isfinite(value) for value in alarm.evidence.values())


def test_a_wrong_size_or_an_unknown_output_raises() -> None:
    alarm = check([stats([0.1, 0.2])], {"y": 3})
    assert alarm is not None
    assert "2 elements, not 3" in alarm.message
    assert check([stats([0.1, 0.2])], {"other": 2}) is not None
