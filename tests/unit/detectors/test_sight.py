"""What is seen of a frame, and of an input tensor."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.detectors.camera import CameraReference, conditions, reference_of
from tidegauge.detectors.contexts import LightContext
from tidegauge.detectors.sight import Sight, input_features, judge, picture_of, see, thinned
from tidegauge.pipeline.preprocess import input_tensor
from tidegauge.profile import Preprocess


def grey(level: int, height: int = 48, width: int = 64) -> np.ndarray:
    return np.full((height, width, 3), level, np.uint8)


def test_light_and_look_of_a_frame() -> None:
    picture = grey(100)
    picture[..., 2] = 160  # red
    seen = see(picture)
    assert seen is not None
    assert seen.light.luma == pytest.approx(100 + 0.299 * 60, abs=0.5)
    assert seen.light.chroma == pytest.approx(60)
    assert conditions(seen.look, None) == set()
    black = see(grey(5))
    assert black is not None
    assert conditions(black.look, None) == {"black"}


def test_colour_light_and_its_absence_are_contexts() -> None:
    day, night = grey(120), grey(120)
    day[..., 0] = 60
    assert [LightContext().update(0, seen.light) for seen in (see(day), see(night)) if seen] == ["day", "infrared"]


def street(brightness: float, shift: int = 0) -> Sight:
    """A fixed view with noise; `shift` turns the camera away."""
    picture = np.full((48, 64, 3), (120.0, 100.0, 90.0))
    picture[6:24, 10:26] = (60, 150, 210)
    picture[30:, 36:] = (40, 60, 50)
    picture[4:12, 40:60:4] = (230, 220, 240)
    picture = np.roll(picture, (shift, shift), (0, 1)) * brightness
    picture += np.random.default_rng(1).normal(0, 3, picture.shape)
    seen = see(np.clip(picture, 0, 255).astype(np.uint8))
    assert seen is not None
    return seen


class TestJudge:
    DAY: ClassVar[dict[str, CameraReference]] = {"day": reference_of([street(1.0).look])}

    def test_dusk_is_no_fault_though_it_is_less_sharp(self) -> None:
        light = LightContext(hold=10.0)
        seen = [judge(street(1.0 if second < 5 else 0.3), light, second, self.DAY) for second in range(40)]
        assert seen == [set()] * 40
        assert light.context == "low_light"

    def test_a_camera_that_is_turned_away_at_dusk_is_covered_all_the_same(self) -> None:
        light = LightContext(hold=10.0)
        seen = [judge(street(1.0 if second < 5 else 0.3, 24), light, second, self.DAY) for second in range(40)]
        assert seen == [{"covered"}] * 40
        assert light.context == "low_light"

    def test_black_moves_no_light(self) -> None:
        light = LightContext(hold=1.0)
        judge(street(1.0), light, 0, {})
        assert [judge(street(0.01), light, second, {}) for second in range(1, 9)] == [{"black"}] * 8
        assert light.context == "day"


def test_a_large_frame_costs_no_more_than_a_small_one_and_a_tiny_one_is_not_judged() -> None:
    assert thinned(grey(1, 1080, 1920)).shape == (180, 320, 3)
    assert thinned(grey(1, 360, 640)).shape[1] < 2 * 320
    assert see(grey(1, 1080, 1920)) is not None
    assert see(grey(100, 16, 16)) is None


@settings(max_examples=30, deadline=None)
@given(
    layout=st.sampled_from(["NCHW", "NHWC"]),
    order=st.sampled_from(["RGB", "BGR"]),
    mean=st.tuples(*[st.floats(0, 128)] * 3),
    scale=st.tuples(*[st.floats(1 / 255, 1)] * 3),
    seed=st.integers(0, 1000),
)
def test_an_input_tensor_shows_the_picture_it_was_made_of(
    layout: str, order: str, mean: tuple[float, ...], scale: tuple[float, ...], seed: int
) -> None:
    preprocess = Preprocess(8, 6, mean, scale, order, layout)  # type: ignore[arg-type]
    picture = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    shown = picture_of(input_tensor(picture, preprocess), preprocess)
    np.testing.assert_allclose(shown, picture, atol=1e-2)


def test_an_input_that_is_no_picture_is_told_apart() -> None:
    with pytest.raises(ValueError, match="input tensor"):
        picture_of(np.zeros((1, 10)), Preprocess(8, 6))


def test_features_of_an_input() -> None:
    features = input_features(grey(100).astype(np.float32))
    assert features == pytest.approx(
        {"luma": 100, "contrast": 0, "chroma": 0, "sharpness": 0, "dark": 0, "bright": 0}, abs=1e-3
    )
    noisy = np.random.default_rng(1).integers(0, 256, (48, 64, 3)).astype(np.float32)
    assert input_features(noisy)["sharpness"] > 5
    assert input_features(grey(3).astype(np.float32))["dark"] == 1
    assert input_features(grey(255).astype(np.float32))["bright"] == 1
