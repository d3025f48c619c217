"""Hiding a picture in its tensor: what is left out is gone, what is kept is the same, in every form of a tensor."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.agent.config import PrivacyConfig
from tidegauge.bundles.redaction import Hiding, hidden
from tidegauge.pipeline.preprocess import input_tensor
from tidegauge.profile import Preprocess

WIDTH, HEIGHT = 40, 30
FORMS = (
    Preprocess(WIDTH, HEIGHT, scale=(1 / 255,) * 3),
    Preprocess(WIDTH, HEIGHT, mean=(123.0, 116.0, 103.0), scale=(0.017, 0.018, 0.019), layout="NHWC"),
    Preprocess(WIDTH, HEIGHT, mean=(128.0,) * 3, dtype="int8", channel_order="BGR"),
    Preprocess(WIDTH, HEIGHT, dtype="uint8"),
)


def picture(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


def planes(tensor: np.ndarray, form: Preprocess) -> np.ndarray:
    return tensor[0] if form.layout == "NCHW" else tensor[0].transpose(2, 0, 1)


@pytest.mark.parametrize("form", FORMS)
def test_only_the_region_is_kept(form: Preprocess) -> None:
    tensor = input_tensor(picture(), form)
    left = hidden(tensor, form, Hiding(keep=(0.25, 0.5, 0.75, 1.0)))
    assert (left.shape, left.dtype) == (tensor.shape, tensor.dtype)
    before, after = planes(tensor, form), planes(left, form)
    rows, columns = slice(15, 30), slice(10, 30)
    np.testing.assert_allclose(after[:, rows, columns], before[:, rows, columns], rtol=1e-6)
    outside = np.ones((HEIGHT, WIDTH), bool)
    outside[rows, columns] = False
    grey = planes(input_tensor(np.full((HEIGHT, WIDTH, 3), 128, np.uint8), form), form)
    np.testing.assert_allclose(after[:, outside], grey[:, outside], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_blur_leaves_the_mean_and_takes_the_details(form: Preprocess) -> None:
    before = planes(input_tensor(picture(), form), form).astype(np.float64)
    after = planes(hidden(input_tensor(picture(), form), form, Hiding(blur=0.1)), form).astype(np.float64)
    assert np.abs(after.mean() - before.mean()) < 0.05 * before.std()
    assert after.std() < 0.3 * before.std()
    neighbours = np.diff(after, axis=2).std() / np.diff(before, axis=2).std()
    assert neighbours < 0.05, "no two pixels side by side tell more than their neighbourhood"


def test_a_blur_is_as_wide_as_it_says() -> None:
    form = Preprocess(101, 101, scale=(1.0,) * 3)
    point = np.zeros((101, 101, 3), np.uint8)
    point[50, 50] = 255
    spread = hidden(input_tensor(point, form), form, Hiding(blur=0.08))[0, 0].astype(np.float64)
    weights, away = spread.sum(0) / spread.sum(), np.arange(101) - 50.0
    assert 8.08 <= np.sqrt((weights * away**2).sum()) < 9.5


def test_what_lies_outside_is_not_smeared_into_the_region() -> None:
    form = FORMS[0]
    first, second = picture(), picture()
    second[:, : WIDTH // 2] = picture(9)[:, : WIDTH // 2]
    hiding = Hiding(0.2, (0.5, 0.0, 1.0, 1.0))
    one, other = (hidden(input_tensor(each, form), form, hiding) for each in (first, second))
    np.testing.assert_array_equal(one, other)


@given(
    blur=st.floats(0.001, 0.5),
    corners=st.tuples(*[st.floats(0, 1)] * 4).filter(lambda c: c[0] < c[2] and c[1] < c[3]),
    form=st.sampled_from(FORMS),
)
@settings(max_examples=40, deadline=None)
def test_values_stay_within_what_a_picture_can_have(
    blur: float, corners: tuple[float, float, float, float], form: Preprocess
) -> None:
    low, high = (planes(input_tensor(np.full((HEIGHT, WIDTH, 3), v, np.uint8), form), form) for v in (0, 255))
    after = planes(hidden(input_tensor(picture(), form), form, Hiding(blur, corners)), form)
    assert (after >= low - 1e-3).all()
    assert (after <= high + 1e-3).all()


def test_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="no picture"):
        hidden(np.zeros((1, 3, 8, 8), np.float32), FORMS[0], Hiding(0.1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"keep": [0.5, 0, 0.5, 1]}', "leaves nothing"),
        ('{"keep": [0, 0.9, 1, 0.1]}', "leaves nothing"),
        ('{"keep": [0, 0, 1, 1.1]}', "keep"),
        ('{"blur": 0.6}', "blur"),
        ('{"encrypt_to": "abc"}', "encrypt_to"),
        (f'{{"encrypt_to": "{"0" * 64}"}}', "nothing can be encrypted"),
    ],
)
def test_settings_that_would_hide_nothing_are_refused(text: str, said: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.json.decode(text, type=PrivacyConfig)


def test_what_lies_on_the_board_is_blurred_where_bundles_are_encrypted() -> None:
    key = "5f" * 32
    assert not PrivacyConfig().at_rest
    assert PrivacyConfig(encrypt_to=key).at_rest.blur == 0.125
    assert PrivacyConfig(blur=0.3, encrypt_to=key).at_rest.blur == 0.3
    assert not PrivacyConfig(encrypt_to=key).hiding, "what only the recipient reads is whole"
