"""Each symptom is found on its fault, and none on a healthy pair, whatever the scene."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.losses.elements import ShapeMismatch
from tidegauge.losses.symptoms import symptoms
from tidegauge.profile import Output

HEIGHT, WIDTH = 96, 144
STEP = 1 / 255
OUTPUT = Output("y", "image", STEP)
RAW = Output("y", "raw", STEP)


def photo(seed: int = 0, base: float = 0.45, contrast: float = 0.3, colour: float = 0.15) -> np.ndarray:
    """A scene of smooth shapes, an edge and texture: 1 × 3 × height × width, 0…1, channels alike but for `colour`."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    grey = np.zeros((HEIGHT, WIDTH))
    for _ in range(5):
        fy, fx, phase = rng.uniform(0, 0.1), rng.uniform(0, 0.1), rng.uniform(0, 6)
        grey += np.sin(fy * y + fx * x + phase) / 3
    grey += 0.5 * ((x - WIDTH / 2) ** 2 + (y - HEIGHT / 3) ** 2 < (HEIGHT / 4) ** 2)
    grey += rng.normal(0, 0.05, grey.shape)
    tint = np.stack([np.cos(0.07 * x + k * 2.1) * np.sin(0.05 * y + k) for k in range(3)])
    picture = base + contrast * grey + colour * tint + colour * np.array([0.6, 0.0, -0.6])[:, None, None]
    return np.clip(picture, 0, 1).astype(np.float32)[None]


def healthy(reference: np.ndarray, seed: int = 9) -> np.ndarray:
    """What an int8 device makes of it: codes, off by one step here and there, clipped to the range."""
    noise = np.random.default_rng(seed).integers(-1, 2, reference.shape)
    codes = np.clip(np.round(reference * 255) + noise, 0, 255)
    return (codes / 255).astype(np.float32)


def at(rows: slice, value: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    def fault(device: np.ndarray) -> np.ndarray:
        device = device.copy()
        device[..., rows, :] = value(device[..., rows, :])
        return device

    return fault


def columns(device: np.ndarray) -> np.ndarray:
    device = device.copy()
    device[..., 32:48] = device[..., 32:48] * 0.5
    return device


def interlaced(device: np.ndarray) -> np.ndarray:
    device = device.copy()
    device[..., ::2, :] = np.clip(device[..., ::2, :] + 8 * STEP, 0, 1)
    return device


def garbage(part: np.ndarray) -> np.ndarray:
    return np.random.default_rng(4).permuted(part.reshape(-1)).reshape(part.shape)


def pitch(written: int, read: int) -> Callable[[np.ndarray], np.ndarray]:
    """A buffer written with rows of WIDTH + `written` and read with rows of WIDTH + `read`."""

    def fault(device: np.ndarray) -> np.ndarray:
        planes = []
        for plane in device[0]:
            buffer = np.zeros((HEIGHT, WIDTH + written), np.float32)
            buffer[:, :WIDTH] = plane
            memory = np.concatenate([buffer.ravel(), np.zeros(HEIGHT * (read + 1), np.float32)])
            rows = np.arange(HEIGHT)[:, None] * (WIDTH + read) + np.arange(WIDTH)
            planes.append(memory[np.minimum(rows, memory.size - 1)])
        return np.stack(planes)[None]

    return fault


def one_channel(device: np.ndarray) -> np.ndarray:
    device = device.copy()
    device[:, 1] = garbage(device[:, 1])
    return device


FAULTS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "black": ("black_output", np.zeros_like),
    "black but for noise of a step": ("black_output", lambda d: healthy(np.zeros_like(d))),
    "grey": ("constant_output", lambda d: np.full_like(d, 0.5)),
    "one colour": ("constant_output", lambda d: d * 0 + np.array([0.2, 0.5, 0.8], np.float32)[:, None, None]),
    "times 255": ("scale_error", lambda d: d * 255),
    "over 255": ("black_output", lambda d: np.round(d / 255 * 255) / 255 / 255),
    "over 4": ("scale_error", lambda d: d / 4),
    "half, in codes": ("scale_error", lambda d: np.floor(d * 255 / 2) / 255),
    "times 2, clipped": ("scale_error", lambda d: np.clip(d * 2, 0, 1)),
    "offset up": ("offset", lambda d: d + 20 * STEP),
    "offset down": ("offset", lambda d: np.clip(d - 20 * STEP, 0, 1)),
    "clipped high": ("saturated_high", lambda d: np.where(d > 0.6, 1.0, d).astype(np.float32)),
    "clipped low": ("saturated_low", lambda d: np.where(d < 0.4, 0.0, d).astype(np.float32)),
    "rows lost": ("band", at(slice(40, 48), lambda part: part * 0)),
    "one row lost": ("band", at(slice(40, 41), lambda part: part * 0)),
    "rows of garbage": ("band", at(slice(60, 80), garbage)),
    "rows a little brighter": ("band", at(slice(48, 96), lambda part: part + 6 * STEP)),
    "columns": ("band", columns),
    "every other row": ("band", interlaced),
    "red and blue swapped": ("channel_swap", lambda d: d[:, ::-1].copy()),
    "columns for rows": ("transposed", lambda d: d.transpose(0, 1, 3, 2).copy().reshape(d.shape)),
    "pixels for planes": ("transposed", lambda d: d.transpose(0, 2, 3, 1).copy().reshape(d.shape)),
    "rows written 16 wider": ("row_shear", pitch(16, 0)),
    "rows read 3 wider": ("row_shear", pitch(0, 3)),
    "garbage in green": ("channel_subset", one_channel),
    "channels rotated": ("channel_swap", lambda d: np.roll(d, 1, axis=1)),
}


MOVED = ["columns for rows", "pixels for planes", "rows written 16 wider", "rows read 3 wider", "garbage in green"]


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_shows_its_symptom(name: str) -> None:
    expected, fault = FAULTS[name]
    for seed in (0, 1):
        reference = photo(seed)
        assert expected in symptoms(OUTPUT, fault(healthy(reference)).astype(np.float32), reference)


@pytest.mark.parametrize(
    "name", ["rows a little brighter", "columns", "times 255", "red and blue swapped", "grey", *MOVED]
)
def test_a_simple_fault_has_one_name(name: str) -> None:
    expected, fault = FAULTS[name]
    reference = photo(3)
    assert symptoms(OUTPUT, fault(healthy(reference)).astype(np.float32), reference) == (expected,)


SCENES = {
    "day": photo(1),
    "grey scene": photo(2, colour=0.0),
    "dark": photo(3, base=0.01, contrast=0.01, colour=0.005),
    "nearly black": photo(4, base=0.002, contrast=0.003, colour=0.001),
    "black": np.zeros((1, 3, HEIGHT, WIDTH), np.float32),
    "white": np.ones((1, 3, HEIGHT, WIDTH), np.float32),
    "bright": photo(5, base=0.99, contrast=0.02, colour=0.01),
    "half blown": photo(6, base=0.9, contrast=0.5),
    "flat grey": np.full((1, 3, HEIGHT, WIDTH), 0.5, np.float32),
    "few steps": photo(7, base=0.5, contrast=0.01, colour=0.004),
    "stripes": np.broadcast_to((np.arange(HEIGHT) // 8 % 2 * 0.8 + 0.1)[:, None], (1, 3, HEIGHT, WIDTH))
    .astype(np.float32)
    .copy(),
    "one bright lamp": np.where(photo(8) > 0.97, np.float32(1), np.float32(0.01)),
}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("previous", ["none", "same", "other"])
def test_a_healthy_pair_has_no_symptom(scene: str, previous: str) -> None:
    reference = SCENES[scene]
    earlier = {"none": None, "same": reference, "other": photo(11)}[previous]
    for seed in (1, 2):
        device = healthy(reference, seed)
        assert symptoms(OUTPUT, device, reference, earlier, healthy(photo(11))) == ()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.floats(0, 1),
    st.floats(0, 0.6),
    st.floats(0, 0.3),
    st.sampled_from([-1, 1, 0]),
    st.booleans(),
)
def test_no_healthy_scene_has_a_symptom(
    seed: int, base: float, contrast: float, colour: float, lean: int, changed: bool
) -> None:
    """`lean`: a device that always rounds to one side."""
    reference = photo(seed, base, contrast, colour)
    noise = np.random.default_rng(seed).integers(
        min(lean, 0) if lean else -1, (max(lean, 0) if lean else 1) + 1, reference.shape
    )
    device = (np.clip(np.round(reference * 255) + noise, 0, 255) / 255).astype(np.float32)
    assert symptoms(OUTPUT, device, reference, photo(seed + 1, base, contrast, colour) if changed else None) == ()


def test_scale_error_with_horizontal_structure_is_no_band() -> None:
    reference = SCENES["stripes"]
    assert "band" not in symptoms(OUTPUT, healthy(reference) * np.float32(0.5), reference)


def test_an_error_that_follows_the_content_is_no_band() -> None:
    levels = np.array([0.1, 0.5, 0.9])[np.arange(HEIGHT) // 8 % 3]
    reference = np.broadcast_to(levels[:, None], (1, 3, HEIGHT, WIDTH)).astype(np.float32).copy()
    assert "band" not in symptoms(OUTPUT, np.minimum(healthy(reference), np.float32(0.7)), reference)


def test_a_constant_output_is_judged_no_further() -> None:
    flat = np.full_like(photo(), 0.5)
    assert symptoms(OUTPUT, healthy(flat) * 0 + np.float32(0.5), photo(2), flat) == ("constant_output",)


def test_stale_output_lags_one_input() -> None:
    before, now = photo(1), photo(2)
    assert symptoms(OUTPUT, healthy(before), now, before) == ("stale_output",)
    assert "stale_output" not in symptoms(OUTPUT, healthy(now), now, before)


def test_a_stuck_output_is_stale_once_the_scene_changes() -> None:
    stuck = healthy(photo(5))
    assert "stale_output" in symptoms(OUTPUT, stuck, photo(2), photo(1), stuck)
    assert "stale_output" not in symptoms(OUTPUT, stuck, photo(5), photo(5), stuck)


def test_non_finite_is_named_and_nothing_else_is_judged() -> None:
    device = np.zeros_like(photo())
    device[0, 1, 2, 3] = np.nan
    assert symptoms(OUTPUT, device, photo()) == ("non_finite",)
    reference = photo().copy()
    reference[0, 0, 0, 0] = np.inf
    assert symptoms(OUTPUT, np.zeros_like(reference), reference) == ()


def test_layout_of_the_profile_is_used() -> None:
    nhwc = Output("y", "image", STEP, layout="NHWC")
    reference = np.ascontiguousarray(photo().transpose(0, 2, 3, 1))
    assert symptoms(nhwc, healthy(reference)[..., ::-1].copy(), reference) == ("channel_swap",)


@pytest.mark.parametrize("name", ["grey", "times 255", "over 4", "offset up", "clipped high"])
def test_raw_outputs_show_what_needs_no_picture(name: str) -> None:
    expected, fault = FAULTS[name]
    reference = photo().reshape(1, -1)
    assert expected in symptoms(RAW, fault(healthy(photo())).astype(np.float32).reshape(1, -1), reference)
    assert symptoms(RAW, healthy(reference), reference) == ()


def test_raw_zeros_are_constant_not_black() -> None:
    reference = photo().reshape(-1)
    assert "constant_output" in symptoms(RAW, np.zeros_like(reference), reference)


def test_a_single_number_is_no_symptom() -> None:
    assert symptoms(RAW, np.array([0.5]), np.array([0.501])) == ()


def test_shapes_must_agree() -> None:
    with pytest.raises(ShapeMismatch):
        symptoms(OUTPUT, np.zeros((1, 3, 4, 4)), np.zeros((1, 3, 4, 5)))
    with pytest.raises(ShapeMismatch):
        symptoms(OUTPUT, healthy(photo()), photo(), np.zeros((1, 3, 4, 5)))
