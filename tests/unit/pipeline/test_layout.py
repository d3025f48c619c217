from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.pipeline.layout import ALIGNMENT, RingSpec, SampleLayout, sample_layout
from tidegauge.tensors import ELEMENT_SIZES, TensorSpec

tensors = st.builds(
    TensorSpec,
    name=st.sampled_from(["a", "b", "c"]),
    shape=st.lists(st.integers(0, 9), min_size=0, max_size=4).map(tuple),
    dtype=st.sampled_from(sorted(ELEMENT_SIZES)),
)
groups = st.lists(tensors, max_size=4).map(tuple)


@settings(max_examples=100)
@given(inputs=groups, outputs=groups)
def test_tensors_of_a_sample_are_aligned_and_never_overlap(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> None:
    layout = sample_layout(inputs, outputs)
    assert tuple(region.spec for region in layout.inputs) == inputs
    assert tuple(region.spec for region in layout.device) == outputs
    assert tuple(region.spec for region in layout.reference) == outputs
    end = 0
    for region in (*layout.inputs, *layout.device, *layout.reference):
        assert region.offset % ALIGNMENT == 0
        assert region.offset >= end
        end = region.offset + region.spec.nbytes
    assert end <= layout.nbytes
    assert layout.nbytes % ALIGNMENT == 0, "the next slot must start aligned too"


def test_layout_of_a_known_sample() -> None:
    layout = sample_layout((TensorSpec("x", (1, 3, 2, 2), "uint8"),), (TensorSpec("y", (17,), "float32"),))
    assert [region.offset for region in (*layout.inputs, *layout.device, *layout.reference)] == [0, 64, 192]
    assert layout.nbytes == 320
    assert RingSpec(slots=4, slot_bytes=layout.nbytes).nbytes == 1280
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(layout), type=SampleLayout) == layout
