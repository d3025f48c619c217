"""Causes from synthetic residuals, with shapes other than the virtual board's faults."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tidegauge.compare.assignment import best_assignment
from tidegauge.compare.causes import evidence, find_cause, find_clipping
from tidegauge.compare.statistics import Encoding, noise_floor

Array = NDArray[Any]
ENCODING = Encoding("int8", 127 / 4.0)


def local(shape: tuple[int, int, int] = (16, 24, 24), seed: int = 0) -> NDArray[np.float32]:
    """A smooth scene, another in each channel."""
    random = np.random.default_rng(seed)
    coarse = random.normal(0, 1, (shape[0], 6, 6))
    large = np.kron(coarse, np.ones((1, -(-shape[1] // 6), -(-shape[2] // 6))))[:, : shape[1], : shape[2]]
    return (large * random.uniform(0.3, 1.2, (shape[0], 1, 1)) + random.normal(0, 0.1, shape)).astype(np.float32)


def cause_of(device: Array, reference: Array, encoding: Encoding = ENCODING) -> Any:
    codes = device if encoding.dtype == "float32" else encoding.codes(device).astype(encoding.dtype)
    return find_cause(evidence(codes, reference, encoding, noise_floor(encoding, 1.0)))


def rows(value: Array, first: int, last: int, by: float) -> Array:
    out = value.copy()
    out[:, first:last] += by
    return out


def columns(value: Array, first: int, last: int, by: float) -> Array:
    out = value.copy()
    out[:, :, first:last] *= by
    return out


def channels(value: Array, wrong: list[int], by: float) -> Array:
    out = value.copy()
    out[wrong] *= by
    return out


CASES: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "gain up": ("gain", lambda x: x * 1.17),
    "gain down": ("gain", lambda x: x / 17),
    "over 255": ("all_zero", lambda x: x / 255),  # nothing of it is left in 8 bits
    "sign": ("gain", lambda x: -x),
    "offset": ("offset", lambda x: x + 0.4),
    "offset clipped": ("offset", lambda x: x - 2.5),
    "cut above": ("saturation_high", lambda x: np.minimum(x, 0.3)),
    "cut below": ("saturation_low", lambda x: np.maximum(x, -0.2)),
    "step of 8": ("coarse_step", lambda x: np.rint(x * ENCODING.scale / 8) * 8 / ENCODING.scale),
    "one row": ("row_band", lambda x: rows(x, 23, 24, 0.8)),
    "rows": ("row_band", lambda x: rows(x, 5, 9, -0.5)),
    "last column": ("boundary_column", lambda x: columns(x, 23, 24, 1.9)),
    "columns": ("column_band", lambda x: columns(x, 3, 8, 0.2)),
    "channels": ("channels", lambda x: channels(x, [3, 11], -0.7)),
    "random order": ("channel_permutation", lambda x: x[np.random.default_rng(5).permutation(16)]),
    "two swapped": ("channel_permutation", lambda x: x[[2, 1, 0, *range(3, 16)]]),
    "transposed": ("transpose_hw", lambda x: x.transpose(0, 2, 1)),
    "zero": ("all_zero", lambda x: x * 0),
    "constant": ("constant", lambda x: x * 0 + 0.5),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_cause_is_named(case: str, seed: int) -> None:
    expected, change = CASES[case]
    reference = local(seed=seed)
    found = cause_of(change(reference), reference)
    assert found.name == expected, found
    assert found.explained is None or found.explained > 0.8


def test_height_and_width_swapped_in_a_tensor_that_is_not_square() -> None:
    reference = local((8, 20, 32))
    device = np.ascontiguousarray(reference.transpose(0, 2, 1)).reshape(reference.shape)
    assert cause_of(device, reference).name == "transpose_hw"


def test_other_values_have_no_cause() -> None:
    """An unrelated tensor: no cause is better than a wrong one."""
    assert cause_of(local(seed=8), local(seed=9)).name == "unknown"
    assert cause_of(np.abs(local(seed=5)), local(seed=4)).name == "unknown"


def test_a_nan_comes_before_everything() -> None:
    device = local()
    device[0, 0, 0] = np.nan
    found = cause_of(device, local(seed=9), Encoding("float32"))
    assert found.name == "non_finite" and "1 of" in found.detail


def test_details_carry_the_numbers() -> None:
    reference = local()
    assert "gain 1.3" in cause_of(reference * 1.3, reference).detail
    assert "÷255" in cause_of(reference / 255, reference, Encoding("float32")).detail
    assert "rows 5 to 8 of 24" in cause_of(rows(reference, 5, 9, -0.5), reference).detail
    swapped = cause_of(reference[[2, 1, 0, *range(3, 16)]], reference).detail
    assert "2 of 16" in swapped and "0←2" in swapped


def test_a_range_that_is_too_narrow() -> None:
    reference = local() * 4
    codes = ENCODING.codes(reference).astype(np.int8)
    found = find_clipping(evidence(codes, reference, ENCODING, noise_floor(ENCODING, 1.0)))
    assert found.name in ("saturation_high", "saturation_low") and "most it can hold" in found.detail


def test_assignment_is_the_best_of_all() -> None:
    random = np.random.default_rng(0)
    for size in (1, 2, 4, 6):
        for _ in range(10):
            cost = random.normal(0, 1, (size, size))
            chosen = best_assignment(cost)
            best = min(sum(cost[i, p[i]] for i in range(size)) for p in permutations(range(size)))
            assert sorted(chosen) == list(range(size))
            assert cost[np.arange(size), chosen].sum() == pytest.approx(best)


def exact_cause(device: Array, reference: Array) -> Any:
    """The cause where the local reference predicts every healthy code."""
    codes = ENCODING.codes(device).astype(ENCODING.dtype)
    return find_cause(evidence(codes, reference, ENCODING, noise_floor(ENCODING, 1.0), exact=True))


def sheared(value: Array, pitch: int) -> Array:
    channels, height, width = value.shape
    rows, columns = np.indices((height, width))
    order = (rows * (width + pitch) + columns) % (height * width)
    return value.reshape(channels, -1)[:, order.ravel()].reshape(value.shape)


@pytest.mark.parametrize("pitch", [1, -3, 8])
def test_a_wrong_pitch_is_named_with_its_size(pitch: int) -> None:
    for find in (cause_of, exact_cause):
        found = find(sheared(local(), pitch), local())
        assert found.name == "row_shear" and found.value == pitch, found


@pytest.mark.parametrize("bits", [2, 3])
@pytest.mark.parametrize("find", [cause_of, exact_cause])
def test_lost_bits_are_a_coarse_step_and_no_offset(bits: int, find: Callable[[Array, Array], Any]) -> None:
    """Whether they are lost before or after rounding, in a large layer, and in ten logits."""
    logits = np.linspace(-2.9, 3.4, 10, dtype=np.float32).reshape(10, 1, 1)
    step = 2.0**bits
    for reference in (local(), logits):
        for exact in (reference * ENCODING.scale, np.rint(reference * ENCODING.scale)):
            device = np.floor(exact / step) * step / ENCODING.scale
            found = find(device.astype(np.float32), reference)
            assert found.name == "coarse_step" and found.value == step, found


def test_a_few_codes_that_lie_on_a_grid_by_chance_are_no_coarse_step() -> None:
    reference = np.array([-2.0, -1.0, 0.5, 1.1, 3.0], np.float32).reshape(5, 1, 1)
    device = np.rint(reference * ENCODING.scale / 4) * 4 / ENCODING.scale
    assert cause_of(device.astype(np.float32), reference).name != "coarse_step"


@pytest.mark.parametrize(("way", "word"), [(np.floor, "down"), (np.ceil, "up"), (np.trunc, "towards zero")])
def test_rounding_to_another_side_is_named(way: Callable[[Array], Array], word: str) -> None:
    found = exact_cause((way(local() * ENCODING.scale) / ENCODING.scale).astype(np.float32), local())
    assert found.name == "rounding" and word in found.detail


def test_codes_off_by_one_here_and_there_are_rounding_and_a_small_shift_is_not() -> None:
    random = np.random.default_rng(3)
    off = np.where(random.random(local().shape) < 0.01, random.choice([-1, 1], local().shape), 0)
    found = exact_cause(local() + (off / ENCODING.scale).astype(np.float32), local())
    assert found.name == "rounding" and "off by one" in found.detail
    shifts = random.choice([-0.05, 0.05], (16, 1, 1)) / ENCODING.scale
    assert exact_cause(local() + shifts.astype(np.float32), local()).name == "unknown"


def test_one_code_in_one_channel_is_its_channel_and_one_column_its_border() -> None:
    step = np.float32(1 / ENCODING.scale)
    device = local().copy()
    device[5] += step * np.where(np.indices((24, 24)).sum(0) % 2, -1, 1).astype(np.float32)
    assert exact_cause(device, local()).name == "channels"
    device = local().copy()
    device[:, :, 0] += step
    assert exact_cause(device, local()).name == "boundary_column"
    device = local().copy()
    device[:, :, 4:7] += step
    assert exact_cause(device, local()).name == "column_band"


def test_a_gain_that_moves_few_codes_is_a_gain() -> None:
    held = ENCODING.values(ENCODING.codes(local()))
    found = exact_cause((held * 1.012).astype(np.float32), local())
    assert found.name == "gain" and abs(found.value - 1.012) < 0.003
