"""Integer kernels of ONNX Runtime and LiteRT as devices: arithmetic that is not the twin's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from needs import unless
from tidegauge.evaluation import independent_trial, integer_kernels
from tidegauge.evaluation.trial import healthy, learn_healthy, try_faults, value_of
from tidegauge.virtualboard.faults import Fault


@pytest.mark.parametrize(("network", "per_channel"), [("residual", False), ("inverted", True)])
def test_onnx_runtimes_integer_kernels_are_healthy_to_the_last_code(
    tmp_path: Path, network: str, per_channel: bool
) -> None:
    bench = integer_kernels.build(tmp_path, network, per_channel)
    (answer,) = healthy(bench, [1])
    assert answer.exit_code == 0 and answer.unmatched == () and answer.recovered == ()
    assert sum(layer.weights == "as compiled" for layer in answer.layers) >= 7
    assert max(layer.codes_off_by_more or 0.0 for layer in answer.layers) == 0.0
    faulty = try_faults(bench, [Fault("gap", "gain", 1.2)], value_of(bench, 2))
    assert faulty is not None and faulty.hit and faulty.cause


def test_operators_that_stay_float_read_the_codes_of_the_input(tmp_path: Path) -> None:
    bench = integer_kernels.build(tmp_path, "curve")
    (answer,) = healthy(bench, [1])
    assert answer.exit_code == 0 and max(layer.codes_off_by_more or 0.0 for layer in answer.layers) == 0.0


@unless(independent_trial.lite_missing() is None, "LiteRT or its quantizer is not installed")
def test_litert_is_judged_by_its_own_healthy_runs(tmp_path: Path) -> None:
    from tidegauge.evaluation import lite_kernels

    bench = lite_kernels.build(tmp_path, "inverted", "optimised")
    value = value_of(bench, 1)
    assert np.array_equal(bench.run(value)["depth"], bench.run(value)["depth"])
    known = learn_healthy(bench, 3)
    habits = independent_trial.habits(known)
    assert habits["pooling"].reach >= 0.1  # its mean rounds otherwise than to the nearest code
    assert habits["convolution"].more == 0.0
    (answer,) = healthy(bench, [9])
    assert [c.layer for c in (*answer.culprits, *answer.recovered)] == []
    found = try_faults(bench, [Fault("depth", "band", 0.1)], value)
    assert found is not None and found.hit and found.cause
