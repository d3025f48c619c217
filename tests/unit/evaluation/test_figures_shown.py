"""Figures as people read them."""

from __future__ import annotations

import math

import pytest

from tidegauge.evaluation.figures import Figure, Report, markdown, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (10_000.0, "10,000"),
        (20_000, "20,000"),
        (1_234_567.0, "1,234,567"),
        (1000.0, "1000"),
        (0.63634, "0.6363"),
        (12_345.6, "1.235e+04"),
        (0.0, "0"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_a_count_is_told_whole_and_a_measure_with_four_digits(value: float, text: str) -> None:
    assert shown(value) == text


def test_the_page_says_a_figure_and_its_goal_alike() -> None:
    report = Report(1, False, [Figure("changes", "state changes", 10_000.0, "", 20_000.0, ">=")], [])
    assert "| state changes | 10,000  | ≥ 20,000 MISSED |  |" in markdown(report)
