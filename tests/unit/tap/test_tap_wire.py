"""What the tap's two sides say to each other, read as it was told; and the picture that a tensor was made of."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.pipeline.preprocess import input_tensor
from tidegauge.profile import Preprocess
from tidegauge.tap import wire
from tidegauge.tap.picture import picture
from tidegauge.tap.wire import Kind, Session, Tensor

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)
TENSORS = st.builds(
    Tensor,
    NAMES,
    st.lists(st.integers(1, 9), min_size=1, max_size=8).map(tuple),
    st.sampled_from(sorted(wire.ELEMENT_NUMBERS)),
)
GROUPS = st.lists(TENSORS, min_size=1, max_size=4, unique_by=lambda tensor: tensor.name).map(tuple)


@settings(max_examples=60)
@given(inputs=GROUPS, outputs=GROUPS, virtual=st.booleans())
def test_a_session_is_read_as_it_was_told(
    inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], virtual: bool
) -> None:
    told = Session(inputs, outputs, "runtime", "provider", virtual)
    places = wire.places(inputs, outputs)
    if places.nbytes > wire.MAX_SLOT:
        return
    kind, _, _, _, payload = wire.head(wire.opened(told))
    assert kind is Kind.OPENED
    assert wire.read_opened(payload) == told
    tensors = (*inputs, *outputs, *inputs)
    ends = [
        (at, at + t.nbytes) for at, t in zip((*places.inputs, *places.outputs, *places.asked), tensors, strict=True)
    ]
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))
    assert ends[-1][1] <= places.nbytes


@settings(max_examples=200)
@given(data=st.binary(max_size=600), begin=st.sampled_from((b"", wire.packet(Kind.OPENED), wire.packet(Kind.HELLO))))
def test_bytes_from_elsewhere_are_read_or_refused(data: bytes, begin: bytes) -> None:
    try:
        kind, _, _, _, payload = wire.head(begin + data)
        if kind is Kind.OPENED:
            assert wire.places(*wire.read_opened(payload)[:2]).nbytes <= wire.MAX_SLOT
        elif kind is Kind.HELLO:
            wire.read_hello(payload)
    except wire.WireError:
        return


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("order", ["RGB", "BGR"])
def test_a_picture_comes_back_from_its_tensor(layout: Any, order: Any) -> None:
    given = np.random.default_rng(1).integers(0, 256, (24, 32, 3), np.uint8)
    numbers = Preprocess(32, 24, (123.7, 116.3, 103.5), (0.017, 0.018, 0.0171), order, layout)
    again = picture(input_tensor(given, numbers), numbers)
    assert again is not None
    assert np.array_equal(again, given)
