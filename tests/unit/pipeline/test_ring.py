from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tidegauge.pipeline.layout import Region, RingSpec, sample_layout
from tidegauge.pipeline.ring import Ring, SlotError
from tidegauge.tensors import TensorSpec

FLOATS = TensorSpec("y", (2, 5), "float32")


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_both_ends_see_the_same_tensor_in_the_same_slot() -> None:
    layout = sample_layout((TensorSpec("x", (7,), "int8"),), (FLOATS,))
    writer = Ring.create(RingSpec(3, layout.nbytes), "test")
    reader = Ring(writer.spec, os.dup(writer.fd))
    try:
        value = np.arange(10, dtype=np.float32).reshape(2, 5)
        writer.array(1, layout.device[0])[...] = value
        np.testing.assert_array_equal(reader.array(1, layout.device[0]), value)
        assert reader.read(1, layout.device[0]) == value.tobytes()
        for slot, region in ((0, layout.device[0]), (2, layout.device[0]), (1, layout.reference[0])):
            assert not np.any(reader.array(slot, region)), "nothing beside the tensor may change"
    finally:
        writer.close()
        reader.close()


@pytest.mark.parametrize("slot", [-1, 2, 1000])
def test_a_slot_that_does_not_exist_is_refused(slot: int) -> None:
    ring = Ring.create(RingSpec(2, 64), "test")
    with pytest.raises(SlotError, match=f"slot {slot} of a ring of 2"):
        ring.array(slot, Region(FLOATS, 0))
    with pytest.raises(SlotError):
        ring.read(slot, Region(FLOATS, 0))
    ring.close()


@pytest.mark.parametrize("offset", [-4, 32, 64])
def test_a_tensor_can_not_reach_into_the_next_slot(offset: int) -> None:
    ring = Ring.create(RingSpec(2, 64), "test")
    with pytest.raises(SlotError, match="tensor y reaches past its slot of 64 bytes"):
        ring.array(0, Region(FLOATS, offset))
    with pytest.raises(SlotError):
        ring.read(0, Region(FLOATS, offset))
    ring.close()


def test_shared_memory_that_is_too_small_is_refused_and_its_descriptor_closed() -> None:
    small = Ring.create(RingSpec(1, 64), "test")
    before = open_descriptors()
    with pytest.raises(ValueError, match="64 bytes is too small for a ring of 4096"):
        Ring(RingSpec(64, 64), os.dup(small.fd))
    with pytest.raises(ValueError, match="can't have -1 slots"):
        Ring(RingSpec(-1, -4096), os.dup(small.fd))
    assert open_descriptors() == before
    small.close()


def test_the_other_side_can_not_shrink_the_memory() -> None:
    ring = Ring.create(RingSpec(2, 4096), "test")
    with pytest.raises(PermissionError):
        os.ftruncate(ring.fd, 0)
    ring.close()


def test_a_view_outlives_the_ring_and_closing_twice_is_harmless() -> None:
    ring = Ring.create(RingSpec(1, 64), "test")
    before = open_descriptors()
    view = ring.array(0, Region(FLOATS, 0))
    ring.close()
    stranger = os.open("/dev/null", os.O_RDONLY)  # takes the number that the ring had
    ring.close()
    os.fstat(stranger)
    view[...] = 3
    assert view.sum() == 30
    os.close(stranger)
    del view, ring
    assert open_descriptors() == before - 2, "the descriptor and the mapping's own copy of it"
