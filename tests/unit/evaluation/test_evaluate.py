"""The command prints each figure beside its goal and fails where one is missed; the peers are what they claim."""

from __future__ import annotations

import importlib.util
import pickle
from math import inf, nan
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from tidegauge.cli import evaluate as cli
from tidegauge.errors import TidegaugeError
from tidegauge.evaluation import delay, detectors, healthy, peers
from tidegauge.evaluation.cusum import NormalScoreCusum
from tidegauge.evaluation.figures import Figure, NotRun, Report


def test_a_figure_is_met_by_its_own_relation() -> None:
    assert Figure("g", "n", 1.0, goal=0.8).met is True
    assert Figure("g", "n", 0.7, goal=0.8).met is False
    assert Figure("g", "n", 31.0, goal=31.0, relation="<=").met is True
    assert Figure("g", "n", 32.0, goal=31.0, relation="<=").met is False
    assert Figure("g", "n", 32.0).met is None
    for value in (nan, inf, -inf):
        assert Figure("g", "n", value, goal=1.0).met is False


@pytest.mark.parametrize(("value", "code"), [(0.9, 0), (0.7, 1)])
def test_exit_code_json_and_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: float, code: int) -> None:
    report = Report(7, True, [Figure("runs", "beta", value, "1/α", 0.8)], [NotRun("runs", "River", "not installed")])
    monkeypatch.setattr(detectors, "evaluate", lambda **_: report)
    found = CliRunner().invoke(
        cli.command, ["detectors", "--json", str(tmp_path / "figures.json"), "--markdown", str(tmp_path / "t.md")]
    )
    assert found.exit_code == code
    assert ("MISSED" in found.output) == bool(code)
    assert f"| beta | {value} 1/α | ≥ 0.8 {'MISSED' if code else 'met'} |" in (tmp_path / "t.md").read_text()
    assert "not installed" in found.output
    assert f"{code} of 1 goals missed" in found.output
    assert msgspec.json.decode((tmp_path / "figures.json").read_bytes(), type=Report) == report


def test_small_run_of_the_real_simulations() -> None:
    size = healthy.Size(8, 4, 2, 3, 300, (1 / 20,), 1 / 20, 1)
    for kind in ("beta", "sticky scenes, 0 or 1"):
        figures = [*healthy.run_length_figures(kind, size, 1), *healthy.board_figures(kind, size, 1)]
        assert len(figures) == 4
        assert {figure.name for figure in figures} == {kind}
        assert all(np.isfinite(figure.value) for figure in figures)
    assert figures[2:] == healthy.board_figures(kind, size, 1)  # repeatable


def test_every_part_can_be_sent_to_another_process() -> None:
    for quick in (True, False):
        parts = detectors.parts(quick, 1)
        kinds = 2 * len(healthy.makers(0.05)) - 1
        assert len(parts) == 2 + kinds + len(healthy.STICKY) + len(peers.HEALTHY) + len(peers.CHANGING)
        assert all(pickle.loads(pickle.dumps(part)) == part for part in parts)  # noqa: S301


def test_a_year_of_sticky_streams() -> None:
    limit, accepted = healthy.year_figures("sticky scenes, smooth", healthy.Size(years=1), 1)
    assert limit.goal == accepted.goal == 1.0
    assert accepted.value == 0
    assert "0 in 1 years" in accepted.note


def test_delays_meet_their_goals() -> None:
    figures = delay.evaluate(500, 2)
    assert [figure for figure in figures if figure.met is False] == []
    assert sum(figure.met is True for figure in figures) == 5
    bounds = [figure.value for figure in figures if figure.name.startswith("bound")]
    assert bounds == pytest.approx([15.9, 94.2], abs=0.1)


def test_the_cusum_has_the_run_length_of_the_textbooks() -> None:
    """938 for k = 0.5 and h = 5, one-sided (Siegmund); a reference of 5000 adds a few per cent."""
    rng = np.random.default_rng(3)
    reference = rng.standard_normal(5000).tolist()
    runs = []
    for _ in range(100):
        detector, count = NormalScoreCusum(reference, 0.5, 5.0), 1
        while not detector.update(float(rng.standard_normal())):
            count += 1
        runs.append(count)
    assert np.mean(runs) == pytest.approx(938, rel=0.3)


def test_what_is_not_installed_is_said() -> None:
    names = list(peers.peers())
    assert names[:2] == ["Tidegauge, blocks as accepted", "normal-score CUSUM, k 0.5, h 11.3"]
    installed = importlib.util.find_spec("river") is not None
    assert len(names) == 2 + 3 * installed
    assert len(peers.not_run()) == 3 * (not installed)


def test_side_by_side_on_the_same_streams() -> None:
    size = peers.Size(streams=2, samples=400, acceptance=200, delays=2, longest=500)
    healthy_figures = peers.false_alarms("AR(0.5)", size, 1)
    assert len(healthy_figures) == len(peers.peers()) + 1
    assert {figure.group for figure in healthy_figures} == {healthy_figures[0].group}
    figures = peers.delays("beta", size, 1)
    found = next(f for f in figures if f.group == "samples until 50% disagreement is found, beta" and "Tide" in f.name)
    assert 5 <= found.value <= 60
    # An acceptance that would wait for more scenes is taken as it is: all have seen the same samples.
    assert len(peers.delays("sticky scenes, 0 or 1", size, 1)) == 2 * len(peers.peers())


def test_a_part_by_its_name() -> None:
    report = detectors.evaluate(True, 1, 1, only="delays")
    assert report.figures[0].group.startswith("delay of 50%") and report.missed == []
    with pytest.raises(TidegaugeError, match="no part"):
        detectors.evaluate(True, 1, 1, only="nothing of the kind")


def test_boards_with_few_scenes_are_judged_as_accepted_only() -> None:
    size = healthy.Size(streams=4, acceptances=4, boards=3, repeats=2, samples=300, small=1 / 20)
    (figure,) = healthy.board_figures(healthy.FEW_SCENES, size, 1)
    assert figure.goal == 0.05 and "as accepted" in figure.group


def test_tensor_errors_stay_as_long_as_the_scene() -> None:
    stream = healthy.makers(0.05)[healthy.FEW_SCENES][1](50, np.random.default_rng(1))
    losses, errors = stream.take_with_errors(400)
    changes = (np.diff(errors, axis=0) != 0).mean()
    assert changes == pytest.approx(0.03, abs=0.005)
    assert not np.any((np.diff(losses, axis=0) != 0) & (np.diff(errors, axis=0) == 0))
