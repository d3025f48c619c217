"""How far a healthy device is from its reference, by output."""

from __future__ import annotations

import pytest

from tidegauge.detectors.noise import Noise, noise


def test_median_and_upper_quantile_of_what_is_defined() -> None:
    errors: list[tuple[float | None, float | None]] = [(0.01 * n, float(n)) for n in range(101)]
    found = noise([*errors, (None, 3.0), (None, None)])
    assert (found.samples, found.undefined) == (103, 2)
    assert found.nmse == (pytest.approx(0.5), pytest.approx(0.95))
    assert found.max_steps is not None
    assert found.max_steps[0] == pytest.approx(49.5, abs=1)


def test_nothing_defined_is_no_number() -> None:
    assert noise([(None, None)] * 3) == Noise(3, 3, None, None)
    with pytest.raises(ValueError, match="no samples"):
        noise([])
    with pytest.raises(ValueError, match="not finite"):
        noise([(float("nan"), 1.0)])
