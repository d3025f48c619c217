"""The evaluation of the comparison: sizes and sets are what they are said to be, and a miss is a miss."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.cli import evaluate as cli
from tidegauge.evaluation import comparison, trial
from tidegauge.evaluation.comparison import Board, Result, wilson
from tidegauge.evaluation.figures import Figure, Report
from tidegauge.evaluation.operator_trial import Imports, try_imports
from tidegauge.evaluation.oracle_trial import Oracle
from tidegauge.evaluation.trial import Outcome
from tidegauge.virtualboard.faults import Fault


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 500), st.data())
def test_wilsons_interval_holds_the_share_and_solves_its_equation(cases: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, cases))
    low, high = wilson(right, cases)
    share = right / cases
    assert 0 <= low <= share + 1e-12 and share - 1e-12 <= high <= 1
    for bound in (low, high):
        if 0 < bound < 1:
            assert abs(share - bound) == pytest.approx(1.959964 * math.sqrt(bound * (1 - bound) / cases), abs=1e-7)


def test_a_miss_counts_and_what_is_too_small_does_not() -> None:
    right = Outcome("a", True, 0.5, True, True, True)
    wrong = Outcome("b", True, 0.05, True, False, False)
    small = Outcome("c", False, 1e-4, False, False, None)
    outcomes = {name: [right, wrong, small] for name in comparison.SETS}
    oracle = Oracle(5, ("stem: gain",), 3, {8: 0.9995}, {8: 0.9}, {"one channel": (3, 4)})
    figures = comparison._figures([Result(Board("n", "8 bit", 3, 5, 1), outcomes, oracle, {})], [])
    by_name = {(f.group, f.name): f for f in figures}
    assert by_name["Faults gross, at outputs", "culprit right (first named)"].value == 100
    assert by_name["Faults gross, at outputs", "layer and cause right"].met is False
    assert by_name["Two faults at once", "both named, and nothing else"].value == 50
    assert by_name["Faults gross, at outputs", "named, 0 to 0.1 % of codes changed"].value == 0
    assert by_name["Healthy inputs", "false culprits"].met is False
    group = "Code oracle on healthy layers"
    assert by_name[group, "codes off by more than one"].met is False
    assert by_name[group, "codes equal at 8 bits, ties aside"].met is True
    assert by_name[group, "one channel one code off, layer named alone"].value == 15
    assert comparison._rate("g", "n", 0, 0, 95.0).met is False  # no case is no success


def test_a_board_is_measured_and_the_same_seed_gives_the_same_cases(tmp_path: Path) -> None:
    board = Board("residual", "8 bit", 1, 1, 5)
    result = comparison.measure(board)
    assert {name: len(found) for name, found in result.outcomes.items()} == dict.fromkeys(comparison.SETS, 1)
    assert result.oracle.false == () and result == comparison.measure(board)
    bench = trial.build(tmp_path / "bench", "residual", "8 bit")
    value = trial.value_of(bench, 1)
    gross = trial.try_faults(bench, [Fault("b1_c1", "gain", 1.5)], value)
    assert gross is not None and gross.detectable and gross.hit and gross.cause and gross.changed > 0.1
    one = trial.try_faults(bench, [Fault("b1_c1", "tiny", 1.0)], value)
    assert one is not None and not one.detectable
    assert trial.try_faults(bench, [Fault("b1_c1", "saturate", 2.0)], value) is None  # changes nothing
    # Beside a layer of zeros the other fault changes nothing: it is not there to be found.
    assert trial.try_faults(bench, [Fault("gap", "zero"), Fault("flat", "gain", 1.5)], value) is None
    assert bench.judge(value, bench.run(value)).culprits == ()


def test_a_noisy_device_is_healthy_beside_its_baseline_and_a_fault_stands_out(tmp_path: Path) -> None:
    bench = trial.build(tmp_path / "bench", "residual", "6 bit")
    assert {layer.quant.scale for layer in bench.network.tensors() if layer.name == "input_netFormat"} == {255 / 4}
    trial.make_noisy(bench)
    answers = list(trial.healthy(bench, range(3)))
    assert all((layer.codes_off_by_one or 0) > 0.002 for layer in answers[0].layers if layer.name.startswith("b1"))
    assert [c.layer for answer in answers for c in (*answer.culprits, *answer.recovered)] == []
    found = trial.try_faults(bench, [Fault("b1_c1", "boundary_column", 0.1)], trial.value_of(bench, 50))
    assert found is not None and found.detectable and found.hit and found.cause


@pytest.mark.parametrize("network", ["detector", "transformer"])
def test_every_architecture_compiles_and_is_healthy(tmp_path: Path, network: str) -> None:
    bench = trial.build(tmp_path / "bench", network, "8 bit")
    (answer,) = trial.healthy(bench, [3])
    assert answer.exit_code == 0 and answer.recovered == () and answer.coverage.share == 1.0
    assert max(layer.codes_off_by_more or 0.0 for layer in answer.layers) == 0.0


def test_size_is_counted_in_codes() -> None:
    class Layer:
        class quant:
            is_float = False

    healthy = np.zeros(1000, np.uint8)
    faulty = healthy.copy()
    faulty[:3], faulty[3:5] = 1, 2
    assert trial.change(Layer, healthy, faulty) == (0.005, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "code"), [(99.0, 0), (90.0, 1)])
def test_the_command_prints_the_seed_and_fails_where_a_goal_is_missed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: float, code: int
) -> None:
    seeds = []

    def fake(quick: bool, seed: int, *_: object, **__: object) -> Report:
        seeds.append(seed)
        return Report(seed, quick, [Figure("faults", "hit", value, "%", 95.0)], [])

    monkeypatch.setattr(comparison, "evaluate", fake)
    found = CliRunner().invoke(cli.command, ["comparison", "--quick", "--json", str(tmp_path / "f.json")])
    assert found.exit_code == code and f"Seed {seeds[0]}." in found.output
    assert msgspec.json.decode((tmp_path / "f.json").read_bytes(), type=Report).seed == seeds[0]
    CliRunner().invoke(cli.command, ["comparison", "--seed", "4"])
    assert seeds[1] == 4


def test_healthy_layers_with_many_ties_are_not_blamed(tmp_path: Path) -> None:
    """Many values of a HardSigmoid lie on the middle between two codes."""
    bench = trial.build(tmp_path / "bench", "inverted", "8 bit")
    assert [a.sentence for a in trial.healthy(bench, range(2)) if a.culprits or a.recovered] == []


def test_a_mistaken_import_is_compared_with_the_model_as_it_was() -> None:
    found = try_imports(Imports("inverted", 2, 5))
    assert len(found) == 2 and found == try_imports(Imports("inverted", 2, 5))
    assert all(case.hit and case.cause and case.changed > 0 and " taken for " in case.what for case in found)
