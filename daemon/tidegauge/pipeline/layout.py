"""Where things lie in the shared-memory rings. Pure arithmetic, the same on both sides."""

from __future__ import annotations

import msgspec

from tidegauge.tensors import TensorSpec

ALIGNMENT = 64


class RingSpec(msgspec.Struct, frozen=True):
    """`slots` slots of `slot_bytes` bytes each, one after another, in one anonymous shared memory."""

    slots: int
    slot_bytes: int

    @property
    def nbytes(self) -> int:
        return self.slots * self.slot_bytes


class Region(msgspec.Struct, frozen=True):
    """A tensor's place inside a slot."""

    spec: TensorSpec
    offset: int


class SampleLayout(msgspec.Struct, frozen=True):
    """One slot of the sample ring: inputs, device outputs, then room for the reference's outputs.

    Reference outputs have the device outputs' shapes and element types.
    """

    inputs: tuple[Region, ...]
    device: tuple[Region, ...]
    reference: tuple[Region, ...]
    nbytes: int


def align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def sample_layout(inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> SampleLayout:
    """Place the tensors of a shadow sample, each aligned to 64 bytes."""
    offset = 0
    groups: list[tuple[Region, ...]] = []
    for specs in (inputs, outputs, outputs):
        regions = []
        for spec in specs:
            regions.append(Region(spec, offset))
            offset = align(offset + spec.nbytes)
        groups.append(tuple(regions))
    return SampleLayout(groups[0], groups[1], groups[2], offset)
